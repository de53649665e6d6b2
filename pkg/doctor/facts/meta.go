package facts

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MetaOf returns the metadata of an object in the snapshot, or nil. kind is in the form used in commands, such as
// clusterpolicy. An empty namespace matches all namespaces.
func (f *Facts) MetaOf(kind, namespace, name string) metav1.Object {
	find := func(count int, object func(i int) metav1.Object) metav1.Object {
		for i := range count {
			if o := object(i); o.GetName() == name && (namespace == "" || o.GetNamespace() == namespace) {
				return o
			}
		}
		return nil
	}
	switch kind {
	case "clusterpolicy":
		return find(len(f.ClusterPolicies), func(i int) metav1.Object { return &f.ClusterPolicies[i] })
	case "nvidiadriver":
		return find(len(f.NVIDIADrivers), func(i int) metav1.Object { return &f.NVIDIADrivers[i] })
	case "daemonset":
		return find(len(f.DaemonSets), func(i int) metav1.Object { return &f.DaemonSets[i] })
	case "configmap":
		return find(len(f.ConfigMaps), func(i int) metav1.Object { return &f.ConfigMaps[i] })
	case "runtimeclass":
		return find(len(f.RuntimeClasses), func(i int) metav1.Object { return &f.RuntimeClasses[i] })
	case "networkpolicy":
		return find(len(f.NetworkPolicies), func(i int) metav1.Object { return &f.NetworkPolicies[i] })
	case "resourcequota":
		return find(len(f.ResourceQuotas), func(i int) metav1.Object { return &f.ResourceQuotas[i] })
	case "servicemonitor":
		return find(len(f.ServiceMonitors), func(i int) metav1.Object { return &f.ServiceMonitors[i] })
	case "namespace":
		return find(len(f.Namespaces), func(i int) metav1.Object { return &f.Namespaces[i] })
	}
	return nil
}
