//go:build e2e && scenario

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have
// docker.io/library/busybox:1.35. They work in namespaces of their own, and each has a ledger of its own.
package exercise

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// site is a ledger of its own in a real cluster.
type site struct {
	*testing.T
	namespace string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t, fmt.Sprintf("ex-ledger-%x", time.Now().UnixNano()%(1<<32))}
	client := s.lab("cleaner").Client
	t.Cleanup(func() {
		lab := s.lab("cleaner")
		all, err := lab.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, e := range all {
			if e.Running() {
				if _, err := lab.End(context.Background(), e.ID, EndOptions{Force: true, Restore: true}); err != nil {
					t.Errorf("end %s: %v", e.ID, err)
				}
			}
		}
		err = client.CoreV1().Namespaces().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return s
}

// lab returns a trainer's, on a machine of their own.
func (s *site) lab(host string) *Lab {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		s.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return &Lab{
		Session: &fault.Session{
			Client: client, Ledger: ledger.New(client, s.namespace), From: host, Version: "test",
			Undoers: map[string]fault.Undoer{
				UndoKind: Undoer{}, objects.UndoKind: objects.Undoer{Dynamic: dyn, LedgerNamespace: s.namespace},
			},
			Observer: fault.Observer{Warning: func(text string) { s.Logf("%s: warning: %s", host, text) }},
		},
		Client: client, Dynamic: dyn,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		Config: config, LedgerNamespace: s.namespace,
		Progress:   func(text string) { s.Logf("%s: %s", host, text) },
		ProbeImage: "docker.io/library/busybox:1.35",
	}
}

// parsed returns the scenario of testdata, with what it says changed.
func (s *site) parsed(replacements ...string) *scenario.Scenario {
	s.Helper()
	text, err := os.ReadFile("testdata/settings.yaml")
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(string(text), replacements[i]) {
			s.Fatalf("the scenario has no %q", replacements[i])
		}
	}
	parsed, err := scenario.Parse("settings.yaml", []byte(strings.NewReplacer(replacements...).Replace(string(text))))
	if err != nil {
		s.Fatal(err)
	}
	return parsed
}

// namespaces makes the names of namespaces the test's own, as tests run at the same time.
func own(t *testing.T) []string {
	prefix := fmt.Sprintf("ex%x", time.Now().UnixNano()%(1<<24))
	_ = t
	return []string{
		"[harbour, meadow, orchard, quarry, lagoon, thicket]",
		fmt.Sprintf("[%s-harbour, %s-meadow, %s-orchard]", prefix, prefix, prefix),
	}
}

func (s *site) resolved(lab *Lab, parsed *scenario.Scenario, seed int64) *scenario.Resolved {
	s.Helper()
	r, err := lab.Resolve(s.Context(), parsed, seed, nil)
	if err != nil {
		s.Fatal(err)
	}
	return r
}
