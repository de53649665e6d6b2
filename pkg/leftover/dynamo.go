package leftover

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serviceNamespace is the namespace in the manifests of Dynamo's fault-injection service.
const serviceNamespace = "fault-injection-system"

// Names in these manifests (api-service, gpu-fault-injector-kernel, network-fault-injector, test-job-rbac-addon).
var (
	serviceWorkloads = []string{
		"fault-injection-api", "gpu-fault-injector-kernel", "gpu-fault-injector", "network-fault-injector",
	}
	serviceConfigMaps = []string{"gpu-fault-injector-config"}
	serviceRoles      = append([]string{"fault-injection-test-exec"}, serviceWorkloads...)
)

// Labels on network faults, and on nodes that Dynamo's tests cordoned.
const (
	labelFaultAPI = "managed-by"
	valueFaultAPI = "fault-injection-api"
	labelCordoned = "test.fault-injection/cordoned"
	labelReason   = "test.fault-injection/reason"
)

var (
	nodeResource    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	serviceResource = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	accountResource = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	roleResource    = schema.GroupVersionResource{
		Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles",
	}
	bindingResource = schema.GroupVersionResource{
		Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings",
	}
	policyResource = schema.GroupVersionResource{
		Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies",
	}
	chaosResource = schema.GroupVersionResource{
		Group: "chaos-mesh.org", Version: "v1alpha1", Resource: "networkchaos",
	}
)

// listed returns the resources that are listed in addition to those with pod specs.
func listed() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		configMapResource, leaseResource, nodeResource, serviceResource, accountResource, policyResource, chaosResource,
		roleResource, bindingResource,
	}
}

// dynamoObjects lists objects that belong entirely to Dynamo.
func (s *search) dynamoObjects() []task {
	network := metav1.ListOptions{LabelSelector: labelFaultAPI + "=" + valueFaultAPI}
	fault := func(o *metav1.PartialObjectMetadata) bool { return o.Labels[labelFaultAPI] == valueFaultAPI }
	roles := func(o *metav1.PartialObjectMetadata) bool { return slices.Contains(serviceRoles, o.Name) }
	return []task{
		s.dynamoObject(configMapResource, "ConfigMap",
			metav1.ListOptions{FieldSelector: "metadata.name=" + dynamoConfigMap}, "source of the CUDA library",
			func(o *metav1.PartialObjectMetadata) bool { return o.Name == dynamoConfigMap }),
		s.dynamoObject(policyResource, "NetworkPolicy", network, "network partition", fault),
		s.dynamoObject(chaosResource, "NetworkChaos", network, "network chaos", fault),
		s.dynamoObject(roleResource, "ClusterRole", metav1.ListOptions{}, "permissions of the fault-injection service",
			roles),
		s.dynamoObject(bindingResource, "ClusterRoleBinding", metav1.ListOptions{},
			"permissions of the fault-injection service", roles),
		s.cordonedNodes,
	}
}

// dynamoObject lists the objects of a kind, and adds those that belong to Dynamo. Selectors only reduce traffic.
func (s *search) dynamoObject(
	resource schema.GroupVersionResource, kind string, options metav1.ListOptions, what string,
	isTheirs func(*metav1.PartialObjectMetadata) bool,
) task {
	return func(ctx context.Context) error {
		_, err := s.metadata(ctx, resource, options, func(o *metav1.PartialObjectMetadata) {
			if isTheirs(o) {
				s.items = append(s.items, leftoverOf(resource, kind, o, Dynamo, what))
			}
		})
		return err
	}
}

// isService adds a workload of the fault-injection service. In the service's namespace, workloads are matched by name;
// in other namespaces, they are also matched by label and image.
func (s *search) isService(k kind, o *unstructured.Unstructured) bool {
	what := ""
	switch {
	case (k.name == kindDeployment || k.name == "DaemonSet") && slices.Contains(serviceWorkloads, o.GetName()):
		if o.GetNamespace() != serviceNamespace &&
			(o.GetLabels()["app"] != o.GetName() || !hasImage(k, o, "fault-inject")) {
			return false
		}
		what = "the fault-injection service"
		if k.name == "DaemonSet" {
			what = "agent of the fault-injection service"
		}
	case k.name == kindJob && o.GetNamespace() == serviceNamespace && account(k, o) == valueFaultAPI:
		what = "test of the fault-injection service"
	default:
		return false
	}
	s.items = append(s.items, leftoverOf(k.resource, k.name, o, Dynamo, what))
	if !slices.Contains(s.services, o.GetNamespace()) {
		s.services = append(s.services, o.GetNamespace())
	}
	return true
}

func hasImage(k kind, o *unstructured.Unstructured, part string) bool {
	for _, p := range k.places(o) {
		for _, c := range p.containers() {
			if strings.Contains(text(c.fields, "image"), part) {
				return true
			}
		}
	}
	return false
}

func account(k kind, o *unstructured.Unstructured) string {
	for _, p := range k.places(o) {
		return text(p.spec, "serviceAccountName")
	}
	return ""
}

// serviceParts lists objects that are matched to the service only by name, in the namespaces where the service is or
// was.
func (s *search) serviceParts() []task {
	var tasks []task
	for _, part := range []struct {
		resource   schema.GroupVersionResource
		kind, what string
		names      []string
	}{
		{serviceResource, "Service", "address of the fault-injection service", serviceWorkloads},
		{accountResource, "ServiceAccount", "account of the fault-injection service", serviceWorkloads},
		{configMapResource, "ConfigMap", "settings of the fault-injection service", serviceConfigMaps},
	} {
		for _, namespace := range s.services {
			tasks = append(tasks, func(ctx context.Context) error {
				list, err := s.Metadata.Resource(part.resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
				switch {
				case mayNot(err):
					s.skip(Skipped{
						What: part.resource.GroupResource().String() + " in namespace " + namespace,
						Why:  "you are not allowed to list these objects",
					})
					return nil
				case err != nil:
					return fmt.Errorf("list %s in namespace %s: %w", part.resource.Resource, namespace, err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				for i := range list.Items {
					if o := &list.Items[i]; slices.Contains(part.names, o.Name) && o.DeletionTimestamp == nil {
						s.items = append(s.items, leftoverOf(part.resource, part.kind, o, Dynamo, part.what))
					}
				}
				return nil
			})
		}
	}
	return tasks
}

// cordonedNodes finds nodes with labels set by Dynamo's tests.
func (s *search) cordonedNodes(ctx context.Context) error {
	_, err := s.objects(ctx, nodeResource, metav1.ListOptions{LabelSelector: labelCordoned},
		func(o *unstructured.Unstructured) {
			if _, ok := o.GetLabels()[labelCordoned]; !ok {
				return
			}
			left := leftoverOf(nodeResource, "Node", o, Dynamo, "label "+labelCordoned)
			left.Since = changedAt(o, []string{labelCordoned})
			left.Remedy = Edit
			if cordoned, _, _ := unstructured.NestedBool(o.Object, "spec", "unschedulable"); cordoned {
				left.What = append(left.What, "cordoned")
				left.Remedy, left.Todo = Nobody, "if the node does not have to be cordoned: kubectl uncordon "+o.GetName()
			}
			s.items = append(s.items, left)
		})
	return err
}

// dynamoChanges adds a leftover for a user's object with Dynamo's additions.
func (s *search) dynamoChanges(m marked) {
	left := leftoverOf(m.kind.resource, m.kind.name, m.object, Dynamo, m.dynamo.gone...)
	left.Since = changedAt(m.object, m.dynamo.names)
	left.Doubts = m.dynamo.doubts
	if m.kind.name == kindGraph {
		rolling, _ := field(m.object.Object, "spec", "updateStrategy", "rollingUpdate")
		if fmt.Sprint(rolling["maxUnavailable"]) == "100%" {
			left.Doubts = append(left.Doubts, "updateStrategy maxUnavailable 100% may be from the tool: check it")
		}
	}
	left.Remedy, left.edit, left.mountsSource = Edit, withoutDynamo, slices.Contains(m.dynamo.names, dynamoSource)
	s.place(m, left)
}

func (s *search) skip(skipped Skipped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped = append(s.skipped, skipped)
}
