//go:build e2e && scenario

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have the debug pods' default image
// (which is test/cluster's busybox: it has httpd, and get in wget's place). They work in namespaces of their own.
package check_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

const image = debugpod.DefaultImage

// site is a namespace in a real cluster, which asks for Pod Security's restricted level and for requests and limits.
type site struct {
	*testing.T
	*check.Checker
	namespace string
}

func newSite(t *testing.T) *site {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cached := memory.NewMemCacheClient(client.Discovery())
	s := &site{T: t, namespace: fmt.Sprintf("team-%x", time.Now().UnixNano()), Checker: &check.Checker{
		Config: config, Client: client, Dynamic: dyn, Mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached),
		Every:  300 * time.Millisecond,
		Params: map[string]any{"replicas": 2}, Facts: scenario.Facts{GPUsPerNode: 2},
	}}
	ctx := context.Background()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: s.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	s.apply(
		"apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: compute}\nspec: {hard: {requests.cpu: '2', requests.memory: 2Gi, limits.cpu: '4', limits.memory: 2Gi, pods: '20'}}",
	)
	return s
}

// apply creates an object in the namespace.
func (s *site) apply(document string) {
	s.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(document, "NS", s.namespace)), &object.Object); err != nil {
		s.Fatal(err)
	}
	mapping, err := s.Mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
	if err != nil {
		s.Fatal(err)
	}
	// The namespace's ServiceAccount takes a moment
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		_, err = s.Dynamic.Resource(mapping.Resource).Namespace(s.namespace).Create(s.Context(), object,
			metav1.CreateOptions{})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatal(err)
		}
	}
}

// crashesOnce makes a pod whose container runs first, which ends, and then second. On a busy machine, a container may
// fail to start in between, and leave an empty log as the previous one: then the pod is made again.
func (s *site) crashesOnce(name, first, second string) {
	s.Helper()
	pods := s.Client.CoreV1().Pods(s.namespace)
	for try := 1; ; try++ {
		s.apply(pod(name, "if [ -e /tmp/again ]; then "+second+"; else touch /tmp/again; "+first+"; fi"))
		var status corev1.PodStatus
		cluster.Eventually(s.T, time.Duration(some), "pod "+name+" runs again", func() (bool, string) {
			p, err := pods.Get(s.Context(), name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			status = p.Status
			return len(status.ContainerStatuses) == 1 && status.ContainerStatuses[0].RestartCount > 0 &&
				status.ContainerStatuses[0].State.Running != nil, fmt.Sprint(status.ContainerStatuses)
		})
		if status.ContainerStatuses[0].RestartCount == 1 {
			return
		}
		if try == 3 {
			s.Fatalf("pod %s does not crash only once: %v", name, status.ContainerStatuses)
		}
		if err := pods.Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
			s.Fatal(err)
		}
		cluster.Eventually(s.T, time.Duration(some), "pod "+name+" is gone", func() (bool, string) {
			_, err := pods.Get(s.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	}
}

// pod returns one that passes the namespace's Pod Security and quota.
func pod(name, script string) string {
	return `apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, labels: {app: ` + name + `}}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: ` + image + `
    command: [sh, -c, '` + script + `']
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
    volumeMounts: [{name: tmp, mountPath: /tmp}]
  volumes: [{name: tmp, emptyDir: {}}]
`
}

// expect runs a check and holds what became of it. One that is to fail has little time; if that was not enough to see
// why, the machine is busy, and it is given more.
func (s *site) expect(ok bool, c scenario.Check, saw ...string) check.Result {
	s.Helper()
	for {
		results, err := s.Checker.Run(s.Context(), []scenario.Check{c})
		if err != nil {
			s.Fatalf("%s: %v", c.Expect, err)
		}
		r := results[0]
		s.Logf("%v %s: saw %q, message %q, %s", r.OK, c.Expect, r.Saw, r.Message, r.Took.Round(time.Millisecond))
		var wrong []string
		for _, text := range saw {
			if !strings.Contains(r.Saw+" "+r.Message, text) {
				wrong = append(wrong, fmt.Sprintf("it did not see %q", text))
			}
		}
		if !r.OK && !ok && len(wrong) > 0 && 0 < c.Within && c.Within < some {
			c.Within *= 4
			continue
		}
		if r.OK != ok {
			wrong = append(wrong, fmt.Sprint(r.OK))
		}
		for _, why := range wrong {
			s.Errorf("%s: %s", c.Expect, why)
		}
		return r
	}
}

// both runs a check with an expectation that holds and one that does not.
func (s *site) both(c scenario.Check, so, not string, saw ...string) {
	s.Helper()
	c.Expect = so
	s.expect(true, c)
	c.Expect, c.Within = not, scenario.Duration(500*time.Millisecond)
	s.expect(false, c, saw...)
}

// onlyPods holds that of all pods only these are there: what checks have made is gone.
func (s *site) onlyPods(names ...string) {
	s.Helper()
	pods, err := s.Client.CoreV1().Pods(s.namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var got []string
	for _, p := range pods.Items {
		got = append(got, p.Name)
	}
	if fmt.Sprint(got) != fmt.Sprint(names) {
		s.Errorf("pods %v, not %v", got, names)
	}
}

// some is for what the cluster does by itself on a busy machine.
const some = scenario.Duration(2 * time.Minute)
