package facts

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// MetaOf returns the metadata of an object that the snapshot has, or nil. kind is as in a command: clusterpolicy.
func (f *Facts) MetaOf(kind, namespace, name string) *metav1.ObjectMeta {
	is := func(m *metav1.ObjectMeta) bool {
		return m.Name == name && (namespace == "" || m.Namespace == "" || m.Namespace == namespace)
	}
	custom := func(all []unstructured.Unstructured) *metav1.ObjectMeta {
		for _, o := range all {
			m := &metav1.ObjectMeta{
				Name: o.GetName(), Namespace: o.GetNamespace(), Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
				OwnerReferences: o.GetOwnerReferences(),
			}
			if is(m) {
				return m
			}
		}
		return nil
	}
	switch strings.TrimSuffix(kind, "s") {
	case "clusterpolicy", "clusterpolicie":
		return custom(f.ClusterPolicies)
	case "nvidiadriver":
		return custom(f.NVIDIADrivers)
	case "daemonset", "d":
		for i := range f.DaemonSets {
			if is(&f.DaemonSets[i].ObjectMeta) {
				return &f.DaemonSets[i].ObjectMeta
			}
		}
	case "configmap":
		for i := range f.ConfigMaps {
			if is(&f.ConfigMaps[i].ObjectMeta) {
				return &f.ConfigMaps[i].ObjectMeta
			}
		}
	case "runtimeclas":
		for i := range f.RuntimeClasses {
			if is(&f.RuntimeClasses[i].ObjectMeta) {
				return &f.RuntimeClasses[i].ObjectMeta
			}
		}
	case "namespace":
		for i := range f.Namespaces {
			if is(&f.Namespaces[i].ObjectMeta) {
				return &f.Namespaces[i].ObjectMeta
			}
		}
	}
	return nil
}
