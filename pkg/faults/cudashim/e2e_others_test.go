//go:build e2e

package cudashim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// What somebody changed meanwhile stays; only what still is ours goes.
func TestE2EUndoLeavesWhatOthersChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(documents()["deploy"])
	w := s.find("deployments.apps/web")
	in := s.injection(w)
	in.Pin = &cudashim.Pin{Nodes: nodes(s), Hard: true}
	r := s.inject(in)
	main := "/spec/template/spec/containers/0"
	s.patch(w, `[
		{"op":"test","path":"`+main+`/env/0/name","value":"LD_PRELOAD"},
		{"op":"replace","path":"`+main+`/env/0/value","value":"/gpu-fault/lib/$PLATFORM/libgpufault.so:/usr/lib/libtcmalloc.so"},
		{"op":"add","path":"`+main+`/env/-","value":{"name":"NEW","value":"theirs"}},
		{"op":"replace","path":"`+main+`/image","value":"docker.io/library/busybox:1.36"},
		{"op":"add","path":"/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/-",
		 "value":{"matchExpressions":[{"key":"theirs","operator":"Exists"}]}},
		{"op":"replace","path":"/spec/replicas","value":1}]`)
	state, said := s.undo(r)
	if state != ledger.StateSuperseded || !strings.Contains(said, "libtcmalloc") ||
		!strings.Contains(said, "nodeSelectorTerms") {
		t.Errorf("%s: %s", state, said)
	}
	after := fmt.Sprint(s.get(w).Object["spec"])
	for _, part := range []string{"libtcmalloc", "theirs", "busybox:1.36", "kubernetes.io/os", "replicas:1"} {
		if !strings.Contains(after, part) {
			t.Errorf("%s is gone: %s", part, after)
		}
	}
	for _, part := range []string{"gpu-fault-", "libgpufault", "hostname", "GPU_FAULT"} {
		if strings.Contains(after, part) {
			t.Errorf("%s is left: %s", part, after)
		}
	}
	if got := owners(s.get(w)); got[cudashim.FieldManager+" Update"] != "" {
		t.Errorf("we still own %s", got[cudashim.FieldManager+" Update"])
	}
}

// A cron job's change waits for its next job, and a pod of such a job leads up to the cron job.
func TestE2ECronJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(
		"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\nspec:\n  schedule: '0 0 1 1 *'\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: 'docker.io/library/busybox:1.35', command: ['true']}]}}}}\n",
	)
	w := s.find("cj/web")
	before := s.get(w)
	r := s.inject(s.injection(w))
	if state, said := s.undo(r); state != ledger.StateReverted || !strings.Contains(said, "running jobs") {
		t.Errorf("%s: %s", state, said)
	}
	s.same(before, s.get(w))
}

const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: web, labels: {team: a}}\nspec:\n  backoffLimit: 3\n  template: {spec: {terminationGracePeriodSeconds: 0, restartPolicy: Never, containers: [{name: main, image: 'docker.io/library/busybox:1.35', command: [sleep, '%s']}]}}\n"

// A job is deleted and created again only with consent, and its undo does the same.
func TestE2EJobIsCreatedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(fmt.Sprintf(job, "1000"))
	w := s.find("job/web")
	before := s.get(w)
	in := s.injection(w)
	if _, err := in.Preview(t.Context()); !errors.Is(err, cudashim.ErrImmutable) {
		t.Fatalf("without consent: %v", err)
	}
	in.Recreate = true
	if _, err := in.Preview(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.get(w).GetUID() != before.GetUID() {
		t.Fatal("a preview has deleted the job")
	}
	r := s.inject(in)
	if s.get(w).GetUID() == before.GetUID() {
		t.Error("it was not created again")
	}
	cm, err := s.cluster.Client.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), cudashim.Name(r.run.ID),
		metav1.GetOptions{})
	if err != nil || len(cm.OwnerReferences) != 1 || cm.OwnerReferences[0].UID != s.get(w).GetUID() {
		t.Errorf("the configmap belongs to %v, %v", cm.OwnerReferences, err)
	}
	if state, said := s.undo(r); state != ledger.StateReverted || !strings.Contains(said, "restored") {
		t.Errorf("%s: %s", state, said)
	}
	after := s.get(w)
	for _, o := range []*unstructured.Unstructured{before, after} { // what the job controller puts in by the job's UID
		unstructured.RemoveNestedField(o.Object, "spec", "selector")
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "labels")
	}
	s.same(before, after)

	s.apply(strings.NewReplacer("name: web", "name: short").Replace(fmt.Sprintf(job, "0")))
	s.until("the short job", func() (bool, string) {
		_, err := s.injection(s.find("job/short")).Preview(t.Context())
		return err != nil && strings.Contains(err.Error(), "has finished"), fmt.Sprint(err)
	})
}

var crds = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.wltest.dev"},"spec":{
"group":"wltest.dev","scope":"Namespaced","names":{"plural":"%s","singular":"%s","kind":"Train%s"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
  "replicaSpecs":{"type":"object","additionalProperties":{"type":"object","properties":{"template":{"type":"object","properties":{
    "metadata":{"type":"object"},"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}}}}}}}}]}}`

// A custom resource whose schema knows no list keys and drops labels of pods is changed and restored as well, and its
// lists belong to their owner again.
func TestE2ECustomResource(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	name := fmt.Sprintf("t%x", time.Now().UnixNano())
	definition := &unstructured.Unstructured{}
	if err := definition.UnmarshalJSON(fmt.Appendf(nil, crd, name, name, name, name)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.cluster.Dynamic.Resource(crds).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.cluster.Dynamic.Resource(crds).Delete(
			context.Background(), name+".wltest.dev", metav1.DeleteOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	cached := memory.NewMemCacheClient(s.cluster.Client.Discovery())
	s.cluster.Mapper = restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	s.until("discovery of "+name, func() (bool, string) {
		cached.Invalidate()
		_, err := s.cluster.Mapper.RESTMapping(schema.GroupKind{Group: "wltest.dev", Kind: "Train" + name})
		return err == nil, fmt.Sprint(err)
	})
	s.apply("apiVersion: wltest.dev/v1\nkind: Train" + name +
		"\nmetadata: {name: web}\nspec:\n  replicaSpecs:\n    Worker:\n      template:\n        " +
		template(8, forever) +
		"\n    Launcher:\n      template: {spec: {containers: [{name: launcher, image: x}]}}\n")
	w := s.find(name + "/web")
	before := s.get(w)
	in := s.injection(w)
	in.Selection = cudashim.Selection{Services: []string{"Worker"}}
	in.Wait = time.Second // no controller makes pods of it
	r := &record{t: t, run: ledger.Run{ID: "cuda-crd"}}
	change := in.Change("inject")
	r.step = ledger.Step{Target: change.Target, Undo: change.Undo}
	if _, err := change.Apply(t.Context(), r); err == nil || !strings.Contains(err.Error(), "0 pods with the shim") {
		t.Errorf("without pods: %v", err)
	}
	spec := fmt.Sprint(s.get(w).Object["spec"])
	if strings.Count(spec, "LD_PRELOAD") != 2 || strings.Contains(spec, "gpufault.dev/run") {
		t.Errorf("injected: %s", spec)
	}
	if state, said := s.undo(r); state != ledger.StateReverted || !strings.Contains(said, "restored") {
		t.Errorf("%s: %s", state, said)
	}
	s.same(before, s.get(w))
}

// Somebody who changes the workload all the time does not keep the change, or its undo, from coming through. The storm
// is as fast as a controller gone mad: were it faster than a read and a write of a busy API server, nobody could win
// against it.
func TestE2EAgainstAStormOfChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(documents()["deploy"])
	w := s.find("deploy/web")
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				stopped <- n
				return
			case <-time.After(150 * time.Millisecond): // also its spec, so that its generation counts
				body := fmt.Appendf(nil,
					`{"metadata":{"annotations":{"n":"%d"}},"spec":{"progressDeadlineSeconds":%d}}`, n, 600+n)
				_, _ = s.cluster.Dynamic.Resource(w.Resource).Namespace(s.namespace).Patch(t.Context(), "web",
					"application/merge-patch+json", body, metav1.PatchOptions{FieldManager: "storm"})
			}
		}
	}()
	r := s.inject(s.injection(w))
	state, said := s.undo(r)
	close(stop)
	t.Logf("%d changes meanwhile", <-stopped)
	if state != ledger.StateReverted || !strings.Contains(said, "restored") {
		t.Errorf("%s: %s", state, said)
	}
}

// Whoever mistypes hears what there is.
func TestE2ESuggestions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.apply(documents()["deploy"])
	for name, want := range map[string]string{
		"deploy/wb":        "did you mean web?",
		"deplyment/web":    "did you mean deployment",
		"deploy/coredns":   `in namespace "kube-system"`,
		"service/web":      "not found in namespace",
		"node/node-a":      "is not a workload",
		"deploy":           "must be TYPE/NAME",
		"pytorchjob/train": `type "pytorchjob" not found`,
	} {
		if _, err := s.cluster.Find(t.Context(), s.namespace, name); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, lacks %q", name, err, want)
		}
	}
	if w, err := s.cluster.Find(t.Context(), "kube-system", "configmap/kube-root-ca.crt"); err == nil ||
		!strings.Contains(err.Error(), "no pod template") {
		t.Errorf("a configmap: %v, %v", w, err)
	}
}
