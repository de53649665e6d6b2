package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// checkServices returns an error if a peer is an address of a Service, because kube-proxy replaces this address with
// that of a pod before the packet reaches the rules. Networks that contain such addresses get a note. Services that the
// user cannot list are not checked.
func checkServices(ctx context.Context, cluster *kube.Cluster, peers []peer) (notes []string, _ error) {
	services, err := cluster.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil // the preflight warns about the missing permission
	}
	var problems []error
	for _, p := range peers {
		address, of := inNetwork(p.network, services.Items)
		switch {
		case of == "":
		case p.network.IsSingleIP():
			problems = append(problems, fmt.Errorf("peer %s is an address of Service %s; packets carry the address of "+
				"the pod behind the Service: specify the pods, or dns", p.text, of))
		default:
			notes = append(notes, fmt.Sprintf("%s contains addresses of Services, such as %s of %s. "+
				"Packets to Services are not affected, unless the pods behind them are also peers", p.text, address, of))
		}
	}
	return notes, errors.Join(problems...)
}

// inNetwork returns the first Service address in the network, and the name of the Service.
func inNetwork(network netip.Prefix, services []corev1.Service) (netip.Addr, string) {
	for _, s := range services {
		addresses := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.IP)
		}
		for _, text := range addresses {
			if address, err := netip.ParseAddr(text); err == nil && network.IsValid() && network.Contains(address) {
				return address, s.Namespace + "/" + s.Name
			}
		}
	}
	return netip.Addr{}, ""
}
