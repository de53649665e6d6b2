package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Labels and annotations of the objects that this tool creates in a cluster.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "kubectl-gpu-fault"

	// LabelLedger, with the value "true", marks namespaces whose records are trusted. A tenant can write ConfigMaps in
	// their own namespace, but only users who can label namespaces determine which namespaces contain a ledger.
	LabelLedger = "gpufault.dev/ledger"

	LabelRun   = "gpufault.dev/run"   // on locks and debug pods: the ID of their run
	LabelFleet = "gpufault.dev/fleet" // on the objects and records of a fleet: its ID
	LabelFault = "gpufault.dev/fault" // on records
	LabelPhase = "gpufault.dev/phase" // on records
	// LabelClosed is "true" or "false" on records. A selector for open records uses "!= true", so that a record without
	// the label counts as open.
	LabelClosed = "gpufault.dev/closed"

	AnnotationSummary = "gpufault.dev/summary"
	AnnotationTarget  = "gpufault.dev/target" // on locks
	// AnnotationSum is the hexadecimal SHA-256 checksum of a record. It detects manual edits and truncation; it is not
	// a signature.
	AnnotationSum = "gpufault.dev/sha256"
)

// ErrNewer means that a newer version wrote the record, in a format that this version does not support.
var ErrNewer = errors.New("the record was written by a newer version of kubectl gpu-fault: upgrade this installation")

// ErrTampered means that a record was modified by something other than this tool. Such a record is ignored, because it
// could make a revert write arbitrary data.
var ErrTampered = errors.New("the record was changed by another client and is rejected")

// encode writes the run to a ConfigMap that may contain at most limit bytes of record data. It preserves metadata that
// other clients have set on base.
func encode(run Run, base *corev1.ConfigMap, limit int) (*corev1.ConfigMap, error) {
	run.APIVersion, run.Kind, run.Namespace = APIVersion, KindRun, ""
	if err := checkText(run); err != nil {
		return nil, err
	}
	text, err := json.Marshal(run)
	if err != nil {
		return nil, fmt.Errorf("encode the record of run %s: %w", run.ID, err)
	}
	cm := &corev1.ConfigMap{}
	if base != nil {
		cm = base.DeepCopy()
	}
	cm.Name = run.ID
	cm.Labels = with(cm.Labels, map[string]string{
		LabelManagedBy: ManagedBy,
		LabelFault:     run.Fault,
		LabelPhase:     string(run.Phase),
		LabelClosed:    fmt.Sprint(run.IsClosed()),
	})
	if run.Fleet != "" {
		cm.Labels[LabelFleet] = run.Fleet
	}
	cm.Annotations = with(cm.Annotations,
		map[string]string{AnnotationSummary: describe(run), AnnotationSum: patch.Sum(text)})
	if err := put(cm, run.ID, text, limit); err != nil {
		return nil, err
	}
	return cm, nil
}

// unreadableError means that a record exists but cannot be decoded. It wraps ErrNewer if a newer version wrote the
// record.
type unreadableError struct{ error }

func (e *unreadableError) Unwrap() error { return e.error }

// decode reads a run from a ConfigMap. It rejects unknown fields, because writing the record back without them could
// lose the data for undoing a change. The error is an *unreadableError.
func decode(cm *corev1.ConfigMap) (Run, error) {
	run, err := decodeRun(cm)
	if err != nil {
		return Run{}, &unreadableError{err}
	}
	return run, nil
}

func decodeRun(cm *corev1.ConfigMap) (Run, error) {
	text, err := get(cm)
	if err != nil {
		return Run{}, err
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return Run{}, fmt.Errorf("read %s of configmap %s: %w", dataKey, cm.Name, err)
	}
	if group, _, _ := strings.Cut(APIVersion, "/"); !strings.HasPrefix(kind.APIVersion, group+"/") {
		return Run{}, fmt.Errorf("configmap %s does not contain a record of this tool: its apiVersion is %q", cm.Name, kind.APIVersion)
	}
	if kind.APIVersion != APIVersion || kind.Kind != KindRun {
		return Run{}, fmt.Errorf("record %s is a %q of %q: %w", cm.Name, kind.Kind, kind.APIVersion, ErrNewer)
	}
	if sum := cm.Annotations[AnnotationSum]; sum != patch.Sum(text) {
		return Run{}, fmt.Errorf("%w: its SHA-256 is %.12s, but the annotation contains %.12q", ErrTampered,
			patch.Sum(text), cmp.Or(sum, "missing"))
	}
	var run Run
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&run); err != nil {
		// encoding/json has no error type for unknown fields. A test verifies the error message.
		if strings.Contains(err.Error(), "unknown field") {
			return Run{},
				fmt.Errorf("record %s has an %s: %w", cm.Name, strings.TrimPrefix(err.Error(), "json: "), ErrNewer)
		}
		return Run{}, fmt.Errorf("read %s of configmap %s: %w", dataKey, cm.Name, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Run{}, fmt.Errorf("read %s of configmap %s: unexpected data after the record", dataKey, cm.Name)
	}
	if run.ID != cm.Name {
		return Run{}, fmt.Errorf("configmap %s contains the record of run %q", cm.Name, run.ID)
	}
	if err := checkText(run); err != nil {
		return Run{}, fmt.Errorf("configmap %s: %w", cm.Name, err)
	}
	run.Namespace = cm.Namespace
	return run, nil
}

// checkText rejects a run with control characters in a name or heading, because a line break could forge a line of
// output.
func checkText(run Run) error {
	for _, field := range [...]struct{ name, text string }{
		{"id", run.ID}, {"fault", run.Fault}, {"summary", run.Summary}, {"by", run.By}, {"from", run.From},
		{"reason", run.Reason}, {"phase", string(run.Phase)}, {"fleet", run.Fleet},
	} {
		if hasControl(field.text) {
			return controlError(field.name, field.text)
		}
	}
	for i, step := range run.Steps {
		t := step.Target
		for _, field := range [...]struct{ name, text string }{
			{"id", step.ID}, {"action", step.Action}, {"state", string(step.State)}, {"undo.kind", step.Undo.Kind},
			{"target", t.Kind}, {"target", t.Namespace}, {"target", t.Name}, {"target", t.UID},
		} {
			if hasControl(field.text) {
				return controlError(fmt.Sprintf("steps[%d].%s", i, field.name), field.text)
			}
		}
	}
	return nil
}

func hasControl(text string) bool {
	return strings.ContainsFunc(text,
		func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) })
}

func controlError(field, text string) error {
	return fmt.Errorf("%s of the record must not contain control characters or line breaks: %q", field, text)
}

// describe returns a one-line description of the run for users who read the ConfigMap with kubectl.
func describe(run Run) string {
	text := fmt.Sprintf("%s, %s, %s", run.Summary, count.Of(len(run.Steps), "step"), run.Phase)
	if run.By != "" {
		text += ", by " + run.By
	}
	return text
}

func with(base, more map[string]string) map[string]string {
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, more)
	return merged
}
