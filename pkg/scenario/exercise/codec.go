package exercise

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "k8s.io/apimachinery/pkg/util/json"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Labels, types and keys of an exercise's Secrets.
const (
	labelKind    = "gpufault.dev/kind"
	kindExercise = "exercise"
	kindSnapshot = "snapshot"

	keyExercise = "exercise.json"
	keyScenario = "scenario.json.gz"
	keyChunk    = "part"
)

// maxSize is the maximum size of an exercise's Secret, in bytes: the API server allows 1 MiB of data. keptGrades is the
// maximum number of reports to keep.
const (
	maxSize     = 900 << 10
	maxScenario = 512 << 10
	keptGrades  = 10
)

func labelsOf(id, kind string) map[string]string {
	return map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: id, labelKind: kind}
}

func versionOf(secret *corev1.Secret) version {
	return version{string(secret.UID), secret.ResourceVersion}
}

// encode stores an exercise in its Secret; base is the Secret as currently stored.
func encode(e *Exercise, base *corev1.Secret) (*corev1.Secret, error) {
	e.APIVersion, e.Kind = APIVersion, Kind
	if n := len(e.Grades); n > keptGrades {
		e.Grades = slices.Clone(e.Grades[n-keptGrades:])
	}
	var text []byte
	for {
		var err error
		if text, err = json.Marshal(e); err != nil {
			return nil, fmt.Errorf("store exercise %s: %w", e.ID, err)
		}
		if len(text)+maxScenario <= maxSize || len(e.Grades) <= 1 {
			break
		}
		e.Grades = e.Grades[1:]
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: e.ID}, Type: corev1.SecretTypeOpaque}
	if base != nil {
		secret = base.DeepCopy()
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[keyExercise] = text
	if size := len(text) + len(secret.Data[keyScenario]); size > maxSize {
		return nil, fmt.Errorf("exercise %s needs %d KiB in its Secret, but the maximum is %d: shorten the scenario",
			e.ID, size>>10, maxSize>>10)
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	maps.Copy(secret.Labels, labelsOf(e.ID, kindExercise))
	secret.Labels[ledger.LabelPhase] = string(e.Phase)
	secret.Labels[ledger.LabelClosed] = fmt.Sprint(!e.Running())
	return secret, nil
}

// decode reads an exercise. It rejects unknown fields, because writing back the record of a newer version would
// lose them.
func decode(secret *corev1.Secret) (*Exercise, error) {
	text, ok := secret.Data[keyExercise]
	if !ok {
		return nil, fmt.Errorf("secret %q in namespace %q does not contain an exercise", secret.Name, secret.Namespace)
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf(
			"exercise %s cannot be read: %w; to revert its changes, run: kubectl gpu-fault revert %[1]s",
			secret.Name, err,
		)
	}
	if kind.APIVersion != APIVersion || kind.Kind != Kind {
		return nil, fmt.Errorf("exercise %s is a %s %s: %w", secret.Name, kind.APIVersion, kind.Kind, ledger.ErrNewer)
	}
	var e Exercise
	if err := kubejson.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf(
			"exercise %s cannot be read: %w; to revert its changes, run: kubectl gpu-fault revert %[1]s",
			secret.Name, err,
		)
	}
	if e.ID != secret.Name {
		return nil, fmt.Errorf("secret %q contains exercise %q", secret.Name, e.ID)
	}
	e.secret = versionOf(secret)
	e.seals = map[string]string{sealExercise: e.seal(), sealScenario: sealOf(secret.Data[keyScenario])}
	return &e, nil
}

func encodeScenario(r *scenario.Resolved) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("store scenario %s: %w", r.Metadata.Name, err)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err = writer.Write(text)
	if closeErr := writer.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("store scenario %s: %w", r.Metadata.Name, err)
	}
	if packed.Len() > maxScenario {
		return nil, fmt.Errorf("scenario %s needs %d KiB in a Secret, but the maximum is %d: shorten the scenario",
			r.Metadata.Name,
			packed.Len()>>10, maxScenario>>10)
	}
	return packed.Bytes(), nil
}

// decodeScenario preserves integers, because expressions calculate with them.
func decodeScenario(secret *corev1.Secret) (*scenario.Resolved, error) {
	reader, err := gzip.NewReader(bytes.NewReader(secret.Data[keyScenario]))
	if err != nil {
		return nil, fmt.Errorf("read scenario of exercise %s: %w", secret.Name, err)
	}
	text, err := io.ReadAll(io.LimitReader(reader, 16<<20)) // the ledger is trusted, but its size is limited
	if err != nil {
		return nil, fmt.Errorf("read scenario of exercise %s: %w", secret.Name, err)
	}
	var r scenario.Resolved
	if err := kubejson.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read scenario of exercise %s: %w", secret.Name, err)
	}
	return &r, nil
}
