package check

import (
	"cmp"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
)

// nobody is the default user ID for pods: the ID of the nobody user in Debian and BusyBox.
const nobody int64 = 65534

// deadline is the maximum lifetime, in seconds, of a pod that is not deleted.
const deadline int64 = 3600

// harden sets unspecified fields of a pod so that it meets the restricted Pod Security Standard and quotas for
// requests and limits, terminates on its own, and has no credentials. Fields that are set are preserved.
func (c *Checker) harden(object map[string]any) error {
	spec, is := object["spec"].(map[string]any)
	if !is {
		spec = map[string]any{}
		object["spec"] = spec
	}
	all := append(mapsOf(spec["initContainers"]), mapsOf(spec["containers"])...)
	if len(mapsOf(spec["containers"])) == 0 {
		return errors.New("the probe's pod has no containers: specify at least one")
	}
	orElse(spec, "restartPolicy", "Never")
	orElse(spec, "activeDeadlineSeconds", deadline)
	orElse(spec, "automountServiceAccountToken", false)
	orElse(spec, "enableServiceLinks", false)
	orElse(spec, "terminationGracePeriodSeconds", int64(1))
	if !choosesUser(all) {
		orElse(spec, "securityContext", map[string]any{
			"runAsNonRoot": true, "runAsUser": nobody, "runAsGroup": nobody,
			"seccompProfile": map[string]any{"type": "RuntimeDefault"},
		})
	}
	for _, container := range all {
		orElse(container, "image", cmp.Or(c.ProbeImage, debugpod.DefaultImage))
		orElse(container, "imagePullPolicy", "IfNotPresent")
		orElse(container, "securityContext", map[string]any{
			"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []any{"ALL"}},
		})
		small(container)
	}
	return nil
}

// choosesUser reports whether a container sets its own user, which the pod's default might conflict with.
func choosesUser(containers []map[string]any) bool {
	for _, container := range containers {
		if context, is := container["securityContext"].(map[string]any); is {
			if context["privileged"] == true || context["runAsUser"] != nil || context["runAsNonRoot"] != nil {
				return true
			}
		}
	}
	return false
}

// small sets small requests and limits for CPU and memory if they are not set.
func small(container map[string]any) {
	orElse(container, "resources", map[string]any{})
	resources, is := container["resources"].(map[string]any)
	if !is {
		return // the API server reports the error
	}
	requests, limits := inner(resources, "requests"), inner(resources, "limits")
	for _, r := range []struct{ name, request, limit string }{{"cpu", "10m", "200m"}, {"memory", "16Mi", "128Mi"}} {
		if requests[r.name] == nil && limits[r.name] == nil {
			requests[r.name], limits[r.name] = r.request, r.limit
		}
	}
}

// inner returns a map in a map, and creates it if it is missing.
func inner(of map[string]any, key string) map[string]any {
	m, is := of[key].(map[string]any)
	if !is {
		m = map[string]any{}
		of[key] = m
	}
	return m
}

func orElse(m map[string]any, key string, value any) {
	if m[key] == nil {
		m[key] = value
	}
}

// mapsOf returns the maps in a list.
func mapsOf(list any) []map[string]any {
	items, _ := list.([]any)
	var all []map[string]any
	for _, item := range items {
		if m, is := item.(map[string]any); is {
			all = append(all, m)
		}
	}
	return all
}
