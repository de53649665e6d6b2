//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
)

// victims are objects that the attacker may not write.
type victims struct {
	*writer
	namespace string
	dynamic   dynamic.Interface
	objects   map[string]victim
}

type victim struct {
	resource  schema.GroupVersionResource
	kind      string
	namespace string
	name      string
	uid       string
}

func newVictims(w *writer) *victims {
	w.t.Helper()
	v := &victims{writer: w, namespace: w.cluster.Namespace(w.t), objects: map[string]victim{}}
	var err error
	if v.dynamic, err = dynamic.NewForConfig(w.cluster.RESTConfig); err != nil {
		w.t.Fatal(err)
	}
	name := "victim-" + v.namespace
	meta := metav1.ObjectMeta{Name: name, Namespace: v.namespace}
	wide := metav1.ObjectMeta{Name: name}
	labels := map[string]string{"app": "victim"}
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "busybox:1.35",
			Env: []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/opt/mine.so"}, {Name: "MODE", Value: "safe"}},
		}}},
	}
	client, ctx, options := w.cluster.Client, w.t.Context(), metav1.CreateOptions{}
	add := func(group, version, resource, kind string, object metav1.Object, err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
		v.objects[kind] = victim{
			resource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, kind: kind,
			namespace: object.GetNamespace(), name: object.GetName(), uid: string(object.GetUID()),
		}
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	deployment, err := client.AppsV1().Deployments(v.namespace).Create(ctx,
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pods,
		}}, options)
	add("apps", "v1", "deployments", "Deployment", deployment, err)
	secret, err := client.CoreV1().Secrets(v.namespace).Create(ctx,
		&corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"key": "value"}}, options)
	add("", "v1", "secrets", "Secret", secret, err)
	configMap, err := client.CoreV1().ConfigMaps(v.namespace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "value"}}, options)
	add("", "v1", "configmaps", "ConfigMap", configMap, err)
	service, err := client.CoreV1().Services(v.namespace).Create(ctx,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "victim", Namespace: v.namespace}, Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Port: 80}},
		}}, options)
	add("", "v1", "services", "Service", service, err)
	role, err := client.RbacV1().Roles(v.namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta}, options)
	add(rbacv1.GroupName, "v1", "roles", "Role", role, err)
	binding, err := client.RbacV1().RoleBindings(v.namespace).Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref}, options)
	add(rbacv1.GroupName, "v1", "rolebindings", "RoleBinding", binding, err)
	clusterRole, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: wide}, options)
	add(rbacv1.GroupName, "v1", "clusterroles", "ClusterRole", clusterRole, err)
	w.t.Cleanup(func() { w.drop(client.RbacV1().ClusterRoles(), name) })
	clusterBinding, err := client.RbacV1().ClusterRoleBindings().Create(ctx,
		&rbacv1.ClusterRoleBinding{ObjectMeta: wide, RoleRef: ref}, options)
	add(rbacv1.GroupName, "v1", "clusterrolebindings", "ClusterRoleBinding", clusterBinding, err)
	w.t.Cleanup(func() { w.drop(client.RbacV1().ClusterRoleBindings(), name) })
	class, err := client.NodeV1().RuntimeClasses().Create(ctx,
		&nodev1.RuntimeClass{ObjectMeta: wide, Handler: "victim"}, options)
	add("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", class, err)
	w.t.Cleanup(func() { w.drop(client.NodeV1().RuntimeClasses(), name) })
	namespace, err := client.CoreV1().Namespaces().Get(ctx, v.namespace, metav1.GetOptions{})
	add("", "v1", "namespaces", "Namespace", namespace, err)
	node, err := client.CoreV1().Nodes().Get(ctx, w.worker.Name, metav1.GetOptions{})
	add("", "v1", "nodes", "Node", node, err)
	return v
}

// see returns everything of the victims that an attacker could want to change, and what else came into their namespace.
func (v *victims) see() string {
	v.t.Helper()
	var all []string
	for kind, o := range v.objects {
		var text string
		live, err := v.resource(o).Get(v.t.Context(), o.name, metav1.GetOptions{})
		switch {
		case err != nil:
			text = err.Error()
		case kind == "Node": // its kubelet writes all the time
			encoded, _ := json.Marshal(map[string]any{"labels": live.GetLabels(), "spec": live.Object["spec"]})
			text = string(encoded)
		default:
			// The Deployment's controller may still be at work on a new one
			delete(live.Object, "status")
			live.SetResourceVersion("")
			live.SetManagedFields(nil)
			unstructured.RemoveNestedField(live.Object, "metadata", "annotations", "deployment.kubernetes.io/revision")
			if len(live.GetAnnotations()) == 0 {
				live.SetAnnotations(nil)
			}
			encoded, _ := json.Marshal(live.Object)
			text = string(encoded)
		}
		all = append(all, kind+" "+text)
	}
	for _, resource := range []string{"jobs", "pods"} {
		group := map[string]string{"jobs": "batch"}[resource]
		list, err := v.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}).
			Namespace(v.namespace).List(v.t.Context(), metav1.ListOptions{})
		if err != nil {
			v.t.Fatal(err)
		}
		for _, o := range list.Items {
			all = append(all, resource+" "+o.GetName())
		}
	}
	return sorted(all)
}

func (v *victims) resource(o victim) dynamic.ResourceInterface {
	if o.namespace == "" {
		return v.dynamic.Resource(o.resource)
	}
	return v.dynamic.Resource(o.resource).Namespace(o.namespace)
}

// object names a victim as the records of objects do.
func (o victim) object() string {
	return fmt.Sprintf(`{"group":%q,"version":%q,"resource":%q,"kind":%q,"namespace":%q,"name":%q,"uid":%q}`,
		o.resource.Group, o.resource.Version, o.resource.Resource, o.kind, o.namespace, o.name, o.uid)
}

func (o victim) target() ledger.Target {
	return ledger.Target{Kind: o.kind, Namespace: o.namespace, Name: o.name, UID: o.uid}
}

// TestAttackRecordsOfObjects: a record of what was patched or created writes and deletes nothing that no run has
// patched or created.
func TestAttackRecordsOfObjects(t *testing.T) {
	t.Parallel()
	v := newVictims(newWriter(setup(t)))
	patched := func(kind, path, was, ours string) string {
		return fmt.Sprintf(`{"patched":%s,"edits":[{"path":%s,"was":%s,"ours":%s}],"sealed":true}`,
			v.objects[kind].object(), path, was, ours)
	}
	created := func(kinds ...string) string {
		var all []string
		for _, kind := range kinds {
			all = append(all, v.objects[kind].object())
		}
		return fmt.Sprintf(`{"created":[%s],"sealed":true}`, strings.Join(all, ","))
	}
	kubeSystem := victim{
		resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		kind:     "Deployment", namespace: "kube-system", name: "coredns",
	}
	mallory := fmt.Sprintf(`[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]`, v.user)
	for name, forged := range map[string]struct {
		kind string // of the victim
		data string
	}{
		"an image": {"Deployment", patched("Deployment",
			`["spec","template","spec","containers",{"name":"main"},"image"]`, `"evil:1"`, `"busybox:1.35"`)},
		"a privileged container": {
			"Deployment", patched("Deployment", `["spec","template","spec","hostPID"]`, `true`, `false`),
		},
		"a command": {"Deployment", patched("Deployment",
			`["spec","template","spec","containers",{"name":"main"},"command"]`, `["sh","-c","id"]`, `[]`)},
		"the subjects of a binding": {"RoleBinding", patched("RoleBinding", `["subjects"]`, mallory, `[]`)},
		"an administrator": {
			"ClusterRoleBinding", patched("ClusterRoleBinding", `["subjects"]`, mallory, `[]`),
		},
		"a subject as an element": {"ClusterRoleBinding", fmt.Sprintf(
			`{"patched":%s,"edits":[{"path":["subjects"],"element":true,"was":%s}],"sealed":true}`,
			v.objects["ClusterRoleBinding"].object(), mallory[1:len(mallory)-1],
		)},
		"the rules of a role": {
			"ClusterRole",
			patched("ClusterRole", `["rules"]`, `[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]`, `[]`),
		},
		"where a service leads": {
			"Service", patched("Service", `["spec","selector","app"]`, `"evil"`, `"victim"`),
		},
		"the data of a ConfigMap": {"ConfigMap", patched("ConfigMap", `["data","key"]`, `"evil"`, `"value"`)},
		"the data of a Secret":    {"Secret", patched("Secret", `["data","key"]`, `"ZXZpbA=="`, `"dmFsdWU="`)},
		"the taint of a node": {"Node", fmt.Sprintf(
			`{"patched":%s,"edits":[{"path":["spec","taints"],"element":true,"was":{"key":"evil","effect":"NoExecute"}}],"sealed":true}`,
			v.objects["Node"].object(),
		)},
		"the label of a node": {"Node", fmt.Sprintf(
			`{"patched":%s,"edits":[{"path":["metadata","labels","node-role.kubernetes.io/control-plane"],"was":""}],"sealed":true}`,
			v.objects["Node"].object(),
		)},
		"the labels of a namespace": {"Namespace", fmt.Sprintf(
			`{"patched":%s,"edits":[{"path":["metadata","labels","gpufault.dev/ledger"],"was":"true"}],"sealed":true}`,
			v.objects["Namespace"].object(),
		)},
		"the handler of a RuntimeClass": {"RuntimeClass", patched("RuntimeClass", `["handler"]`, `"evil"`, `"victim"`)},
		"without a seal": {
			"ConfigMap",
			strings.Replace(patched("ConfigMap", `["data","key"]`, `"evil"`, `"value"`), `,"sealed":true`, ``, 1),
		},
		"owners of fields": {"ConfigMap", strings.Replace(
			patched("ConfigMap", `["data","key"]`, `"value"`, `"value"`), `"sealed"`,
			`"ownership":{"gained":{"f:data":{"f:key":{}}}},"sealed"`, 1,
		)},
		"a namespace":                 {"Namespace", created("Namespace")},
		"a namespace and all in it":   {"Namespace", created("Namespace", "Deployment", "Secret")},
		"a Deployment":                {"Deployment", created("Deployment")},
		"a Secret":                    {"Secret", created("Secret")},
		"a binding of the cluster":    {"ClusterRoleBinding", created("ClusterRoleBinding", "ClusterRole")},
		"a node":                      {"Node", created("Node")},
		"a Deployment of kube-system": {"Deployment", fmt.Sprintf(`{"created":[%s]}`, kubeSystem.object())},
		"a Secret, taken for another": {
			"Secret", strings.ReplaceAll(created("Secret"), `"kind":"Secret"`, `"kind":"ConfigMap"`),
		},
		"a name with a subresource": {
			"Deployment",
			strings.ReplaceAll(created("Deployment"), `"resource":"deployments"`, `"resource":"deployments/scale"`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := v.forge(ledger.Run{
				Fault: "scenario", Steps: []ledger.Step{step(v.objects[forged.kind].target(), "objects", forged.data)},
			})
			defer v.forget(id)
			see := func() string {
				_, err := v.resource(kubeSystem).Get(t.Context(), kubeSystem.name, metav1.GetOptions{})
				return v.see() + fmt.Sprint(err)
			}
			if r := v.holds(t, see, "revert", id, "--yes"); r.code == 0 && strings.Contains(r.stdout, "deleted") {
				t.Errorf("it says that it deleted something:\n%s", r.stdout)
			}
		})
	}
	// The namespace as one of the run, so that what is in it were the run's own.
	t.Run("a namespace of the run, by its own word", func(t *testing.T) {
		second := step(v.objects["Deployment"].target(), "objects", strings.Replace(
			patched("Deployment", `["spec","template","spec","hostPID"]`, `true`, `false`), `,"sealed":true`, ``, 1,
		))
		second.ID = "2"
		id := v.forge(ledger.Run{
			Fault: "scenario", InOrder: true,
			Steps: []ledger.Step{step(v.objects["Namespace"].target(), "objects", created("Namespace")), second},
		})
		defer v.forget(id)
		v.holds(t, v.see, "revert", id, "--yes")
	})
	t.Run("an exercise that nobody started", func(t *testing.T) {
		id := v.forge(ledger.Run{
			Fault: "scenario",
			Steps: []ledger.Step{step(v.objects["Namespace"].target(), "exercise", `{"exercise":"0","scenario":"0"}`)},
		})
		defer v.forget(id)
		v.holds(t, v.see, "scenario", "end", id, "--yes")
		v.holds(t, v.see, "scenario", "end", id, "--yes", "--restore")
		v.holds(t, v.see, "revert", id, "--yes")
	})
	t.Run("a RuntimeClass that no repair made", func(t *testing.T) {
		o := v.objects["RuntimeClass"]
		id := v.forge(ledger.Run{
			Fault: fixes.Fault,
			Steps: []ledger.Step{
				step(o.target(), fixes.UndoKind, fmt.Sprintf(`{"name":%q,"handler":"victim"}`, o.name)),
			},
		})
		defer v.forget(id)
		v.holds(t, v.see, "revert", id, "--yes")
	})
	t.Run("a repair of another kind", func(t *testing.T) {
		o := v.objects["ClusterRole"]
		id := v.forge(ledger.Run{
			Fault: fixes.Fault,
			Steps: []ledger.Step{
				step(o.target(), fixes.UndoKind, fmt.Sprintf(`{"name":%q,"handler":"victim"}`, o.name)),
			},
		})
		defer v.forget(id)
		v.holds(t, v.see, "revert", id, "--yes")
	})
}
