package baseline

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	podSpec = `{serviceAccountName: default, containers: [{name: main, image: "trainer:1", env: [{name: BATCH, value: "8"}],
  volumeMounts: [{name: config, mountPath: /etc/c}]}], volumes: [{name: config, configMap: {name: c}}]}`
	trainDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: train, namespace: a, uid: d1}
spec: {replicas: 1, selector: {matchLabels: {app: train}}, template: {metadata: {labels: {app: train}}, spec: ` + podSpec + `}}
`
	trainSet = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: train-1, namespace: a, uid: r1, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: train, uid: d1, controller: true}]}
spec: {template: {metadata: {labels: {app: train, pod-template-hash: h}}, spec: ` + podSpec + `}}
`
	trainPod = `
apiVersion: v1
kind: Pod
metadata: {name: train-1-x, namespace: a, uid: p1, labels: {app: train, pod-template-hash: h},
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: train-1, uid: r1, controller: true}]}
spec: {serviceAccountName: default, nodeName: n, containers: [{name: main, image: "trainer:1", env: [{name: BATCH, value: "8"}],
  volumeMounts: [{name: config, mountPath: /etc/c}, {name: kube-api-access-abcde, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}],
  volumes: [{name: config, configMap: {name: c}}, {name: kube-api-access-abcde}]}
`
	trainService = "apiVersion: v1\nkind: Service\nmetadata: {name: train, namespace: a, uid: s1}\nspec: {selector: {app: train}}\n"
	bare         = "apiVersion: v1\nkind: Pod\nmetadata: {name: bare, namespace: a, uid: b1, labels: {app: train}}\nspec: {containers: [{name: c, image: busybox}]}\n"
)

// An object counts as the work of a controller only if that controller exists, creates such objects, and would have
// created it like this: whoever may create pods can write any owner and any label into them.
func TestForgedObjectsAreFound(t *testing.T) {
	t.Parallel()
	replace := func(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }
	all := []string{trainDeployment, trainSet, trainPod, trainService}
	with := func(i int, text string) []string {
		changed := append([]string{}, all...)
		changed[i] = text
		return changed
	}
	limited := func(template, pod string) []string {
		limit := func(text, cpu string) string {
			return replace(text, "name: main,", `name: main, resources: {limits: {cpu: "`+cpu+`"}},`)
		}
		return []string{limit(trainDeployment, template), limit(trainSet, template), limit(trainPod, pod), trainService}
	}
	apart := func(template, pod string) []string {
		affinity := func(text, more string) string {
			return replace(text, "serviceAccountName: default,", "serviceAccountName: default, affinity: {podAntiAffinity: "+
				"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: h, matchLabelKeys: [pod-template-hash], "+
				"labelSelector: {matchExpressions: [{key: app, operator: In, values: [train]}"+more+"]}}]}},")
		}
		return []string{
			affinity(trainDeployment, template), affinity(trainSet, template), affinity(trainPod, pod), trainService,
		}
	}
	classed := func(class, pod string) []string {
		of := func(text string) string {
			return replace(text, "serviceAccountName: default,", "serviceAccountName: default, runtimeClassName: nvidia,")
		}
		return []string{
			of(trainDeployment), of(trainSet), replace(of(trainPod), "nodeName: n", "nodeName: n, nodeSelector: "+pod),
			"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia, uid: n1}\nhandler: nvidia\n" +
				"scheduling: {nodeSelector: " + class + "}\n",
		}
	}
	hashed := func(set string) string {
		var typed appsv1.ReplicaSet
		if err := yaml.Unmarshal([]byte(set), &typed); err != nil {
			t.Fatal(err)
		}
		delete(typed.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		return replace(set, "pod-template-hash: h", "pod-template-hash: "+hashOfTemplate(typed.Spec.Template))
	}
	older := replace(trainSet, "train-1", "train-0", "uid: r1", "uid: r0", "trainer:1", "trainer:0")
	for name, test := range map[string]struct {
		objects []string
		want    string // the doubt, or ""
	}{
		"genuine": {all, ""},
		"an invented owner": {
			append(all, replace(trainPod, "train-1-x", "fake", "uid: r1", "uid: r9", "uid: p1", "uid: p2")),
			"no controller created it",
		},
		"the owner's UID with another name": {
			append(all, replace(trainPod, "train-1-x", "fake", "name: train-1,", "name: other,",
				"uid: p1", "uid: p2")),
			"no controller created it",
		},
		"an owner that does not create pods": {append(all, replace(trainPod, "train-1-x", "fake", "uid: p1", "uid: p2",
			"kind: ReplicaSet, name: train-1, uid: r1", "kind: Deployment, name: train, uid: d1")),
			"no controller created it"},
		"a Deployment hidden below a pod": {append(all, replace(trainDeployment, "name: train,", "name: hidden,",
			"uid: d1", "uid: d2, ownerReferences: [{apiVersion: v1, kind: Pod, name: train-1-x, uid: p1}]")),
			"no controller created it"},
		"a real owner, another image": {
			append(all, replace(trainPod, "train-1-x", "fake", "uid: p1", "uid: p2", "trainer:1", "busybox")),
			"differs from the template of ReplicaSet train-1: spec.containers[main].image",
		},
		"one variable more": {with(2, replace(trainPod, `value: "8"}`, `value: "8"}, {name: LD_PRELOAD, value: /x}`)),
			"spec.containers[main].env"},
		"one container more": {
			with(2, replace(trainPod, "containers: [", "containers: [{name: side, image: busybox}, ")),
			"spec.containers",
		},
		"one volume more": {
			with(2, replace(trainPod, "volumes: [", "volumes: [{name: v, emptyDir: {}}, ")), "spec.volumes",
		},
		"one mount more": {
			with(2, replace(trainPod, "volumeMounts: [", "volumeMounts: [{name: config, mountPath: /app}, ")),
			"spec.containers[main].volumeMounts",
		},
		"a mount by the name of the token's": {
			with(2, replace(trainPod, "mountPath: /var/run/secrets/kubernetes.io/serviceaccount", "mountPath: /app")),
			"spec.containers[main].volumeMounts",
		},
		"a GPU more": {
			with(2, replace(trainPod, "name: main,", "name: main, resources: {limits: {nvidia.com/gpu: 1}},")),
			"spec.containers[main].resources.limits[nvidia.com/gpu]",
		},
		"a limit of a LimitRange": {
			with(2, replace(trainPod, "name: main,", "name: main, resources: {limits: {memory: 1Gi}},")), "",
		},
		"another limit": {
			limited("10m", "10"), "differs from the template of ReplicaSet train-1: spec.containers[main].resources.limits[cpu]",
		},
		"the same limit": {limited("1000m", "1"), ""},
		"an affinity into which the API server has merged a label": {
			apart(``, `, {key: pod-template-hash, operator: In, values: [h]}`), "",
		},
		"an affinity of its own": {apart(``, `, {key: other, operator: In, values: [h]}`), "spec.affinity"},
		"on a node that it selects itself": {
			with(2, replace(trainPod, "nodeName: n", "nodeName: n, nodeSelector: {a: b}")), "spec.nodeSelector",
		},
		"on a node that its RuntimeClass selects":    {classed("{a: b}", "{a: b}"), ""},
		"created before its RuntimeClass selected":   {classed("{a: b}", "{}"), ""},
		"on a node that its RuntimeClass leaves out": {classed("{a: b}", "{a: c}"), "spec.nodeSelector"},
		"an old revision": {
			with(0, replace(trainDeployment, "trainer:1", "trainer:2")),
			"not the current revision of Deployment train",
		},
		"a pod that cannot be deleted": {
			with(2, replace(trainPod, "uid: p1", "uid: p1, finalizers: [example.com/hold]")),
			"the finalizer example.com/hold",
		},
		"a pod with the finalizer of a claim": {
			with(2, replace(trainPod, "uid: p1", "uid: p1, finalizers: [kubernetes.io/pvc-protection]")),
			"the finalizer",
		},
		"a job's pod": {
			with(2, replace(trainPod, "uid: p1", "uid: p1, finalizers: [batch.kubernetes.io/job-tracking]")), "",
		},
		"an old revision as it was": {append(all, hashed(trainSet), hashed(older)), ""},
		"an old revision with another image": {
			append(all, hashed(trainSet), replace(hashed(older), "trainer:0", "busybox")),
			"its template was changed, and a rollback of Deployment train would use it",
		},
		"a Service below a pod": {
			with(3, replace(trainService, "uid: s1", "uid: s1, ownerReferences: [{apiVersion: v1, kind: Pod, name: train-1-x, uid: p1}]")),
			"no controller created it",
		},
		"a ReplicaSet of nobody": {with(1, replace(trainSet, "uid: d1", "uid: d9")), "no controller created it"},
		"a debug container that runs": {
			with(2, trainPod+"status: {ephemeralContainerStatuses: [{name: debugger-x, state: {running: {}}}]}\n"),
			"debug container debugger-x is running in it",
		},
		"a debug container that ended": {
			with(2, trainPod+"status: {ephemeralContainerStatuses: [{name: debugger-x, state: {terminated: {}}}]}\n"), "",
		},
		"a pod behind the Service": {append(all, bare), "Deployment train and Service train selects it"},
		"a label for a Service": {
			append(with(2, replace(trainPod, "app: train", "app: train, scrape: now")),
				replace(trainService, "name: train,", "name: metrics,", "uid: s1", "uid: s2",
					"{app: train}", "{scrape: now}")),
			"differs from the template of ReplicaSet train-1: metadata.labels[scrape]",
		},
		"a label that nothing selects": {with(2, replace(trainPod, "app: train", "app: train, seen: by-me")), ""},
		"a Service that selects what the controller adds": {
			with(3, replace(trainService, "{app: train}", "{app: train, pod-template-hash: h}")), "",
		},
		"hidden from a Service": {
			with(2, replace(trainPod, "app: train, pod-template-hash: h", "pod-template-hash: h")),
			"metadata.labels[app]",
		},
		"a pod that nothing selects": {append(all, replace(bare, "app: train", "app: debug")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCensus()
			for _, document := range test.objects {
				u := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
					t.Fatal(err)
				}
				gvk := u.GroupVersionKind()
				c.add(key{gvk.GroupKind(), u.GetNamespace(), u.GetName()},
					resource{gvk.GroupVersion().WithResource("any"), gvk.GroupKind()}, u)
			}
			var doubts []string
			for k, o := range c.objects {
				if doubt := c.doubt(k, o); doubt != "" {
					doubts = append(doubts, doubt)
				}
			}
			got := strings.Join(doubts, "; ")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("doubts %q, want %q", got, test.want)
			}
		})
	}
}

// Objects that name each other as their owner are found, in bounded time.
func TestOwnersInACircle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		set := func(name, owner string) *unstructured.Unstructured {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps/v1", "kind": "ReplicaSet",
				"metadata": map[string]any{"name": name, "namespace": "a", "uid": name},
			}}
			o.SetOwnerReferences([]metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: new(true),
			}})
			return o
		}
		kinds := map[schema.GroupVersionResource]string{
			{Group: "apps", Version: "v1", Resource: "replicasets"}: "ReplicaSetList",
			{Version: "v1", Resource: "namespaces"}:                 "NamespaceList",
		}
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, set("one", "two"),
			set("two", "one"))
		taken, err := Capture(t.Context(), client, served{lists: []*metav1.APIResourceList{{
			GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
				{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true, Verbs: metav1.Verbs{"list"}},
			},
		}}}, Options{Whole: []string{"a"}, Verify: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		before := &Baseline{kinds: taken.kinds, objects: map[key]*object{}}
		got := Diff(before, taken)
		if len(got) != 2 || got[0].Note == "" || got[1].Note == "" {
			t.Errorf("%q", got)
		}
	})
}

// A forged pod is damage, whatever the scenario allows to be created; where a webhook changes all pods from the
// beginning, their difference from the template is none.
func TestForgedObjectsAreDamage(t *testing.T) {
	t.Parallel()
	noted := func(note string) *Baseline {
		b := captured(t, Options{}, bare)
		for _, o := range b.objects {
			o.note = note
		}
		parts, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if b, err = Decode(parts); err != nil {
			t.Fatal(err)
		}
		return b
	}
	anything := []scenario.Allowed{{Kind: "Pod", Created: true, Deleted: true}}
	empty := captured(t, Options{})
	ours := func(scenario.Ref) bool { return true } // the label of a check's pod can be copied
	if got := Collateral(Diff(empty, noted("Service x"+strayed)), anything, ours); len(got) != 1 ||
		!strings.Contains(got[0].String(), "Pod a/bare: Service x selects it") {
		t.Errorf("%q", got)
	}
	if got := Collateral(Diff(noted(""), noted("the finalizer x")), anything, ours); len(got) != 1 ||
		!strings.Contains(got[0].String(), "Pod a/bare: the finalizer x") {
		t.Errorf("an object that was there before: %q", got)
	}
	if got := Collateral(Diff(empty, noted("")), anything, nil); len(got) != 0 {
		t.Errorf("a pod that is allowed: %q", got)
	}
	other := noted(mutated + "ReplicaSet y: spec.volumes")
	for k, o := range other.objects {
		delete(other.objects, k)
		k.name = "other"
		other.objects[k] = o
	}
	if got := Diff(other, noted(mutated+"ReplicaSet x: spec.volumes")); len(got) != 0 {
		t.Errorf("with a webhook: %q", lines(got))
	}
}

// The variables of a container are compared by what it gets: it does not matter whether a value is in the template or
// in a ConfigMap, but one that a ConfigMap adds counts.
func TestEnvironmentsAreCompared(t *testing.T) {
	t.Parallel()
	config := func(data string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a}\ndata: " + data + "\n"
	}
	workload := func(variables string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w, namespace: a}\n" +
			"spec: {template: {spec: {containers: [{name: main, " + variables + "}]}}}\n"
	}
	secret := func(data string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: a}\ndata: " + data + "\n"
	}
	const system = "apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system, uid: salt}\n" // the salt of captured
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: master, namespace: a}\n"
	const at = "changed Deployment a/w spec.template.spec.containers[main].env"
	edited := func(variables ...string) string { // the last one was /b, the others are new
		var fields, was, is []string
		for i, variable := range variables {
			name, value, _ := strings.Cut(variable, ": ")
			field, old := "spec.template.spec.containers[main].env["+name+"]", ""
			if i == len(variables)-1 {
				old = "/b"
			}
			fields, was, is = append(fields, field), append(was, field+": "+old), append(is, field+": "+value)
		}
		return "changed Deployment a/w " + strings.Join(fields, " ") + ": " + strings.Join(was, ", ") + " -> " +
			strings.Join(is, ", ")
	}
	for name, test := range map[string]struct {
		before, after []string
		want          []string
	}{
		"moved to a ConfigMap": {
			[]string{workload("env: [{name: BATCH, value: '8'}]")},
			[]string{workload("envFrom: [{configMapRef: {name: c}}]"), config("{BATCH: '8'}")}, nil,
		},
		"by reference": {
			[]string{workload("env: [{name: BATCH, value: '8'}]")},
			[]string{
				workload("env: [{name: BATCH, valueFrom: {configMapKeyRef: {name: c, key: b}}}]"), config("{b: '4'}"),
			},
			[]string{at + "[BATCH]: 8 -> 4"},
		},
		"from the pod's own metadata": {
			[]string{workload("env: [{name: RANK, value: '1'}]")},
			[]string{strings.Replace(
				workload("env: [{name: RANK, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['rank']\"}}}]"),
				"template: {", "template: {metadata: {labels: {rank: '1'}}, ", 1)},
			[]string{"changed Deployment a/w spec.template.metadata.labels.rank:  -> 1"},
		},
		"moved to a Secret": {
			[]string{workload("env: [{name: BATCH, value: '8'}]"), system},
			[]string{workload("envFrom: [{secretRef: {name: s}}]"), secret("{BATCH: OA==}"), system}, nil,
		},
		"moved from a Secret": {
			[]string{
				workload("env: [{name: BATCH, valueFrom: {secretKeyRef: {name: s, key: b}}}]"), secret("{b: OA==}"),
				system,
			},
			[]string{workload("env: [{name: BATCH, value: '8'}]"), system}, nil,
		},
		"another value in a Secret": {
			[]string{workload("env: [{name: BATCH, value: '8'}]"), system},
			[]string{workload("envFrom: [{secretRef: {name: s}}]"), secret("{BATCH: NA==}"), system},
			[]string{at + "[BATCH]: 8 -> sha256:6ac2cc39402d7cf4643bc44d6b2110da"},
		},
		"a ConfigMap that adds a variable": {
			[]string{workload("envFrom: [{configMapRef: {name: c}}]"), config("{A: x}")},
			[]string{workload("envFrom: [{configMapRef: {name: c}}]"), config("{A: x, LD_PRELOAD: /evil.so}")},
			[]string{at + "[LD_PRELOAD]:  -> /evil.so"},
		},
		"another order": {
			[]string{workload("env: [{name: A, value: x}, {name: B, value: y}]")},
			[]string{workload("env: [{name: B, value: y}, {name: A, value: x}]")}, nil,
		},
		"the same name twice": {
			[]string{workload("env: [{name: A, value: x}]")},
			[]string{workload("env: [{name: A, value: x}, {name: A, value: z}]")},
			[]string{at + "[A]: x -> x, and z"},
		},
		"the same value by reference": {
			[]string{workload("env: [{name: DIR, value: /a}, {name: LIBS, value: /a/lib}]")},
			[]string{workload("env: [{name: DIR, value: /a}, {name: LIBS, value: $(DIR)/lib}]")}, nil,
		},
		"a reference to a later variable": {
			[]string{workload("env: [{name: LIBS, value: /a/lib}, {name: DIR, value: /a}]")},
			[]string{workload("env: [{name: LIBS, value: $(DIR)/lib}, {name: DIR, value: /a}]")},
			[]string{at + "[LIBS]: /a/lib -> $(DIR)/lib"},
		},
		"a helper, and a helper of it": {
			[]string{workload("env: [{name: LIBS, value: /b}]")},
			[]string{workload("env: [{name: ROOT, value: /r}, {name: DIR, value: $(ROOT)/a}, {name: LIBS, value: $(DIR)}]")},
			[]string{at + "[LIBS]: /b -> /r/a"},
		},
		"a helper that is a number": {
			[]string{workload("env: [{name: STEPS, value: \"1\"}]")},
			[]string{workload("env: [{name: COUNT, value: \"8\"}, {name: STEPS, value: $(COUNT)}]")},
			[]string{at + "[STEPS]: 1 -> 8"},
		},
		"a Service by its full name": {
			[]string{workload("env: [{name: HOST, value: master}]"), service},
			[]string{workload("env: [{name: HOST, value: master.a.svc.cluster.local}]"), service}, nil,
		},
		"a Service by its full name in another namespace": {
			[]string{workload("env: [{name: HOST, value: master}]"), service},
			[]string{workload("env: [{name: HOST, value: master.b.svc}]"), service},
			[]string{at + "[HOST]: master -> master.b.svc"},
		},
		"a full name without a Service": {
			[]string{workload("env: [{name: HOST, value: master}]")},
			[]string{workload("env: [{name: HOST, value: master.a}]")},
			[]string{at + "[HOST]: master -> master.a"},
		},
		"helpers of each other": {
			[]string{workload("env: [{name: LIBS, value: /b}]")},
			[]string{workload("env: [{name: A, value: /x/$(B)}, {name: B, value: /y/$(A)}, {name: LIBS, value: /c}]")},
			[]string{edited("A: /x/$(B)", "B: /y//x/$(B)", "LIBS: /c")},
		},
		"a helper that a loader reads": {
			[]string{workload("env: [{name: LIBS, value: /b}]")},
			[]string{workload("env: [{name: LD_PRELOAD, value: /x.so}, {name: LIBS, value: $(LD_PRELOAD)}]")},
			[]string{edited("LD_PRELOAD: /x.so", "LIBS: /x.so")},
		},
		"a helper that is a setting": {
			[]string{workload("env: [{name: LIBS, value: /b}]")},
			[]string{workload("env: [{name: DEVICE, value: cpu}, {name: LIBS, value: /$(DEVICE)}]")},
			[]string{edited("DEVICE: cpu", "LIBS: /cpu")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := captured(t, Options{}, test.before...), captured(t, Options{}, test.after...)
			all := Environments(Diff(before, after), before, after, []string{"a"})
			var got []string
			for _, line := range lines(all) {
				if strings.Contains(line, "Deployment") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A workload that cannot be deleted is reported, whatever else was changed in it.
func TestNotesOnWorkloadsRemain(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w, namespace: a}\n" +
		"spec: {template: {spec: {containers: [{name: main, image: i}]}}}\n"
	before := captured(t, Options{}, text)
	after := captured(t, Options{}, strings.Replace(text, "image: i", "image: j", 1))
	for _, o := range after.objects {
		o.note = "the finalizer example.com/hold prevents its deletion"
	}
	got := Environments(Diff(before, after), before, after, []string{"a"})
	if len(got) != 1 || got[0].Note == "" {
		t.Errorf("%q", lines(got))
	}
}
