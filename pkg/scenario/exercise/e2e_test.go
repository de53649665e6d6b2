//go:build e2e && scenario

package exercise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// The whole life of an exercise on a real API server: it becomes broken, each solution passes, each wrong fix fails,
// the candidate can read no answer, and nothing is left; and so for two seeds at the same time, whose changes are not
// each other's damage.
func TestE2ESelftest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parsed := s.parsed(own(t)...)
	seeds := distinct(s, parsed, 2)
	rows := 0
	err := s.lab("laptop").SelftestAll(t.Context(), []*scenario.Scenario{parsed}, seeds, 3, func(row Row) {
		rows++
		t.Logf("seed %d: %s", row.Seed, fmt.Sprintf("%-28s wanted %s got %s score %3d broken %5s grade %5s took %5s %s",
			row.Attempt, row.Wanted, row.Got, row.Score,
			row.Broken.Round(100*time.Millisecond), row.Grade.Round(100*time.Millisecond),
			row.Took.Round(100*time.Millisecond), row.Why))
		if row.Broken > time.Minute {
			t.Errorf("%s to confirmed broken", row.Broken)
		}
	})
	if err != nil || rows != 12 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// distinct are seeds that draw different namespaces.
func distinct(s *site, parsed *scenario.Scenario, n int) (seeds []int64) {
	drawn := map[any]bool{}
	for seed := int64(1); len(seeds) < n; seed++ {
		if ns := s.resolved(s.lab("x"), parsed, seed).Drawn["ns"]; !drawn[ns] {
			drawn[ns] = true
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

// A solution that does not work and a wrong fix that does are found.
func TestE2ESelftestFindsMistakes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parsed := s.parsed(append(own(t),
		"value: \"${p.key}\"}]\n    - name: make", "value: nothing}]\n    - name: make",
		"merge: {spec: {replicas: 0}}", `json: [{op: remove, path: /spec/template/spec/containers/0/envFrom}]`,
	)...)
	var got []string
	err := s.lab("laptop").Selftest(t.Context(), parsed, []int64{1}, func(row Row) {
		if !row.OK {
			got = append(got, row.Attempt+": "+row.Got)
		}
	})
	wants(t, err, "2 of 6 attempts not graded as expected")
	if strings.Join(got, ", ") != "refer to the one there is: failed, scale to nothing: passed" {
		t.Errorf("%q", got)
	}
}

// Two trainers want the same namespace at the same moment: one gets it. A third machine gives hints and grades, a
// fourth ends.
func TestE2ETrainersOnSeveralMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parsed := s.parsed(own(t)...)
	labs := []*Lab{s.lab("laptop"), s.lab("desktop")}
	errs := make([]error, 2)
	started := make([]*Exercise, 2)
	var group sync.WaitGroup
	for i, lab := range labs {
		r := s.resolved(lab, parsed, 1)
		group.Go(func() { started[i], errs[i] = lab.Start(t.Context(), r, StartOptions{For: 20 * time.Minute}) })
	}
	group.Wait()
	e, loser := started[0], errs[1]
	if e == nil {
		e, loser = started[1], errs[0]
	}
	if e == nil {
		t.Fatal(errors.Join(errs...))
	}
	wants(t, loser, "missing-settings", e.Namespaces[0], e.ID)

	third := s.lab("third")
	if _, _, err := third.Hint(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := third.Submit(
		t.Context(), "", scenario.Diagnosis{Component: "workload", Object: "deploy/page"},
	); err != nil {
		t.Fatal(err)
	}
	report, err := third.Grade(t.Context(), "")
	if err != nil || report.Passed || len(report.Hints) != 1 || len(report.Diagnosed) != 4 ||
		len(report.Collateral) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	again, err := third.Kubeconfig(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if config, err := clientcmd.RESTConfigFromKubeConfig(again); err != nil {
		t.Error(err)
	} else if client, err := kubernetes.NewForConfig(config); err != nil {
		t.Error(err)
	} else if pods, err := client.CoreV1().Pods(e.Namespaces[0]).List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(pods.Items) != 3 {
		t.Errorf("%v, %v", pods, err)
	}
	ending, err := s.lab("fourth").End(t.Context(), "", EndOptions{Restore: true})
	if err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
	if now, err := third.Get(t.Context(), e.ID); err != nil || now.Phase != Ended || now.Last() == nil {
		t.Errorf("%+v, %v", now, err)
	}
	wants(t, use(t, e.Kubeconfig, e.Namespaces[0]), "Unauthorized") // the account is gone
}

// use asks for the pods with a kubeconfig.
func use(t *testing.T, kubeconfig []byte, namespace string) error {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The API server remembers for some seconds that a token was good.
	last := error(nil)
	_ = wait.PollUntilContextTimeout(t.Context(), 500*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			_, last = client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			return apierrors.IsUnauthorized(last), nil
		})
	return last
}

// Ctrl-C in the middle of a start on a real cluster leaves nothing.
func TestE2ECtrlC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	r := s.resolved(lab, s.parsed(own(t)...), 1)
	ctx, cancel := context.WithCancel(t.Context())
	lab.Session.Observer.StepChanged = func(_ ledger.Run, step ledger.Step) {
		if step.Action == "the page" && step.State == ledger.StateProven {
			cancel()
		}
	}
	_, err := lab.Start(ctx, r, StartOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	all, err := lab.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Phase != Failed {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := lab.Client.CoreV1().Namespaces().Get(
		t.Context(), r.Drawn["ns"].(string), metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	secrets, err := lab.secrets().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 1 {
		t.Errorf("%d secrets, %v", len(secrets.Items), err)
	}
}

// What the cluster lacks is told with the words of those who know: the kubelet about an image, the network about
// policies.
func TestE2ERequirements(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	change := func(requires string) *scenario.Resolved {
		return s.resolved(lab, s.parsed(append(own(t), "requires: {nodes: 1}", "requires: "+requires)...), 1)
	}
	err := lab.Preflight(t.Context(),
		change(`{images: ["docker.io/library/busybox:1.35", "registry.invalid/nothing/here:1"], nodeAccess: true}`))
	wants(t, err, "requires image registry.invalid/nothing/here:1", "Image", "load the image on the nodes")
	if strings.Contains(err.Error(), "busybox:1.35") || strings.Contains(err.Error(), "privileged pods") {
		t.Error(err)
	}
	began := time.Now()
	err = lab.Preflight(t.Context(), change(`{networkPolicy: true}`))
	t.Logf("network policies: %v, after %s", err, time.Since(began).Round(time.Second))
	// whether they are depends on the cluster
	if err != nil && !strings.Contains(err.Error(), "install a CNI plugin that enforces them") {
		t.Error(err)
	}
	pods, err := lab.Client.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			t.Errorf("pod %s is left", pod.Name)
		}
	}
}
