package scenario

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// mostDiagnosis is the maximum size of a diagnosis, in bytes. A diagnosis is usually a few lines long.
const mostDiagnosis = 64 << 10

// ReadDiagnosis reads a diagnosis in JSON or YAML. It rejects unknown fields, and returns the zero Diagnosis
// for an empty file.
func ReadDiagnosis(r io.Reader) (Diagnosis, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostDiagnosis+1))
	switch {
	case err != nil:
		return Diagnosis{}, err
	case len(text) > mostDiagnosis:
		return Diagnosis{}, fmt.Errorf("must be at most %d KiB", mostDiagnosis>>10)
	}
	if !json.Valid(text) {
		text, err = yamlToJSON(text)
	}
	var d Diagnosis
	if err == nil {
		var unknown []error
		unknown, err = kjson.UnmarshalStrict(text, &d)
		err = errors.Join(append(unknown, err)...)
	}
	if err != nil {
		return Diagnosis{},
			fmt.Errorf("%w; supported fields: component, object, field, mechanism, explanation; each must be a string",
				err)
	}
	return d, nil
}

// yamlToJSON converts a single document; it returns null for empty input.
func yamlToJSON(text []byte) ([]byte, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, more any
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected content after the document")
	}
	return json.Marshal(document)
}

// FieldScore is the score of one field of a diagnosis.
type FieldScore struct {
	Field string `json:"field"` // component, object, field, mechanism
	Right bool   `json:"right"`
	Want  string `json:"want"`
	Got   string `json:"got,omitempty"`
}

// Compare compares a diagnosis with the correct one, field by field. It ignores case, punctuation and indices. Kinds
// may be written in any form that kubectl accepts (deploy, deployments.apps), and a field path may omit leading names
// as long as two or more names remain.
func Compare(right RootCause, got Diagnosis) []FieldScore {
	return []FieldScore{
		score("component", right.Component, got.Component, sameWords),
		score("object", right.Object, got.Object, sameObject),
		score("field", right.Field, got.Field, samePath),
		score("mechanism", right.Mechanism, got.Mechanism, sameWords),
	}
}

func score(name string, answer Answer, got string, same func(right, got string) bool) FieldScore {
	accepted := append([]string{answer.Value}, answer.Aliases...)
	right := slices.ContainsFunc(accepted, func(a string) bool {
		if nothing(a) {
			return nothing(got)
		}
		return !nothing(got) && same(a, got)
	})
	return FieldScore{Field: name, Right: right, Want: answer.Value, Got: strings.TrimSpace(got)}
}

// nothing reports whether the answer means that nothing is broken. An empty answer does not mean this.
func nothing(s string) bool {
	return slices.Contains([]string{"none", "nothing", "n a", "na", "no fault", "not broken", "healthy", "ok"},
		strings.Join(words(s), " "))
}

// words returns the words of a string, in lower case and without punctuation.
func words(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s),
		func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

func sameWords(right, got string) bool {
	return strings.Join(words(right), "") == strings.Join(words(got), "")
}

// samePath reports whether two field paths are equal, ignoring indices.
func samePath(right, got string) bool {
	r, g := pathNames(right), pathNames(got)
	if len(g) == 0 {
		return false
	}
	if slices.Equal(r, g) {
		return true
	}
	return len(g) >= 2 && len(g) < len(r) && slices.Equal(r[len(r)-len(g):], g)
}

func pathNames(s string) []string {
	return slices.DeleteFunc(words(s), func(w string) bool { return strings.Trim(w, "0123456789") == "" })
}

// sameObject reports whether both strings refer to the same Kind/name. It ignores a namespace prefix.
func sameObject(right, got string) bool {
	rightKind, rightName := object(right)
	gotKind, gotName := object(got)
	return rightKind == gotKind && rightName == gotName
}

// object parses Kind/name in the forms Deployment/trainer, deploy trainer, deployments.apps/trainer, and
// research/deployment/trainer.
func object(s string) (kind, name string) {
	parts := strings.FieldsFunc(strings.ToLower(s),
		func(r rune) bool { return r == '/' || unicode.IsSpace(r) || strings.ContainsRune(`"'`+"`", r) })
	if len(parts) < 2 {
		return "", strings.Join(parts, "")
	}
	kind, _, _ = strings.Cut(parts[len(parts)-2], ".")
	kind = strings.ReplaceAll(kind, "-", "")
	return cmp.Or(shortKinds[kind], shortKinds[strings.TrimSuffix(kind, "s")], strings.TrimSuffix(kind, "s")),
		parts[len(parts)-1]
}

// shortKinds are kubectl's short names, and plurals that are not formed by adding an s.
var shortKinds = map[string]string{
	"cm": "configmap", "deploy": "deployment", "ds": "daemonset", "ep": "endpoint", "ing": "ingres",
	"ingresse": "ingres", "ingress": "ingres", "limit": "limitrange",
	"netpol": "networkpolicy", "networkpolicie": "networkpolicy", "no": "node", "ns": "namespace", "pc": "priorityclas",
	"po":             "pod",
	"priorityclasse": "priorityclas", "priorityclass": "priorityclas", "pv": "persistentvolume",
	"pvc": "persistentvolumeclaim", "quota": "resourcequota", "rs": "replicaset",
	"runtimeclasse": "runtimeclas", "runtimeclass": "runtimeclas", "sa": "serviceaccount", "sts": "statefulset",
	"svc":          "service",
	"storageclass": "storageclas", "storageclasse": "storageclas", "sc": "storageclas", "cj": "cronjob",
	"hpa": "horizontalpodautoscaler",
}
