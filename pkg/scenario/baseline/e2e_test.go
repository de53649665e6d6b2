//go:build e2e && scenario

// These tests need a real cluster, by KUBECONFIG, as its administrator, whose nodes have
// docker.io/library/busybox:1.35. They work in namespaces of their own and change, for a moment, labels, taints and the
// cordon of a node. What others do meanwhile in other namespaces does not disturb them.
package baseline_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// lab is a namespace in a real cluster.
type lab struct {
	*testing.T
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
	took      time.Duration // the last capture
}

func newLab(t *testing.T) *lab {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	l := &lab{
		T: t, client: kubernetes.NewForConfigOrDie(config), dynamic: dynamic.NewForConfigOrDie(config),
		namespace: fmt.Sprintf("bl-test-%x", time.Now().UnixNano()),
	}
	l.create("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + l.namespace + "}")
	t.Cleanup(func() {
		err := l.client.CoreV1().Namespaces().Delete(context.Background(), l.namespace, metav1.DeleteOptions{})
		if err != nil && !strings.Contains(err.Error(), "not found") {
			t.Error(err)
		}
	})
	return l
}

// resourceOf is good enough for the kinds of these tests.
func resourceOf(o *unstructured.Unstructured) schema.GroupVersionResource {
	plural := strings.ToLower(o.GetKind()) + "s"
	if strings.HasSuffix(plural, "ys") {
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	}
	return o.GroupVersionKind().GroupVersion().WithResource(plural)
}

func (l *lab) create(document string) {
	l.Helper()
	o := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte(document))
	if err == nil {
		err = o.UnmarshalJSON(raw)
	}
	if err != nil {
		l.Fatal(err)
	}
	client := dynamic.ResourceInterface(l.dynamic.Resource(resourceOf(o)))
	if o.GetKind() != "Namespace" && !strings.HasPrefix(o.GetKind(), "Cluster") {
		client = l.dynamic.Resource(resourceOf(o)).Namespace(l.namespace)
	}
	l.until("create "+o.GetKind()+" "+o.GetName(), func() (bool, string) {
		_, err := client.Create(l.Context(), o, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// until waits for a condition.
func (l *lab) until(what string, is func() (bool, string)) {
	l.Helper()
	last := ""
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var ok bool
		if ok, last = is(); ok {
			return
		}
	}
	l.Fatalf("%s: %s", what, last)
}

func (l *lab) capture() *baseline.Baseline {
	l.Helper()
	began := time.Now()
	b, err := baseline.Capture(l.Context(), l.dynamic, l.client.Discovery(),
		baseline.Options{Whole: []string{l.namespace}, Verify: []string{l.namespace}})
	if err != nil {
		l.Fatal(err)
	}
	l.took = time.Since(began)
	l.Logf("%d objects in %v, missing %q", b.Len(), l.took.Round(time.Millisecond), b.Missing)
	// It is the one that came back from the ledger that is compared.
	parts, err := b.Encode()
	if err != nil {
		l.Fatal(err)
	}
	b, err = baseline.Decode(parts)
	if err != nil {
		l.Fatal(err)
	}
	return b
}

// differences returns those that no other test makes at the same time.
func (l *lab) differences(before, after *baseline.Baseline) []string {
	var all []string
	for _, d := range baseline.Diff(before, after) {
		mine := d.Ref.Namespace == l.namespace || strings.Contains(d.Ref.Name, l.namespace)
		fields := strings.Join(d.Fields, " ")
		if d.Ref.Kind == "Node" {
			mine = strings.Contains(fields+d.After+d.Before, l.namespace) || strings.Contains(fields, "unschedulable")
		}
		if mine || d.Ref.Namespace == "kube-system" || d.Ref.Namespace == "default" {
			all = append(all, strings.TrimSpace(
				strings.ReplaceAll(fmt.Sprintf("%s %s %s %s", d.Kind, d.Ref.Kind, d.Ref.Name, fields), l.namespace,
					"NS"),
			))
		} else {
			l.Logf("somebody else's: %s %s %s/%s %s: %s -> %s", d.Kind, d.Ref.Kind, d.Ref.Namespace, d.Ref.Name, fields,
				d.Before, d.After)
		}
	}
	return all
}

const podTemplate = "{metadata: {labels: {app: NAME}}, spec: {terminationGracePeriodSeconds: 0, RESTART containers: [{name: c, image: docker.io/library/busybox:1.35, imagePullPolicy: IfNotPresent, command: [sh, -c, 'COMMAND']}]}}"

func template(name, command, restart string) string {
	return strings.NewReplacer("NAME", name, "COMMAND", command, "RESTART", restart).Replace(podTemplate)
}

// furnish makes what a namespace has.
func (l *lab) furnish() {
	l.create("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: web}}\n  template: " +
		template("web", "sleep 10000", ""))
	l.create("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {app.yaml: \"a: 1\"}")
	l.create("apiVersion: v1\nkind: Secret\nmetadata: {name: password}\nstringData: {password: hunter2}")
	l.create(
		"apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: gpus}\nspec: {hard: {requests.nvidia.com/gpu: \"2\"}}",
	)
	l.create(
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader}\nrules: [{apiGroups: [\"\"], resources: [pods], verbs: [get]}]",
	)
	l.create("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80}]}")
}

func (l *lab) patch(resource, name, patch string, subresources ...string) {
	l.Helper()
	gvr := schema.GroupVersionResource{Version: "v1", Resource: resource}
	if group, r, is := strings.Cut(resource, "/"); is {
		gvr.Group, gvr.Resource = group, r
	}
	client := dynamic.ResourceInterface(l.dynamic.Resource(gvr).Namespace(l.namespace))
	if resource == "nodes" {
		client = l.dynamic.Resource(gvr)
	}
	if _, err := client.Patch(
		l.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...,
	); err != nil {
		l.Fatal(err)
	}
}

// A busy cluster is a healthy one: what it does by itself is no damage, however long one looks.
func TestE2EQuietOnABusyCluster(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.furnish()
	// An autoscaler's Deployment, that scales; one that rolls while it is captured; a Job that runs and is then cleaned
	// away; a token.
	l.create("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: scaled}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: scaled}}\n  template: " +
		template("scaled", "sleep 10000", ""))
	l.create(
		"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: scaled}\nspec: {minReplicas: 1, maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}}",
	)
	l.create("apiVersion: batch/v1\nkind: Job\nmetadata: {name: short}\nspec: {ttlSecondsAfterFinished: 1, template: " +
		template("short", "sleep 1", "restartPolicy: Never,") + "}")
	l.create("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: often}\nspec: {schedule: \"* * * * *\", jobTemplate: {spec: {template: " +
		template("often", "true", "restartPolicy: Never,") + "}}}")
	l.create("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}")
	l.create(
		"apiVersion: v1\nkind: Secret\nmetadata: {name: token, annotations: {kubernetes.io/service-account.name: robot}}\ntype: kubernetes.io/service-account-token",
	)
	l.create(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: alone, labels: {app: alone}}\nspec: {restartPolicy: Never, containers: [{name: c, image: docker.io/library/busybox:1.35, command: [sleep, \"1\"]}]}",
	)
	l.patch("apps/deployments", "web", `{"spec":{"template":{"metadata":{"annotations":{"rolled":"now"}}}}}`)
	before := l.capture()

	l.patch("apps/deployments", "scaled", `{"spec":{"replicas":3}}`, "scale")
	job := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	l.until("the Job is cleaned away", func() (bool, string) {
		_, err := l.dynamic.Resource(job).Namespace(l.namespace).Get(l.Context(), "short", metav1.GetOptions{})
		return err != nil, "it is there"
	})
	l.until("pods", func() (bool, string) {
		pods, err := l.client.CoreV1().Pods(l.namespace).List(l.Context(),
			metav1.ListOptions{FieldSelector: "status.phase=Running", LabelSelector: "app in (web,scaled)"})
		return err == nil && len(pods.Items) >= 4, fmt.Sprintf("%d run, %v", len(pods.Items), err)
	})
	l.until("the pod that stands alone ends", func() (bool, string) {
		pod, err := l.client.CoreV1().Pods(l.namespace).Get(l.Context(), "alone", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == "Succeeded", fmt.Sprint(pod.Status.Phase, err)
	})
	// It comes again
	if err := l.client.CoreV1().ServiceAccounts(l.namespace).Delete(
		l.Context(), "default", metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	if err := l.client.CoreV1().ConfigMaps(l.namespace).Delete(
		l.Context(), "kube-root-ca.crt", metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	// Kubelets report at least every ten seconds, and all leases are renewed.
	leases := func() string {
		var all []string
		list, err := l.client.CoordinationV1().Leases("kube-node-lease").List(l.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range list.Items {
			all = append(all, lease.ResourceVersion)
		}
		return strings.Join(all, " ")
	}
	old := leases()
	l.until("leases are renewed", func() (bool, string) { return leases() != old, old })
	if got := l.differences(before, l.capture()); got != nil {
		t.Errorf("by itself: %q", got)
	}
}

// A start and a grade wait for a capture. The fastest of some counts: the machine may be busy with other tests.
func TestE2ECaptureIsFast(t *testing.T) {
	l := newLab(t)
	for range 10 {
		if l.capture(); l.took < 3*time.Second {
			return
		}
	}
	t.Errorf("no capture took less than 3 s, the last one %v", l.took)
}

// Whatever a candidate may do to a cluster is found, and its field is named.
func TestE2EEveryChangeIsFound(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.furnish()
	before := l.capture()
	nodes, err := l.client.CoreV1().Nodes().List(l.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := nodes.Items[len(nodes.Items)-1].Name
	l.patch("nodes", node, `{"metadata":{"labels":{"example.com/`+l.namespace+`":"x"}}}`)
	t.Cleanup(func() {
		_, err := l.client.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"example.com/`+l.namespace+`":null}}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	l.patch("apps/deployments", "web", `{"spec":{"replicas":0}}`)
	l.patch("configmaps", "settings", `{"data":{"app.yaml":"a: 2"}}`)
	l.patch("secrets", "password", `{"stringData":{"password":"other"}}`)
	l.patch("rbac.authorization.k8s.io/roles", "reader",
		`{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","delete"]}]}`)
	if err := l.client.CoreV1().ResourceQuotas(l.namespace).Delete(
		l.Context(), "gpus", metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	binding := "bl-" + l.namespace
	l.create("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: " + binding +
		"}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\nsubjects: [{kind: ServiceAccount, name: x, namespace: " +
		l.namespace + "}]")
	t.Cleanup(func() {
		if err := l.client.RbacV1().ClusterRoleBindings().Delete(
			context.Background(), binding, metav1.DeleteOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	l.create(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: alone}\nspec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: docker.io/library/busybox:1.35, command: [sleep, \"10000\"]}]}",
	)
	after := l.capture()
	want := []string{
		"created ClusterRoleBinding bl-NS", "changed Node " + node + " metadata.labels[\"example.com/NS\"]",
		"changed ConfigMap settings data[\"app.yaml\"]", "created Pod alone", "deleted ResourceQuota gpus",
		"changed Secret password data.password", "changed Deployment web spec.replicas",
		"changed Role reader rules[0].verbs",
	}
	compareSets(t, want, l.differences(before, after))
	for _, d := range baseline.Diff(before, after) {
		if text := d.Before + d.After; d.Ref.Kind == "Secret" && d.Ref.Namespace == l.namespace &&
			strings.Contains(text, "other") {
			t.Errorf("a Secret's value is shown: %q", text)
		}
	}
	if got := baseline.Collateral(
		baseline.Diff(before, after), []scenario.Allowed{{Created: true, Deleted: true}}, nil,
	); got != nil {
		t.Errorf("all is allowed: %v", got)
	}
}

// Pods that real controllers created are genuine, during a rollout too. One that only looks like theirs, with the UID
// of the real owner and the labels that the Service selects, is found.
func TestE2EForgedPods(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80}]}")
	before := l.capture()
	for kind, more := range map[string]string{
		"Deployment": "", "StatefulSet": "  serviceName: web\n  podManagementPolicy: Parallel\n", "DaemonSet": "",
	} {
		replicas := "  replicas: 1\n"
		if kind == "DaemonSet" {
			replicas = ""
		}
		name := strings.ToLower(kind)
		l.create("apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec:\n" + replicas + more +
			"  selector: {matchLabels: {app: " + name + "}}\n  template: " + template(name, "sleep 10000", ""))
	}
	l.create("apiVersion: batch/v1\nkind: Job\nmetadata: {name: job}\nspec:\n  template: " +
		template("job", "sleep 10000", "restartPolicy: Never,"))
	var pods *corev1.PodList
	l.until("the controllers create their pods", func() (bool, string) {
		var err error
		pods, err = l.client.CoreV1().Pods(l.namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(pods.Items) >= 4, fmt.Sprint(len(pods.Items), err)
	})
	l.patch("apps/deployments", "deployment", `{"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}`)
	notes := func(after *baseline.Baseline) []string {
		var all []string
		for _, d := range baseline.Diff(before, after) {
			if d.Note != "" {
				all = append(all, d.String())
			}
		}
		return all
	}
	if got := notes(l.capture()); len(got) > 0 {
		t.Errorf("genuine pods: %q", got)
	}
	set := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "statefulset") })
	fake := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "statefulset-1", Labels: map[string]string{"app": "web"},
			OwnerReferences: pods.Items[set].OwnerReferences},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "docker.io/library/busybox:1.35", Command: []string{"sleep", "1000"},
		}}},
	}
	if _, err := l.client.CoreV1().Pods(l.namespace).Create(t.Context(), fake, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Its owner may have released it, since it does not select it.
	if got := notes(l.capture()); len(got) != 1 || !strings.Contains(got[0], "/statefulset-1: ") {
		t.Errorf("the forged pod: %q", got)
	}
}

// Taints and cordons are found, and nothing more: the taint that follows a cordon is not another change.
func TestE2ETaintAndCordon(t *testing.T) {
	l := newLab(t)
	before := l.capture()
	nodes, err := l.client.CoreV1().Nodes().List(l.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := &nodes.Items[len(nodes.Items)-1]
	if len(node.Spec.Taints) > 0 || node.Spec.Unschedulable {
		t.Fatal(
			"the node is not as it should be: another test works on it; run the packages one after the other (-p 1)",
		)
	}
	l.patch("nodes", node.Name,
		`{"spec":{"unschedulable":true,"taints":[{"key":"example.com/`+l.namespace+`","effect":"PreferNoSchedule"}]}}`)
	t.Cleanup(func() {
		if _, err := l.client.CoreV1().Nodes().Patch(
			context.Background(), node.Name, types.MergePatchType,
			[]byte(`{"spec":{"unschedulable":null,"taints":null}}`), metav1.PatchOptions{},
		); err != nil {
			t.Error(err)
		}
	})
	compareSets(t, []string{"changed Node " + node.Name + " spec.taints spec.unschedulable"},
		l.differences(before, l.capture()))
}

// A namespace that was deleted is the first difference, also while it is still going away; made anew it is another one.
func TestE2ENamespaceDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, finalizers: [example.com/hold]}")
	before := l.capture()
	if err := l.client.CoreV1().Namespaces().Delete(l.Context(), l.namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	compareSets(t, []string{"deleted Namespace NS", "deleted ConfigMap settings"}, l.differences(before, l.capture()))
	l.patch("configmaps", "settings", `{"metadata":{"finalizers":null}}`)
	l.until("the namespace is gone", func() (bool, string) {
		_, err := l.client.CoreV1().Namespaces().Get(l.Context(), l.namespace, metav1.GetOptions{})
		return err != nil, "it is there"
	})
	l.create("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + l.namespace + "}")
	l.create("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}")
	compareSets(t, []string{"changed Namespace NS metadata.uid"}, l.differences(before, l.capture()))
}

func compareSets(t *testing.T, want, got []string) {
	t.Helper()
	left := map[string]int{}
	for _, g := range got {
		left[g]++
	}
	for _, w := range want {
		if left[w]--; left[w] < 0 {
			t.Errorf("not found: %q", w)
		}
	}
	for g, n := range left {
		if n > 0 {
			t.Errorf("too much: %q", g)
		}
	}
}
