package report

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func node(name string) finding.Object { return finding.Object{Kind: "Node", Name: name} }

func pod(namespace, name string) finding.Object {
	return finding.Object{Kind: "Pod", Namespace: namespace, Name: name}
}

// twoContainerds returns a cluster whose toolkit configures a containerd that the kubelet does not use, and on whose
// other node a driver has too new a library.
func twoContainerds() doctor.Report {
	root := finding.Finding{
		ID: "rt.wrong-instance", Layer: finding.LayerRuntime, Severity: finding.Error, Confidence: finding.Certain,
		Root:   true,
		Title:  "the NVIDIA toolkit configures a containerd that the kubelet does not use",
		Object: node("gpu-1"), Nodes: []string{"gpu-1"},
		Evidence: []finding.Evidence{
			{
				Source: "Node gpu-1, kubelet's command line",
				Text:   "--container-runtime-endpoint=unix:///var/lib/k8s-containerd/run/containerd/containerd.sock",
			},
			{
				Source: "event FailedCreatePodSandBox of Pod ml/train-0", Time: now.Add(-3 * time.Minute),
				Text: `Failed to create pod sandbox: rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "0f3c": no runtime for "nvidia" is configured`,
			},
			{
				Source: "Node gpu-1, /etc/containerd/conf.d/99-nvidia.toml",
				Text:   "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"",
			},
		},
		Fix: finding.Fix{
			Text:   "Point the toolkit at the containerd that the kubelet uses, with these values for the chart gpu-operator, and restart its pods.",
			Values: "toolkit:\n  env:\n  - name: CONTAINERD_CONFIG\n    value: /var/snap/k8s/common/etc/containerd/config.toml\n  - name: CONTAINERD_SOCKET\n    value: /var/lib/k8s-containerd/run/containerd/containerd.sock\n",
			Commands: []string{
				"helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --reuse-values -f toolkit-values.yaml",
				"kubectl rollout restart daemonset/nvidia-container-toolkit-daemonset -n gpu-operator",
			},
		},
		Doc: "https://github.com/canonical/k8s-snap/issues/1991",
	}
	follows := func(id string, layer finding.Layer, title string, all ...finding.Object) finding.Finding {
		f := finding.Finding{
			ID: id, Layer: layer, Severity: finding.Info, Confidence: finding.Certain, Title: title, Object: all[0],
			Nodes:    []string{"gpu-1"},
			CausedBy: []string{"rt.wrong-instance"},
			Evidence: []finding.Evidence{{Source: all[0].String(), Text: "it says so"}},
		}
		if len(all) > 1 {
			f.Objects = all
		}
		for _, o := range all {
			if o.Kind == "Pod" {
				f.Pods = append(f.Pods, o.Namespace+"/"+o.Name)
			}
		}
		return f
	}
	driver := finding.Finding{
		ID: "drv.lib-mismatch", Layer: finding.LayerDriver, Severity: finding.Error, Confidence: finding.Likely,
		Root:  true,
		Title: "the driver's library is newer than its kernel module", Object: node("gpu-2"), Nodes: []string{"gpu-2"},
		Evidence: []finding.Evidence{{
			Source: "nodes/gpu-2/kernel.log sequence 812", Time: now.Add(-26 * time.Hour),
			Text: "NVRM: API mismatch: the client has the version 580.82, but this kernel module has the version 580.65.",
		}},
		Fix: finding.Fix{
			Text: "Drain the node and reboot it.", Commands: []string{"kubectl drain gpu-2 --ignore-daemonsets"},
		},
	}
	warning := finding.Finding{
		ID: "drv.persistence", Layer: finding.LayerDriver, Severity: finding.Warning, Confidence: finding.Certain,
		Root:  true,
		Title: "persistence mode is off, so that the driver is loaded anew for each job", Object: node("gpu-1"),
		Objects: []finding.Object{node("gpu-1"), node("gpu-2")},
		Nodes:   []string{"gpu-1", "gpu-2"},
		Evidence: []finding.Evidence{
			{Source: "nvidia-smi on Node gpu-1", Text: "<persistence_mode>Disabled</persistence_mode>"},
		},
		Fix: finding.Fix{
			Text:     "Start nvidia-persistenced on the nodes.",
			Commands: []string{"systemctl enable --now nvidia-persistenced"},
		},
	}
	info := finding.Finding{
		ID: "wl.idle-holder", Layer: finding.LayerWorkload, Severity: finding.Info, Confidence: finding.Possible,
		Root:  true,
		Title: "the pod holds GPUs and does not use them", Object: pod("research", "notebook-7"),
	}
	items := []finding.Finding{
		driver, root, warning, info,
		follows("rt.handler-missing", finding.LayerRuntime, "the runtime does not know the handler nvidia",
			node("gpu-1")),
		follows("op.init-chain", finding.LayerOperator, "the operator's pods wait for one another",
			pod("gpu-operator", "nvidia-operator-validator-x"), pod("gpu-operator", "gpu-feature-discovery-x")),
		follows("dp.not-running", finding.LayerDevicePlugin, "the device plugin does not run",
			pod("gpu-operator", "nvidia-device-plugin-x")),
		follows("dp.capacity-zero", finding.LayerDevicePlugin, "the node advertises no GPU", node("gpu-1")),
		follows("sched.insufficient-gpu", finding.LayerScheduling, "no node has enough free GPUs", pod("ml", "train-0"),
			pod("ml", "train-1"), pod("ml", "train-2"), pod("ml", "train-3"), pod("ml", "train-4")),
		follows("obs.dcgm-crash", finding.LayerObservability, "dcgm-exporter crashes",
			pod("gpu-operator", "nvidia-dcgm-exporter-x")),
		follows("wl.pod-failing", finding.LayerWorkload, "the pod waits or crashes", pod("ml", "serve-0")),
	}
	states := func(n string) doctor.NodeResult {
		all := doctor.NodeResult{Node: n, Layers: map[finding.Layer]doctor.State{}}
		for _, l := range finding.Layers() {
			all.Layers[l] = doctor.Good
		}
		return all
	}
	nodes := []doctor.NodeResult{states("gpu-1"), states("gpu-2"), states("gpu-3")}
	nodes[0].Layers[finding.LayerRuntime], nodes[0].Layers[finding.LayerDriver] = doctor.Broken, doctor.Warned
	for _, l := range []finding.Layer{
		finding.LayerOperator, finding.LayerDevicePlugin, finding.LayerScheduling, finding.LayerWorkload,
		finding.LayerObservability,
	} {
		nodes[0].Layers[l] = doctor.Consequent
	}
	nodes[1].Layers[finding.LayerDriver] = doctor.Broken
	for _, l := range []finding.Layer{finding.LayerHardware, finding.LayerDriver, finding.LayerRuntime} {
		nodes[2].Layers[l] = doctor.NotSeen
	}
	var layers []doctor.LayerResult
	for _, l := range finding.Layers() {
		layers = append(layers, doctor.LayerResult{Layer: l, Checks: 7, Passed: 7})
	}
	layers[0] = doctor.LayerResult{Layer: finding.LayerHardware, Checks: 9, NotRead: 9}
	layers[1] = doctor.LayerResult{
		Layer: finding.LayerDriver, Checks: 12, Passed: 8, Errors: 1, Warnings: 1, NotRead: 2,
	}
	layers[2] = doctor.LayerResult{Layer: finding.LayerRuntime, Checks: 18, Passed: 2, Errors: 1, Infos: 1, Unknown: 14}
	return doctor.Report{
		APIVersion: snapshot.APIVersion, Kind: doctor.Kind, Created: now,
		Snapshot: snapshot.Meta{Created: now, Context: "prod"},
		Summary: doctor.Summary{
			Nodes: 5, GPUNodes: 3, NodesRead: 2, GPUPods: 7, Checks: 85, Errors: 2, Warnings: 1, Unknown: 3,
		},
		Items: items, Layers: layers, Nodes: nodes, Allocation: shares(),
		Edges: []finding.Edge{
			{From: 1, To: 4}, {From: 1, To: 5}, {From: 4, To: 5}, {From: 4, To: 6}, {From: 6, To: 7}, {From: 7, To: 8},
			{From: 5, To: 9}, {From: 4, To: 10}, {From: 1, To: 8},
		},
		Unknown: []engine.Unknown{
			{
				Check: "rt.unparsable", Layer: finding.LayerRuntime, Object: node("gpu-3"),
				Why: "not asked for: according to the API it looks healthy, or like others that were read (--all-gpu-nodes reads it too)",
			},
			{
				Check: "drv.nouveau", Layer: finding.LayerDriver, Object: node("gpu-3"),
				Why: "not asked for: according to the API it looks healthy, or like others that were read (--all-gpu-nodes reads it too)",
			},
			{
				Check: "drv.persistence", Layer: finding.LayerDriver, Object: node("gpu-3"),
				Why: "not asked for: according to the API it looks healthy, or like others that were read (--all-gpu-nodes reads it too)",
			},
			{
				Check: "op.versions", Layer: finding.LayerOperator, Object: finding.Object{Kind: "Cluster"},
				Why: "helm: secrets is forbidden: User \"sre\" cannot list resource \"secrets\"",
			},
		},
	}
}

func healthy() doctor.Report {
	r := twoContainerds()
	r.Items, r.Edges, r.Unknown, r.Allocation = []finding.Finding{}, nil, nil, nil
	r.Summary = doctor.Summary{Nodes: 5, GPUNodes: 3, NodesRead: 3, GPUPods: 7, Checks: 85}
	for i := range r.Layers {
		r.Layers[i] = doctor.LayerResult{Layer: r.Layers[i].Layer, Checks: 7, Passed: 7}
	}
	for i := range r.Nodes {
		for _, l := range finding.Layers() {
			r.Nodes[i].Layers[l] = doctor.Good
		}
	}
	return r
}

func written(t *testing.T, text Text, r doctor.Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := text.Write(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// What people read: roots first, with what follows from them folded; then warnings, what was not seen, and the layers.
func TestTextReport(t *testing.T) {
	t.Parallel()
	golden.Compare(t, "report.golden", written(t, Text{Width: 100}, twoContainerds()))
	golden.Compare(t, "report-80.golden", written(t, Text{Width: 80}, twoContainerds()))
	golden.Compare(t, "report-wide.golden", written(t, Text{Width: 100, Wide: true}, twoContainerds()))
	golden.Compare(t, "report-color.golden", written(t, Text{Width: 100, Color: true}, twoContainerds()))
	golden.Compare(t, "healthy.golden", written(t, Text{Width: 100}, healthy()))
}

// At every width all lines but quotations and commands, which stay in one piece, fit.
func TestTextFitsItsWidth(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(written(t, Text{Width: 80}, twoContainerds())) {
		line = strings.TrimSuffix(line, "\n")
		if len([]rune(line)) > 80 && !strings.HasPrefix(line, "      ") &&
			strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("wider than 80 columns: %q", line)
		}
		if strings.TrimRight(line, " ") != line {
			t.Errorf("blanks at the end: %q", line)
		}
	}
}

// A command is there exactly as it is to be pasted, whatever the width.
func TestCommandsAreInOnePiece(t *testing.T) {
	t.Parallel()
	for width := range 120 {
		text := written(t, Text{Width: width}, twoContainerds())
		for _, command := range twoContainerds().Items[1].Fix.Commands {
			if !strings.Contains(text, command+"\n") {
				t.Fatalf("at width %d this command is broken: %s", width, command)
			}
		}
	}
}

func TestHeadlines(t *testing.T) {
	t.Parallel()
	one := twoContainerds()
	one.Items, one.Edges = one.Items[1:2], nil
	both := twoContainerds()
	both.Items, both.Edges = both.Items[1:3], nil
	onlyWarning := twoContainerds()
	onlyWarning.Items, onlyWarning.Edges = onlyWarning.Items[2:3], nil
	blind := healthy()
	blind.Summary.Unknown = 4
	none := healthy()
	none.Summary.GPUNodes, none.Summary.GPUPods = 0, 0
	others := none
	others.Summary.OtherPods = 2
	for want, r := range map[string]doctor.Report{
		"no problem found, but the checks of nodes and drivers are only for NVIDIA GPUs; 2 pods requested other accelerators": others,
		"1 problem: the NVIDIA toolkit configures a containerd that the kubelet does not use":                                 one,
		"1 problem: the NVIDIA toolkit configures a containerd that the kubelet does not use (and 1 warning)":                 both,
		"2 problems and 1 warning": twoContainerds(),
		"1 warning: persistence mode is off, so that the driver is loaded anew for each job": onlyWarning,
		"no problem found": healthy(),
		"no problem found, but not everything could be checked":    blind,
		"no NVIDIA GPUs: no node has one, and no pod requests one": none,
	} {
		if got := Headline(r); got != want {
			t.Errorf("headline %q, wanted %q", got, want)
		}
	}
}

// hostile is text that wants to command the terminal, or to look like something else.
const hostile = "a\x1b[2Jb\x07\u009b31mc\u202ed\x7f\r\nnext <script>alert(1)</script> \"'><img src=x onerror=alert(1)></style></script>\u2028 \xff"

func hostileReport() doctor.Report {
	r := twoContainerds()
	for i := range r.Items {
		f := &r.Items[i]
		f.Title, f.Object.Name, f.Fix.Text, f.Fix.Values = f.Title+hostile, hostile, hostile, hostile
		f.Objects, f.Fix.Commands = nil, []string{"kubectl get " + hostile}
		f.Evidence = []finding.Evidence{{Source: hostile, Text: hostile + strings.Repeat("x", 1<<20)}}
		f.Doc = "javascript:alert(1)"
	}
	for i := range r.Unknown {
		r.Unknown[i].Why, r.Unknown[i].Object.Name = hostile, hostile
	}
	r.Nodes[0].Node, r.Snapshot.Context = hostile, hostile
	return r
}

// poisoned returns a report in which everything that is text is hostile too, but for the severities: they say where a
// finding is shown.
func poisoned() doctor.Report {
	r := twoContainerds()
	var poison func(v reflect.Value)
	poison = func(v reflect.Value) {
		switch {
		case !v.CanSet() || v.Type() == reflect.TypeFor[finding.Severity]():
		case v.Kind() == reflect.String:
			v.SetString(v.String() + hostile)
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				poison(v.Field(i))
			}
		case v.Kind() == reflect.Slice:
			for i := range v.Len() {
				poison(v.Index(i))
			}
		case v.Kind() == reflect.Pointer && !v.IsNil():
			poison(v.Elem())
		}
	}
	poison(reflect.ValueOf(&r).Elem())
	return r
}

// Nothing of the cluster's own words can reach the terminal raw, or act in a page, in any format.
func TestHostileTextIsHarmless(t *testing.T) {
	t.Parallel()
	r := hostileReport()
	checks := []engine.Check{{ID: "rt.wrong-instance", Layer: finding.LayerRuntime, Title: "x"}}
	outputs := map[string]func(*bytes.Buffer) error{
		"text":  func(b *bytes.Buffer) error { return Text{Width: 80}.Write(b, r) },
		"wide":  func(b *bytes.Buffer) error { return Text{Wide: true}.Write(b, r) },
		"junit": func(b *bytes.Buffer) error { return JUnit(b, r, checks, Gate{FailOn: finding.Error, Strict: true}) },
		"sarif": func(b *bytes.Buffer) error {
			return SARIF(b, r, checks, Gate{FailOn: finding.Error, Strict: true}, "v1")
		},
		"html": func(b *bytes.Buffer) error { return HTML(b, r, "v1") },
	}
	for format, write := range outputs {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		for i, c := range out.String() {
			if printer.IsDangerous(c) && c != '\n' && c != '\t' {
				t.Errorf("%s has a raw %U at %d: %q", format, c, i, out.String()[max(0, i-40):i+4])
				break
			}
		}
		if format == "html" &&
			(strings.Contains(out.String(), "<script>alert") || strings.Contains(out.String(), `href="javascript`)) {
			t.Error("a script of the cluster's got into the page")
		}
		if format != "sarif" && out.Len() > 400_000 {
			t.Errorf("%s has %d bytes: long lines are not cut", format, out.Len())
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	r := Filter{Min: finding.Error}.Apply(twoContainerds())
	if len(Roots(r, finding.Error)) != 2 || len(Roots(r, finding.Warning)) != 0 || len(Roots(r, finding.Info)) != 0 {
		t.Errorf("roots at error and above are wanted, and got %v", Names(r))
	}
	if got := len(Consequences(r, 0)); got != 7 {
		t.Errorf("a root that is shown has its %d consequences, not 7", got)
	}
	for _, e := range r.Edges {
		if e.From >= len(r.Items) || e.To >= len(r.Items) || r.Items[e.To].Root {
			t.Errorf("edge %v does not fit the items", e)
		}
	}
	if r.Summary.Errors != 2 || r.Summary.Warnings != 0 {
		t.Errorf("summary counts %+v", r.Summary)
	}
	r = Filter{Namespace: "ml"}.Apply(twoContainerds())
	if names := strings.Join(Names(r), " "); strings.Contains(names, "wl.idle-holder") ||
		!strings.Contains(names, "rt.wrong-instance") {
		t.Errorf("-n ml hides workloads of other namespaces and nothing else, and shows %s", names)
	}
}

// With -n what is only another namespace's is left out in all its forms; what leads to something on nodes, or here, is
// not.
func TestFilterOfNamespaces(t *testing.T) {
	t.Parallel()
	found := func(id string, layer finding.Layer, o finding.Object, root bool) finding.Finding {
		return finding.Finding{ID: id, Layer: layer, Severity: finding.Error, Object: o, Root: root}
	}
	r := Filter{Namespace: "ml"}.Apply(doctor.Report{
		Items: []finding.Finding{
			found("img.pull-network", finding.LayerNetwork, pod("other", "a"), true),
			found("img.pull-auth", finding.LayerNetwork, pod("gpu-operator", "plugin"), true),
			found("net.dns", finding.LayerNetwork, pod("ml", "a"), true),
			found("rc.handler-mismatch", finding.LayerCluster,
				finding.Object{Kind: "ReplicaSet", Namespace: "other", Name: "r"}, true),
			found("node.not-ready", finding.LayerCluster, finding.Object{Kind: "Node", Name: "n"}, true),
			found("wl.pod-failing", finding.LayerWorkload, pod("other", "a"), false),
			found("dp.capacity-zero", finding.LayerDevicePlugin, finding.Object{Kind: "Node", Name: "n"}, false),
		},
		Edges: []finding.Edge{{From: 0, To: 5}, {From: 1, To: 6}},
		Unknown: []engine.Unknown{
			{Check: "a", Object: pod("other", "a"), Why: "x"}, {Check: "b", Object: pod("ml", "a"), Why: "x"},
			{Check: "c", Why: "x"},
		},
	})
	var roots, unknown []string
	for _, f := range r.Items {
		if f.Root {
			roots = append(roots, f.ID)
		}
	}
	for _, u := range r.Unknown {
		unknown = append(unknown, u.Check)
	}
	slices.Sort(roots)
	if got := strings.Join(roots, " "); got != "img.pull-auth net.dns node.not-ready" {
		t.Errorf("-n ml shows %s", got)
	}
	if got := strings.Join(unknown, " "); got != "b c" {
		t.Errorf("-n ml says of what could not be seen: %s", got)
	}
}

// shares returns who holds the GPUs of three nodes.
func shares() *scheduler.AllocationView {
	holder := func(namespace, pod string, n int64) scheduler.Holder {
		return scheduler.Holder{
			Namespace: namespace, Pod: pod, Resource: "nvidia.com/gpu", GPUs: n, Phase: "Running", Age: "3h",
		}
	}
	gpus := func(capacity, healthy, used int64) []scheduler.ResourceCounts {
		return []scheduler.ResourceCounts{
			{
				Resource: "nvidia.com/gpu", Capacity: capacity, Allocatable: healthy, Used: used,
				Free: max(0, healthy-used),
			},
		}
	}
	return &scheduler.AllocationView{Nodes: []scheduler.NodeAllocation{
		{Node: "gpu-1", Product: "NVIDIA-H100-80GB-HBM3", Schedulable: true, Resources: gpus(0, 0, 0)},
		{
			Node: "gpu-2", Product: "NVIDIA-H100-80GB-HBM3", Schedulable: false, Resources: gpus(8, 6, 4),
			Holders: []scheduler.Holder{holder("research", "notebook-7", 4)},
		},
		{Node: "gpu-3", Schedulable: true, Resources: gpus(4, 4, 4), Holders: []scheduler.Holder{
			holder("ml", "train-9", 2), holder("ml", "serve-0", 1), holder("ml", "serve-1"+hostileName, 1),
		}},
	}}
}

const hostileName = "\x1b[31m"
