package facts

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

// beyondCards returns a fact about an unscheduled pod that requests more memory or cores per card than any card has,
// including cards that no pod uses, according to the annotations in which HAMi's device plugins register their cards.
func (f *Facts) beyondCards(pod *corev1.Pod) []signatures.Line {
	if !Unscheduled(pod) {
		return nil
	}
	most, source := map[string]int64{}, map[string]string{}
	for _, n := range f.Nodes {
		for key, text := range n.Annotations {
			// hami.io/node-register-Ascend910B4, hami.io/node-nvidia-register
			kind, ok := strings.CutPrefix(key, "hami.io/node-")
			var cards []struct{ Devmem, Devcore int64 }
			if !ok || json.Unmarshal([]byte(text), &cards) != nil {
				continue
			}
			kind = strings.Trim(strings.ReplaceAll(kind, "register", ""), "-")
			memory, core := "/"+kind+"-memory", "/"+kind+"-core"
			if kind == "nvidia" {
				memory, core = "nvidia.com/gpumem", "nvidia.com/gpucores"
			}
			for _, card := range cards {
				most[memory], most[core] = max(most[memory], card.Devmem), max(most[core], card.Devcore)
				source[memory], source[core] = n.Object().String()+" "+key, n.Object().String()+" "+key
			}
		}
	}
	for c := range Containers(pod) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			q := c.Resources.Limits[name]
			for suffix, has := range most {
				if has > 0 && strings.HasSuffix(string(name), suffix) && q.Value() > has {
					return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
						Source: PodObject(pod).String() + ", container " + c.Name + " .resources.limits, and " +
							source[suffix],
						Text: fmt.Sprintf("beyond: %s: %d, the largest card has %d", name, q.Value(), has),
					}}}
				}
			}
		}
	}
	return nil
}
