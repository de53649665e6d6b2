package collect

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// configMaps gets the configurations of the device plugin, MIG manager, dcgm-exporter, Kueue, Volcano and CoreDNS by
// name. It does not read other ConfigMaps.
func (c *collector) configMaps(ctx context.Context) {
	names := map[[2]string]bool{{"kube-system", "coredns"}: true} // the DNS domain of the cluster
	namespaces := map[string]bool{}
	for i := range c.s.DaemonSets {
		ds := &c.s.DaemonSets[i]
		if facts.ComponentOf(ds.Spec.Template.Labels, &ds.Spec.Template.Spec) == "" {
			continue
		}
		namespaces[ds.Namespace] = true
		for _, name := range mounted(ds.Spec.Template.Spec) {
			names[[2]string{ds.Namespace, name}] = true
		}
	}
	for i := range c.s.Pods {
		if pod := &c.s.Pods[i]; strings.HasPrefix(pod.Name, "kueue-controller-manager-") ||
			strings.HasPrefix(pod.Name, "volcano-scheduler-") {
			for _, name := range mounted(pod.Spec) {
				names[[2]string{pod.Namespace, name}] = true
			}
		}
	}
	for _, policy := range c.s.ClusterPolicies {
		for _, path := range [][]string{
			{"devicePlugin", "config", "name"}, {"devicePlugin", "mps", "config", "name"},
			{"migManager", "config", "name"}, {"dcgmExporter", "config", "name"},
		} {
			name, _, err := unstructured.NestedString(policy.Object, append([]string{"spec"}, path...)...)
			if err != nil || name == "" {
				continue
			}
			for namespace := range namespaces {
				if !isShared(namespace) {
					names[[2]string{namespace, name}] = true
				}
			}
		}
	}
	for _, key := range slices.SortedFunc(
		maps.Keys(names), func(a, b [2]string) int { return strings.Compare(a[0]+"/"+a[1], b[0]+"/"+b[1]) },
	) {
		c.configMap(ctx, key[0], key[1])
	}
}

func (c *collector) configMap(ctx context.Context, namespace, name string) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	cm, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		cm.ManagedFields = nil
		c.s.ConfigMaps = append(c.s.ConfigMaps, *cm)
	case apierrors.IsNotFound(err), ctx.Err() != nil && context.Cause(ctx) == context.Canceled:
		// Checks detect that the ConfigMap does not exist.
	default:
		c.missing("api/configmaps/"+namespace+"/"+name, reason(err))
	}
}

// mounted returns the names of ConfigMaps that a pod mounts or takes variables from, except those that every pod has.
func mounted(spec corev1.PodSpec) []string {
	var names []string
	for _, volume := range spec.Volumes {
		if volume.ConfigMap != nil && volume.ConfigMap.Name != "kube-root-ca.crt" {
			names = append(names, volume.ConfigMap.Name)
		}
	}
	for i := range spec.Containers {
		for _, from := range spec.Containers[i].EnvFrom {
			if from.ConfigMapRef != nil {
				names = append(names, from.ConfigMapRef.Name)
			}
		}
	}
	return names
}
