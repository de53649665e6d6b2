package leftover

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is a kind of object that has pod templates, or is a pod.
type kind struct {
	resource schema.GroupVersionResource
	name     string
	// specs are the paths of the kind's pod specs. It is nil for DynamoGraphDeployments, which have a different format.
	specs [][]string
	// fixed is the reason why the kind's pod specs are immutable, or empty if they are mutable.
	fixed string
}

const (
	kindPod        = "Pod"
	kindJob        = "Job"
	kindDeployment = "Deployment"
	kindReplicaSet = "ReplicaSet"
	kindGraph      = "DynamoGraphDeployment"
)

// workloads returns all kinds whose pod specs are inspected. The API server may not serve some of them.
func workloads() []kind {
	template := [][]string{{"spec", "template", "spec"}}
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	batch := schema.GroupVersion{Group: "batch", Version: "v1"}
	return []kind{
		{
			schema.GroupVersion{Version: "v1"}.WithResource("pods"), kindPod, [][]string{{"spec"}},
			"a pod's containers cannot be changed",
		},
		{apps.WithResource("deployments"), kindDeployment, template, ""},
		{apps.WithResource("statefulsets"), "StatefulSet", template, ""},
		{apps.WithResource("daemonsets"), "DaemonSet", template, ""},
		{batch.WithResource("jobs"), kindJob, template, "a job's template cannot be changed"},
		{
			batch.WithResource("cronjobs"), "CronJob", [][]string{{"spec", "jobTemplate", "spec", "template", "spec"}},
			"",
		},
		{schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"},
			"LeaderWorkerSet", [][]string{
				{"spec", "leaderWorkerTemplate", "leaderTemplate", "spec"},
				{"spec", "leaderWorkerTemplate", "workerTemplate", "spec"},
			}, ""},
		{
			schema.GroupVersionResource{Group: "nvidia.com", Version: "v1alpha1", Resource: "dynamographdeployments"},
			kindGraph, nil, "",
		},
	}
}

// place is one pod spec in an object. Its maps are shared with the object: changing them changes the object.
type place struct {
	spec map[string]any
	// service is the DynamoGraphDeployment service to which the spec belongs. It is nil for other kinds.
	service map[string]any
}

// places returns the pod specs of an object.
func (k kind) places(object *unstructured.Unstructured) []place {
	var all []place
	for _, path := range k.specs {
		if spec, ok := field(object.Object, path...); ok {
			all = append(all, place{spec: spec})
		}
	}
	if k.name != kindGraph {
		return all
	}
	services, _ := field(object.Object, "spec", "services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, ok := services[name].(map[string]any)
		if !ok {
			continue
		}
		spec, ok := field(service, "extraPodSpec")
		if !ok {
			spec = map[string]any{} // inspected, but never stored
		}
		all = append(all, place{spec: spec, service: service})
	}
	return all
}

// container has environment variables.
type container struct {
	fields map[string]any
	env    string // name of the field with the variables
}

// containers returns all containers of a pod spec. A DynamoGraphDeployment service has a separate main
// container, and its own variables.
func (p place) containers() []container {
	var all []container
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range elements(p.spec, list) {
			all = append(all, container{c, "env"})
		}
	}
	if p.service != nil {
		if main, ok := field(p.spec, "mainContainer"); ok {
			all = append(all, container{main, "env"})
		}
		all = append(all, container{p.service, "envs"})
	}
	return all
}

// field returns the map at a path itself, not a copy of it.
func field(object map[string]any, path ...string) (map[string]any, bool) {
	for _, name := range path {
		next, ok := object[name].(map[string]any)
		if !ok {
			return nil, false
		}
		object = next
	}
	return object, true
}

// elements returns the maps in a list themselves, not copies of them.
func elements(object map[string]any, list string) []map[string]any {
	items, _ := object[list].([]any)
	var all []map[string]any
	for _, item := range items {
		if element, ok := item.(map[string]any); ok {
			all = append(all, element)
		}
	}
	return all
}

// remove removes from a list the elements for which gone returns true. It also removes a list that becomes empty.
func remove(object map[string]any, list string, gone func(map[string]any) bool) {
	items, ok := object[list].([]any)
	if !ok {
		return
	}
	kept := make([]any, 0, len(items))
	for _, item := range items {
		if element, ok := item.(map[string]any); ok && gone(element) {
			continue
		}
		kept = append(kept, item)
	}
	switch {
	case len(kept) == len(items):
	case len(kept) == 0:
		delete(object, list)
	default:
		object[list] = kept
	}
}

func text(object map[string]any, name string) string {
	value, _ := object[name].(string)
	return value
}
