package baseline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// shrink reduces an object to its names, its labels and the hashes of its fields.
func (o *object) shrink() {
	o.hashes = hashFields(o.body)
	metadata := mapAt(o.body, "metadata")
	kept := map[string]any{}
	for _, name := range []string{"name", "namespace", "uid", "labels"} {
		if value, is := metadata[name]; is {
			kept[name] = value
		}
	}
	o.body = map[string]any{"apiVersion": o.body["apiVersion"], "kind": o.body["kind"], "metadata": kept}
}

// fieldHashes returns the hashes of an object's fields, whether or not it is stored in full.
func (o *object) fieldHashes() map[string]string {
	if o.hashes != nil {
		return o.hashes
	}
	return hashFields(o.body)
}

// Digest returns a hash of the selected objects. It stays the same as long as none of them is created, changed or
// deleted, and the same kinds can be listed.
func (b *Baseline) Digest(of func(ref scenario.Ref, body map[string]any) bool) string {
	all := map[string]map[string]string{"": {"missing": strings.Join(b.Missing, "; ")}}
	for k, o := range b.objects {
		if o.note == "" && of(k.ref(o.version), o.body) {
			all[k.kind.String()+" "+k.namespace+"/"+k.name] = o.fieldHashes()
		}
	}
	return hashValue(all)
}

// hashFields returns a hash of each field of the first two levels.
func hashFields(body map[string]any) map[string]string {
	all := map[string]string{}
	for name, value := range body {
		inner, is := value.(map[string]any)
		switch {
		case slices.Contains([]string{"apiVersion", "kind"}, name):
		case is:
			for sub, value := range inner {
				if name != "metadata" || slices.Contains([]string{"labels", "annotations", "ownerReferences"}, sub) {
					all[expr.Join(name, sub)] = hashValue(value)
				}
			}
		default:
			all[name] = hashValue(value)
		}
	}
	return all
}

func hashValue(value any) string {
	data, err := json.Marshal(value) // sorts the keys
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
