// Command network-policy enforces the cluster's NetworkPolicies on one node: it watches pods, namespaces and policies,
// and writes what follows from them as iptables rules that new connections of the node's pods pass, whole and at once
// (iptables-restore). The test cluster's network plugin, a bridge, knows no policies. sigs.k8s.io/kube-network-policies
// and kube-router do the same for clusters that people use.
//
// Denied packets are dropped, as by most plugins: connections time out. The node itself always reaches its pods
// (probes), and pods of the host's network are left alone.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	node := flag.String("node", "", "name of this node")
	cidr := flag.String("pods", "", "addresses of this node's pods: 10.244.0.0/24")
	ready := flag.String("ready", "", "file that exists as long as policies are enforced")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *kubeconfig, *node, *cidr, *ready); err != nil {
		log.Fatal("network-policy: ", err)
	}
}

func run(ctx context.Context, kubeconfig, node, cidr, ready string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	note := func() {
		select {
		case changed <- struct{}{}:
		default: // the one that waits stands for this one too
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, policies, namespaces := factory.Core().V1().Pods(), factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces()
	for _, i := range []cache.SharedIndexInformer{pods.Informer(), policies.Informer(), namespaces.Informer()} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
		}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	last, announced := "", false
	for {
		s := state{node: node, cidr: cidr, namespaces: map[string]*corev1.Namespace{}}
		var all []*corev1.Namespace
		var lists [3]error
		s.pods, lists[0] = pods.Lister().List(labels.Everything())
		s.policies, lists[1] = policies.Lister().List(labels.Everything())
		all, lists[2] = namespaces.Lister().List(labels.Everything())
		for _, err := range lists {
			if err != nil {
				return err
			}
		}
		for _, n := range all {
			s.namespaces[n.Name] = n
		}
		if rules := s.rules(); rules != last {
			if err := restore(ctx, rules); err != nil {
				log.Print(err)
				time.AfterFunc(time.Second, note)
			} else {
				last = rules
			}
		}
		if !announced && last != "" {
			if err := os.WriteFile(ready, nil, 0o644); err != nil {
				return err
			}
			announced = true
		}
		select {
		case <-ctx.Done():
			unhook()
			return os.RemoveAll(ready)
		case <-changed:
		}
	}
}

// restore puts the rules in, all at once.
func restore(ctx context.Context, rules string) error {
	// kube-proxy writes to the same table: -w waits for its lock.
	cmd := exec.CommandContext(ctx, "iptables-restore", "-w", "--noflush")
	cmd.Stdin = bytes.NewBufferString(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, rules)
	}
	return hook(ctx)
}

// hooks returns the rules by which packets come to our chain.
func hooks() [][]string {
	return [][]string{{"FORWARD", "-j", chain}, {"INPUT", "-i", "cni0", "-j", chain}}
}

// hook makes packets pass our chain before all others, once.
func hook(ctx context.Context) error {
	for _, rule := range hooks() {
		if exec.CommandContext(ctx, "iptables", append([]string{"-w", "-C"}, rule...)...).Run() == nil {
			continue
		}
		if out, err := exec.CommandContext(
			ctx, "iptables", append([]string{"-w", "-I"}, rule...)...,
		).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables -I: %w: %s", err, out)
		}
	}
	return nil
}

// unhook lets all packets through again. The chain stays, and nothing leads to it.
func unhook() {
	for _, rule := range hooks() {
		if out, err := exec.Command("iptables", append([]string{"-w", "-D"}, rule...)...).CombinedOutput(); err != nil {
			log.Printf("iptables -D: %v: %s", err, out)
		}
	}
}

// state is what the rules follow from.
type state struct {
	node, cidr string
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
	namespaces map[string]*corev1.Namespace
}
