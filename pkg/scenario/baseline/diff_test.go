package baseline

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// captured returns what a capture of these objects would be.
func captured(t *testing.T, options Options, documents ...string) *Baseline {
	t.Helper()
	if options.Limit == 0 {
		options.Limit = defaultLimit
	}
	c := &capture{
		options: options, gone: map[string]bool{}, salt: []byte("salt"),
		b: &Baseline{kinds: map[schema.GroupKind]string{}, objects: map[key]*object{}},
	}
	for _, kind := range []schema.GroupVersionKind{ // listed, though there may be none
		{Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "Namespace"},
		{Version: "v1", Kind: "ServiceAccount"},
		{Version: "v1", Kind: "Pod"}, {Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Secret"},
		{Group: "apps", Version: "v1", Kind: "Deployment"},
	} {
		c.b.kinds[kind.GroupKind()] = kind.Version
	}
	for _, document := range documents {
		u := &unstructured.Unstructured{}
		raw, err := yaml.YAMLToJSON([]byte(document))
		if err == nil {
			err = u.UnmarshalJSON(raw)
		}
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		gvk := u.GroupVersionKind()
		r := resource{gvk.GroupVersion().WithResource("any"), gvk.GroupKind()}
		if !ephemeral(r.kind) {
			c.b.kinds[r.kind] = gvk.Version
			c.keep(r, u)
		}
	}
	c.dropTerminating()
	return c.b
}

// lines are differences, one in a line.
func lines(differences []Difference) []string {
	var all []string
	for _, d := range differences {
		line := string(d.Kind) + " " + d.Ref.Kind + " " + d.Ref.Namespace + "/" + d.Ref.Name
		if d.Fields != nil {
			line += " " + strings.Join(d.Fields, " ") + ": " + d.Before + " -> " + d.After
		}
		all = append(all, line)
	}
	return all
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: a, uid: u1, generation: 1, resourceVersion: "1", labels: {app: web}, annotations: {deployment.kubernetes.io/revision: "1"}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "web:1", resources: {limits: {nvidia.com/gpu: "1"}}}]
status: {replicas: 1}
`

const node = `
apiVersion: v1
kind: Node
metadata: {name: n, uid: n1, labels: {zone: a}, annotations: {csi.volume.kubernetes.io/nodeid: x}}
spec: {podCIDR: 10.0.0.0/24, providerID: cloud/n}
status: {conditions: []}
`

// What happens on a cluster by itself is no difference.
func TestOrdinaryChurnIsQuiet(t *testing.T) {
	t.Parallel()
	replace := func(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }
	pod := `
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: a, uid: p1}
spec: {containers: [{name: c, image: i, volumeMounts: [{name: kube-api-access-abcde, mountPath: /x}]}], volumes: [{name: kube-api-access-abcde}]}
`
	job := `
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: a, uid: j1, labels: {controller-uid: j1, batch.kubernetes.io/controller-uid: j1}}
spec: {ttlSecondsAfterFinished: 5, selector: {matchLabels: {controller-uid: j1}}, template: {metadata: {labels: {controller-uid: j1}}, spec: {containers: []}}}
`
	account := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: a}\n"
	token :=
		"apiVersion: v1\nkind: Secret\nmetadata: {name: t, namespace: a}\ntype: kubernetes.io/service-account-token\n"
	claim :=
		"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c, namespace: a, uid: c1}\nspec: {storageClassName: s}\n"
	role :=
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: admin}\naggregationRule: {x: y}\nrules: []\n"
	hook :=
		"apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: h}\nwebhooks: [{name: a, clientConfig: {caBundle: b1}}]\n"
	owned := func(kind, api, owner, of string) string {
		return "apiVersion: " + api + "\nkind: " + kind +
			"\nmetadata: {name: o, namespace: a, ownerReferences: [{apiVersion: " + of + ", kind: " + owner +
			", name: x, uid: u, controller: true}]}\n"
	}
	for name, at := range map[string]struct{ before, after []string }{
		"status, counters, revision": {[]string{deployment}, []string{replace(deployment, "generation: 1",
			"generation: 7", `resourceVersion: "1"`, `resourceVersion: "9"`, `revision: "1"`, `revision: "2"`,
			"{replicas: 1}", "{replicas: 2}")}},
		"made anew as it was": {
			[]string{deployment, job}, []string{replace(deployment, "u1", "u2"), replace(job, "j1", "j2")},
		},
		"node": {[]string{node}, []string{replace(
			node, "conditions: []", "conditions: [{type: Ready}]", "nodeid: x", "nodeid: y", "spec: {",
			"spec: {unschedulable: false, taints: [{key: node.kubernetes.io/not-ready, effect: NoExecute, timeAdded: x}], ",
		)}},
		"autoscaled node": {nil, []string{node}},
		"scheduled pod": {
			[]string{pod}, []string{replace(pod, "abcde", "fghij", "spec: {", "spec: {nodeName: n, ")},
		},
		"finished job with a TTL": {[]string{job}, nil},
		"account":                 {[]string{account}, []string{account + "secrets: [{name: x}]\n"}},
		"account came":            {nil, []string{account}},
		"token":                   {[]string{token}, []string{token + "data: {token: eA==}\n"}},
		"claim bound":             {[]string{claim}, []string{replace(claim, "spec: {", "spec: {volumeName: pv, ")}},
		"aggregated role":         {[]string{role}, []string{replace(role, "rules: []", "rules: [{verbs: [get]}]")}},
		"certificate":             {[]string{hook}, []string{replace(hook, "b1", "b2")}},
		"derived": {nil, []string{
			owned("Pod", "v1", "ReplicaSet", "apps/v1"), owned("ReplicaSet", "apps/v1", "Deployment", "apps/v1"),
			owned("Job", "batch/v1", "CronJob", "batch/v1"),
			owned("Thing", "things.example.com/v1", "Owner", "things.example.com/v1"),
			owned("CiliumEndpoint", "other.io/v2", "Pod", "v1"),
		}},
		"ephemeral": {nil, []string{
			"apiVersion: v1\nkind: Event\nmetadata: {name: e, namespace: a}\n",
			"apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: a}\n",
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: a}\n",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-root-ca.crt, namespace: a}\n",
			"apiVersion: metrics.k8s.io/v1beta1\nkind: PodMetrics\nmetadata: {name: m, namespace: a}\n",
		}},
		"empty and absent": {
			[]string{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a}\n"},
			[]string{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a, labels: {}}\ndata: {}\n"},
		},
		"going away": {[]string{
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: g, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\n",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: g}\n",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d, namespace: a, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\n",
		}, nil},
		"left out": {nil, []string{
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: ledger}\n",
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: ledger}\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := Options{Without: []string{"ledger"}}
			if got := Diff(captured(t, options, at.before...), captured(t, options, at.after...)); got != nil {
				t.Errorf("%q", lines(got))
			}
		})
	}
}

// What somebody did is found, with its field.
func TestChangesAreFound(t *testing.T) {
	t.Parallel()
	config := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a}\ndata: {a.yaml: x, b: y}\n"
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: a}\ndata: {password: aHVudGVyMg==}\n"
	static :=
		`{apiVersion: v1, kind: Pod, metadata: {name: etcd, namespace: kube-system, ownerReferences: [{apiVersion: v1, kind: Node, name: n, controller: true, uid: x}]}}`
	daemons :=
		`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: dp, namespace: g, ownerReferences: [{apiVersion: nvidia.com/v1, kind: ClusterPolicy, name: p, controller: true, uid: x}]}}`
	binding :=
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: b}, subjects: []}`
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, uid: u1}\n"
	by := func(manager, annotation string) string {
		return "{manager: " + manager + ", fieldsV1: {'f:metadata': {'f:annotations': {'f:" + annotation + "': {}}}}}"
	}
	for name, at := range map[string]struct {
		before, after []string
		want          []string
	}{
		"label": {[]string{node}, []string{strings.Replace(node, "zone: a", "zone: b, gpu/kind.x: t4", 1)}, []string{
			"changed Node / metadata.labels.zone metadata.labels[\"gpu/kind.x\"]: metadata.labels.zone: a, metadata.labels[\"gpu/kind.x\"]:  -> metadata.labels.zone: b, metadata.labels[\"gpu/kind.x\"]: t4",
		}},
		"note": {
			[]string{node},
			[]string{strings.NewReplacer(
				"nodeid: x", "nodeid: y, example.com/note: broken", "uid: n1", "uid: n1, managedFields: ["+
					by("csi", "csi.volume.kubernetes.io/nodeid")+", "+by("kubectl-annotate", "example.com/note")+"]",
			).Replace(node)},
			[]string{`changed Node / metadata.annotations["example.com/note"]:  -> broken`},
		},
		"a node that cannot be deleted any more": {
			[]string{node},
			[]string{strings.Replace(node, "uid: n1", "uid: n1, finalizers: [example.com/hold]", 1)},
			[]string{`changed Node / metadata.finalizers:  -> ["example.com/hold"]`},
		},
		"taint": {
			[]string{node},
			[]string{strings.Replace(node, "spec: {", "spec: {taints: [{key: a, effect: NoSchedule}], ", 1)},
			[]string{`changed Node / spec.taints:  -> [{"effect":"NoSchedule","key":"a"}]`},
		},
		"cordon": {[]string{node}, []string{strings.Replace(node, "spec: {",
			"spec: {unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable}], ",
			1)}, []string{"changed Node / spec.unschedulable:  -> true"}},
		"scaled": {
			[]string{deployment}, []string{strings.Replace(deployment, "replicas: 2", "replicas: 0", 1)},
			[]string{"changed Deployment a/web spec.replicas: 2 -> 0"},
		},
		"image": {
			[]string{deployment}, []string{strings.Replace(deployment, "web:1", "web:2", 1)},
			[]string{"changed Deployment a/web spec.template.spec.containers[web].image: web:1 -> web:2"},
		},
		"gpu": {
			[]string{deployment}, []string{strings.Replace(deployment, `nvidia.com/gpu: "1"`, "", 1)},
			[]string{
				"changed Deployment a/web spec.template.spec.containers[web].resources.limits[\"nvidia.com/gpu\"]: 1 -> ",
			},
		},
		"config": {
			[]string{config}, []string{strings.Replace(config, "a.yaml: x", "a.yaml: z", 1)},
			[]string{"changed ConfigMap a/c data[\"a.yaml\"]: x -> z"},
		},
		"secret": {
			[]string{secret}, []string{strings.Replace(secret, "aHV", "bHV", 1)},
			[]string{"changed Secret a/s data.password: (secret) -> (secret)"},
		},
		"gone":       {[]string{config}, nil, []string{"deleted ConfigMap a/c"}},
		"new":        {nil, []string{config}, []string{"created ConfigMap a/c"}},
		"static pod": {[]string{static}, nil, []string{"deleted Pod kube-system/etcd"}},
		"operator's": {
			[]string{daemons}, []string{strings.Replace(daemons, "x}]}", "y}], labels: {a: b}}", 1)},
			[]string{"changed DaemonSet g/dp metadata.labels.a:  -> b"},
		},
		"a binding that a node takes along": {
			[]string{binding},
			[]string{strings.Replace(binding, "name: b", "name: b, ownerReferences: [{apiVersion: v1, kind: Node, name: n1, uid: x}]", 1)},
			[]string{`changed ClusterRoleBinding /b metadata.ownerReferences[n1]:  -> {"apiVersion":"v1","kind":"Node","name":"n1"}`},
		},
		"namespace": {[]string{namespace, config}, nil, []string{"deleted Namespace /a", "deleted ConfigMap a/c"}},
		"made anew": {
			[]string{namespace}, []string{strings.Replace(namespace, "u1", "u2", 1)},
			[]string{"changed Namespace /a metadata.uid: u1 -> u2"},
		},
		"being gone": {
			[]string{config},
			[]string{strings.Replace(config, "name: c", `deletionTimestamp: "2026-01-01T00:00:00Z", name: c`, 1)},
			[]string{"deleted ConfigMap a/c"},
		},
		"default used": {
			[]string{"{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: a}}"},
			[]string{
				"{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: a}, imagePullSecrets: [{name: x}]}",
			},
			[]string{`changed ServiceAccount a/default imagePullSecrets[x]:  -> {"name":"x"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := captured(t, Options{}, at.before...), captured(t, Options{}, at.after...)
			// A baseline goes through the ledger, and its numbers must come back as numbers.
			parts, err := before.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if before, err = Decode(parts); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(at.want, lines(Diff(before, after))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Of objects beyond the limit it is still found that they changed, and roughly where; exercise namespaces are whole
// nevertheless.
func TestBeyondTheLimit(t *testing.T) {
	t.Parallel()
	other := strings.Replace(deployment, "namespace: a", "namespace: b", 1)
	options := Options{Limit: -1, Whole: []string{"a"}}
	before := captured(t, options, deployment, other)
	edit := func(s string) string {
		return strings.NewReplacer("web:1", "web:2", "app: web}, ann", "app: new}, ann").Replace(s)
	}
	for name, after := range map[string]*Baseline{
		"hashes": captured(t, options, edit(deployment), edit(other)),
		"whole":  captured(t, Options{}, edit(deployment), edit(other)),
	} {
		want := []string{"metadata.labels.app spec.template.spec.containers[web].image", "metadata.labels spec.template"}
		var got []string
		for _, d := range Diff(before, after) {
			got = append(got, strings.Join(d.Fields, " "))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := Diff(before, captured(t, Options{}, deployment, other)); got != nil {
		t.Errorf("nothing changed, but %q", lines(got))
	}
	if got := before.List(
		scenario.Selector{APIVersion: "apps/v1", Kind: "Deployment", Labels: "app=web"},
	); len(got) != 2 {
		t.Errorf("labels are kept: %v", got)
	}
}

// A kind that could not be listed once is not taken for deleted.
func TestWhatCouldNotBeListedIsNotCompared(t *testing.T) {
	t.Parallel()
	before, after := captured(t, Options{}, deployment), captured(t, Options{})
	delete(after.kinds, schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if got := append(Diff(before, after), Diff(after, before)...); got != nil {
		t.Errorf("%q", lines(got))
	}
}

// What an autoscaler may do is its own; what it would not do is somebody's.
func TestReplicasOfAnAutoscaler(t *testing.T) {
	t.Parallel()
	scaler :=
		`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: h, namespace: a}, spec: {minReplicas: 1, maxReplicas: 5, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}`
	before := captured(t, Options{}, deployment, scaler)
	for replicas, want := range map[string]int{"5": 0, "6": 1, "0": 1} {
		after := captured(t, Options{}, strings.Replace(deployment, "replicas: 2", "replicas: "+replicas, 1), scaler)
		if got := Diff(before, after); len(got) != want {
			t.Errorf("%s replicas: %q", replicas, lines(got))
		}
	}
	after := captured(t, Options{}, strings.Replace(deployment, "replicas: 2", "replicas: 9", 1),
		strings.Replace(scaler, "maxReplicas: 5", "maxReplicas: 9", 1))
	if got := Diff(before, after); len(got) != 2 {
		t.Errorf("a changed autoscaler explains nothing: %q", lines(got))
	}
}

// What is allowed is allowed, and nothing more.
func TestCollateral(t *testing.T) {
	t.Parallel()
	config := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: a}\ndata: {x: y}\n"
	before := captured(t, Options{}, deployment, node, config)
	after := captured(t, Options{},
		strings.NewReplacer("replicas: 2", "replicas: 0", "web:1", "web:2").Replace(deployment),
		strings.Replace(node, "zone: a", "zone: b", 1), strings.Replace(config, "name: c", "name: d", 1))
	ours := func(ref scenario.Ref) bool { return ref.Kind == "Node" }
	for name, at := range map[string]struct {
		allow []scenario.Allowed
		want  []string
	}{
		"nothing": {nil, []string{"deleted ConfigMap a/c", "created ConfigMap a/d",
			"changed Deployment a/web spec.replicas spec.template.spec.containers[web].image: " +
				"spec.replicas: 2, spec.template.spec.containers[web].image: web:1 -> spec.replicas: 0, spec.template.spec.containers[web].image: web:2"}},
		"a field": {[]scenario.Allowed{
			{Kind: "Deployment", Fields: []string{"spec.template"}}, {Kind: "ConfigMap", Name: "c*", Deleted: true},
		},
			[]string{"created ConfigMap a/d", "changed Deployment a/web spec.replicas: 2 -> 0"}},
		"not a prefix of letters": {[]scenario.Allowed{
			{Kind: "Deployment", Fields: []string{"spec.temp", "spec.replicas"}},
			{Namespace: "a", Kind: "ConfigMap", Created: true, Deleted: true},
		},
			[]string{"changed Deployment a/web spec.template.spec.containers[web].image: web:1 -> web:2"}},
		"all": {[]scenario.Allowed{{Created: true, Deleted: true}}, nil},
		"other namespace": {
			[]scenario.Allowed{{Namespace: "b", Created: true, Deleted: true}},
			lines(Collateral(Diff(before, after), nil, ours)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(at.want, lines(Collateral(Diff(before, after), at.allow, ours))); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Collateral(Diff(before, after), nil, nil); len(got) != 4 {
		t.Errorf("%q", lines(got))
	}
}

// Field names come back from their paths as they went in.
func FuzzPath(f *testing.F) {
	f.Add("example.com/team", "x")
	f.Add("a", "b.c")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := segments(expr.Join(expr.Join("metadata", a), b))
		if strings.ContainsAny(a+b, "[]\"'") || strconv.Quote(a+b) != `"`+a+b+`"` || a == "" || b == "" {
			return // no key of Kubernetes has these, nor what must be escaped; it only must not panic
		}
		if !slices.Equal(got, []string{"metadata", a, b}) {
			t.Errorf("%q %q: %q", a, b, got)
		}
	})
}

// A digest is the same as long as nothing of interest differs, whole or not; by it one tells who has gone on working.
func TestDigest(t *testing.T) {
	t.Parallel()
	web :=
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: a}, spec: {replicas: %}, status: {replicas: 9}}"
	of := func(replicas string) string { return strings.Replace(web, "%", replicas, 1) }
	other := "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: b}, data: {a: b}}"
	inA := func(ref scenario.Ref, _ map[string]any) bool { return ref.Namespace == "a" }
	was := captured(t, Options{}, of("2")).Digest(inA)
	for name, test := range map[string]struct {
		now  *Baseline
		same bool
	}{
		"the same":       {captured(t, Options{}, of("2")), true},
		"another status": {captured(t, Options{}, strings.Replace(of("2"), "9", "8", 1)), true},
		"elsewhere":      {captured(t, Options{}, of("2"), other), true},
		"hashes only":    {captured(t, Options{Limit: -1}, of("2")), true},
		"changed":        {captured(t, Options{}, of("3")), false},
		"deleted":        {captured(t, Options{}), false},
		"made": {
			captured(t, Options{}, of("2"), strings.Replace(other, "namespace: b", "namespace: a", 1)), false,
		},
		"cannot be listed":     {&Baseline{Missing: []string{"deployments.apps: forbidden"}}, false},
		"changed, hashes only": {captured(t, Options{Limit: -1}, of("3")), false},
	} {
		if same := test.now.Digest(inA) == was; same != test.same {
			t.Errorf("%s: the same: %t, wanted %t", name, same, test.same)
		}
	}
}
