package check

import (
	"cmp"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
)

// nobody is the user of pods that name none: Debian's and busybox' nobody.
const nobody int64 = 65534

// deadline is how long a pod of ours lives at most, though nobody deletes it.
const deadline int64 = 3600

// harden fills in what a pod leaves open, so that it passes Pod Security's restricted level and quotas that ask for
// requests and limits, ends by itself and has no credentials. What the pod says itself stays.
func (c *Checker) harden(object map[string]any) error {
	spec, is := object["spec"].(map[string]any)
	if !is {
		spec = map[string]any{}
		object["spec"] = spec
	}
	all := append(mapsOf(spec["initContainers"]), mapsOf(spec["containers"])...)
	if len(mapsOf(spec["containers"])) == 0 {
		return errors.New("the probe's pod has no containers: name at least one")
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

// choosesUser reports whether a container says itself as whom it runs, which the pod's own choice might contradict.
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

// small fills in requests and limits of CPU and memory that are not given.
func small(container map[string]any) {
	orElse(container, "resources", map[string]any{})
	resources, is := container["resources"].(map[string]any)
	if !is {
		return // the API server says what is wrong with it
	}
	requests, limits := inner(resources, "requests"), inner(resources, "limits")
	for _, r := range []struct{ name, request, limit string }{{"cpu", "10m", "200m"}, {"memory", "16Mi", "128Mi"}} {
		if requests[r.name] == nil && limits[r.name] == nil {
			requests[r.name], limits[r.name] = r.request, r.limit
		}
	}
}

// inner returns a map in a map, made where it is missing.
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

// mapsOf returns the maps of a list.
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
