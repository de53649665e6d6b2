package collect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// served describes the APIs that the API server serves.
type served struct {
	// groups contains the versions of each group, with the preferred one first; nil if discovery failed.
	groups map[string][]string
	// versions contains the version of each resource in relevant groups, by a key such as "clusterpolicies.nvidia.com".
	versions map[string]string
}

// mattersForGPUs reports whether an API group is related to GPUs or their monitoring.
func mattersForGPUs(group string) bool {
	return group == "nvidia.com" || strings.HasSuffix(group, ".nvidia.com") ||
		slices.Contains([]string{
			"monitoring.coreos.com", "nfd.k8s-sigs.io", "nfd.openshift.io", "mellanox.com", "kueue.x-k8s.io",
			"nvsentinel.dgxc.nvidia.com", "scheduling.run.ai", "scheduling.volcano.sh",
		}, group)
}

// discover discovers API versions and the resources of CustomResourceDefinitions. All users may use discovery, and its
// data is a hundred times smaller than a list of CustomResourceDefinitions.
func (c *collector) discover(ctx context.Context) {
	ask := discovery.ToDiscoveryInterfaceWithContext(c.Client.Discovery())
	if version, err := ask.ServerVersionWithContext(ctx); err == nil {
		c.s.Meta.Server = version.GitVersion
	}
	groups, err := ask.ServerGroupsWithContext(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.missing("api/crds", reason(err))
		}
		return
	}
	c.served = served{groups: map[string][]string{}, versions: map[string]string{}}
	for _, group := range groups.Groups {
		versions := []string{group.PreferredVersion.Version}
		for _, v := range group.Versions {
			if v.Version != "" && !slices.Contains(versions, v.Version) {
				versions = append(versions, v.Version)
			}
		}
		versions = slices.DeleteFunc(versions, func(v string) bool { return v == "" })
		c.served.groups[group.Name] = versions
		if mattersForGPUs(group.Name) {
			c.discoverGroup(ctx, ask, group.Name, versions)
		}
	}
}

func (c *collector) discoverGroup(
	ctx context.Context, ask discovery.DiscoveryInterfaceWithContext, group string, versions []string,
) {
	for _, version := range versions {
		resources, err := ask.ServerResourcesForGroupVersionWithContext(ctx, group+"/"+version)
		if err != nil {
			if ctx.Err() == nil && !apierrors.IsNotFound(err) {
				c.missing("api/crds/"+group, reason(err))
			}
			continue
		}
		for _, r := range resources.APIResources {
			name := r.Name + "." + group
			if strings.Contains(r.Name, "/") || c.served.versions[name] != "" {
				continue
			}
			c.served.versions[name] = version
			c.s.CRDs = append(c.s.CRDs, name)
		}
	}
}

// custom lists the custom resources.
func (c *collector) custom(ctx context.Context) {
	for _, kind := range []struct {
		what, group, version, resource string
		into                           *[]unstructured.Unstructured
	}{
		{"api/clusterpolicies", "nvidia.com", "v1", "clusterpolicies", &c.s.ClusterPolicies},
		{"api/nvidiadrivers", "nvidia.com", "v1alpha1", "nvidiadrivers", &c.s.NVIDIADrivers},
		{"api/computedomains", "resource.nvidia.com", "v1beta1", "computedomains", &c.s.ComputeDomains},
		{"api/servicemonitors", "monitoring.coreos.com", "v1", "servicemonitors", &c.s.ServiceMonitors},
		{"api/prometheuses", "monitoring.coreos.com", "v1", "prometheuses", &c.s.Prometheuses},
		{"api/queues", "scheduling.run.ai", "v2", "queues", &c.s.Queues},
		{"api/queues", "scheduling.volcano.sh", "v1beta1", "queues", &c.s.Queues},
		{"api/queues", "kueue.x-k8s.io", "v1beta1", "clusterqueues", &c.s.Queues},
		{"api/queues", "kueue.x-k8s.io", "v1beta1", "localqueues", &c.s.Queues},
		{"api/queues", "kueue.x-k8s.io", "v1beta1", "resourceflavors", &c.s.Queues},
		{"api/queued", "kueue.x-k8s.io", "v1beta1", "workloads", &c.s.Queued},
		{"api/queued/jobs", "batch", "v1", "jobs", &c.s.Queued},
		{"api/queued", "scheduling.volcano.sh", "v1beta1", "podgroups", &c.s.Queued},
		{"api/queued", "scheduling.run.ai", "v2alpha2", "podgroups", &c.s.Queued},
	} {
		version, options := kind.version, metav1.ListOptions{Limit: pageSize}
		switch {
		case kind.resource == "jobs": // only Jobs that Kueue should start
			if c.served.versions["workloads.kueue.x-k8s.io"] == "" {
				continue
			}
			options.LabelSelector = facts.QueueLabel
		case c.served.groups != nil:
			if version = c.served.versions[kind.resource+"."+kind.group]; version == "" && !c.unknown(kind.group) {
				continue // the resource is not installed
			}
			if version == "" {
				version = kind.version
			}
		}
		resource := c.Dynamic.Resource(
			schema.GroupVersionResource{Group: kind.group, Version: version, Resource: kind.resource},
		)
		list := paged(resource.List,
			func(l *unstructured.UnstructuredList) []unstructured.Unstructured { return l.Items })
		kept, err := all(ctx, options, list, keepCustom)
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsNotFound(err): // also not installed
		case err != nil:
			c.missing(kind.what, reason(err))
		default:
			*kind.into = append(*kind.into, kept...)
		}
	}
}

// unknown reports whether the group is served but discovery of its resources failed.
func (c *collector) unknown(group string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.s.Missing {
		if m.What == "api/crds/"+group {
			return true
		}
	}
	return false
}

// keepCustom reports whether to keep an object. It drops only finished work, which accumulates in large clusters. It
// reduces pod templates to their requests.
func keepCustom(object *unstructured.Unstructured) bool {
	unstructured.RemoveNestedField(object.Object, "metadata", "managedFields")
	if facts.IsFinished(object) {
		return false
	}
	sets, _, _ := unstructured.NestedSlice(object.Object, "spec", "podSets")
	if object.GetKind() == "Job" {
		if !facts.IsHeld(object) {
			return false
		}
		object.SetAnnotations(nil) // one of them contains the whole Job
		sets = []any{object.Object["spec"]}
	}
	for _, set := range sets {
		set, _ := set.(map[string]any)
		containers, found, _ := unstructured.NestedSlice(set, "template", "spec", "containers")
		if !found {
			continue
		}
		for i, c := range containers {
			c, _ := c.(map[string]any)
			containers[i] = map[string]any{"name": c["name"], "resources": c["resources"]}
		}
		set["template"] = map[string]any{"spec": map[string]any{"containers": containers}}
	}
	if len(sets) > 0 && object.GetKind() != "Job" {
		_ = unstructured.SetNestedSlice(object.Object, sets, "spec", "podSets") // the field already has this shape
	}
	return true
}

// draGroup is the API group of dynamic resource allocation.
const draGroup = "resource.k8s.io"

// dra lists the resources published by NVIDIA's DRA drivers, and the claims for these resources.
func (c *collector) dra(ctx context.Context) {
	if c.served.groups != nil {
		versions := c.served.groups[draGroup]
		if len(versions) == 0 {
			return
		}
		if !slices.Contains(versions, "v1") {
			for _, what := range []string{"api/resourceslices", "api/resourceclaims", "api/deviceclasses"} {
				c.missing(what, fmt.Sprintf(
					"the API server serves %s only as %s, but this tool requires v1 (Kubernetes 1.34 or later)",
					draGroup,
					strings.Join(versions, ", "),
				))
			}
			return
		}
	}
	api := c.Client.ResourceV1()
	c.s.DeviceClasses = draListed(ctx, c, "api/deviceclasses",
		paged(api.DeviceClasses().List,
			func(l *resourcev1.DeviceClassList) []resourcev1.DeviceClass { return l.Items }),
		trim)
	c.s.ResourceSlices = draListed(ctx, c, "api/resourceslices", paged(api.ResourceSlices().List,
		func(l *resourcev1.ResourceSliceList) []resourcev1.ResourceSlice { return l.Items }),
		func(slice *resourcev1.ResourceSlice) bool {
			slice.ManagedFields = nil
			return isNVIDIAs(slice.Spec.Driver)
		})
	c.s.ResourceClaims = draListed(ctx, c, "api/resourceclaims", paged(api.ResourceClaims("").List,
		func(l *resourcev1.ResourceClaimList) []resourcev1.ResourceClaim { return l.Items }),
		func(claim *resourcev1.ResourceClaim) bool {
			claim.ManagedFields = nil
			// A claim that is waiting for other devices may also request GPUs.
			return claim.Status.Allocation == nil || slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
				func(r resourcev1.DeviceRequestAllocationResult) bool { return isNVIDIAs(r.Driver) })
		})
}

// draListed is like listed, but treats a resource that is not served as empty.
func draListed[T any](ctx context.Context, c *collector, what string, list lister[T], keep func(*T) bool) []T {
	return listed(ctx, c, what, func(ctx context.Context, options metav1.ListOptions) (page[T], error) {
		p, err := list(ctx, options)
		if apierrors.IsNotFound(err) {
			return page[T]{}, nil
		}
		return p, err
	}, keep)
}

func isNVIDIAs(driver string) bool { return strings.Contains(driver, "nvidia.com") }
