package collect

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/network"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// backends is the maximum number of pods behind a Service whose labels and ports are collected; the others are assumed
// to be similar.
const backends = 3

// network collects the objects that determine whether GPU pods can reach the Services that they are waiting for: the
// Services, the cluster's DNS, some of the pods behind these Services, and the NetworkPolicies at both ends. It
// collects nothing if no pod is waiting for a connection.
func (c *collector) network(ctx context.Context) error {
	if !c.ofFailing {
		return nil // no pod is waiting for a connection
	}
	namespaces, services := facts.New(c.s).Unreached()
	if len(namespaces) == 0 {
		return nil
	}
	c.progress("listing NetworkPolicies")
	concerned := map[string]bool{}
	for _, namespace := range namespaces {
		concerned[namespace] = true
	}
	for _, ref := range slices.Concat(services, network.DNSServices()) {
		service, err := c.service(ctx, ref)
		switch {
		case err == nil:
			concerned[ref.Namespace] = true
			c.s.Services = append(c.s.Services, *service)
			c.backends(ctx, service)
		case ctx.Err() != nil:
			return nil // Collect reports the error
		case !apierrors.IsNotFound(err):
			c.missing("api/services/"+ref.Namespace+"/"+ref.Name, reason(err))
		}
	}
	c.s.NetworkPolicies = listed(ctx, c, "api/networkpolicies",
		paged(c.Client.NetworkingV1().NetworkPolicies("").List,
			func(l *networkingv1.NetworkPolicyList) []networkingv1.NetworkPolicy { return l.Items }),
		func(p *networkingv1.NetworkPolicy) bool {
			p.ManagedFields = nil
			shortAnnotations(&p.ObjectMeta, longAnnotation)
			return concerned[p.Namespace]
		})
	return nil
}

func (c *collector) service(ctx context.Context, ref facts.ServiceRef) (*corev1.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	service, err := c.Client.CoreV1().Services(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name, UID: service.UID,
			CreationTimestamp: service.CreationTimestamp,
		},
		Spec: corev1.ServiceSpec{
			Type: service.Spec.Type, Selector: service.Spec.Selector, Ports: service.Spec.Ports,
			ClusterIP: service.Spec.ClusterIP, ClusterIPs: service.Spec.ClusterIPs,
		},
	}, nil
}

// backends keeps the labels, ports and addresses of some pods behind a Service. Pods that are already kept for another
// reason are not changed.
func (c *collector) backends(ctx context.Context, service *corev1.Service) {
	if len(service.Spec.Selector) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	found, err := c.Client.CoreV1().Pods(service.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.Set(service.Spec.Selector).String(), Limit: backends})
	if err != nil {
		return // checks then use the labels in the selector
	}
	known := map[string]int{}
	for i := range c.s.Pods {
		if pod := &c.s.Pods[i]; pod.Namespace == service.Namespace {
			known[pod.Name] = i
		}
	}
	for i := range found.Items {
		pod := &found.Items[i]
		ports, address := portsOf(pod.Spec.Containers), pod.Status.PodIP
		at, there := known[pod.Name]
		if !there {
			skeleton(pod)
			at, c.s.Pods = len(c.s.Pods), append(c.s.Pods, *pod)
		}
		pod = &c.s.Pods[at]
		pod.Status.PodIP = address
		pod.Spec.Containers = clip(pod.Spec.Containers) // pods from one template share their containers
		for j := range pod.Spec.Containers {
			pod.Spec.Containers[j].Ports = ports[pod.Spec.Containers[j].Name]
		}
	}
}

func portsOf(containers []corev1.Container) map[string][]corev1.ContainerPort {
	all := map[string][]corev1.ContainerPort{}
	for _, c := range containers {
		all[c.Name] = c.Ports
	}
	return all
}
