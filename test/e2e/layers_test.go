//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// oneFault is what `xid --layers -o json` prints.
type oneFault struct {
	ID    string
	Nodes []struct {
		Records []struct{ XID, GPU, Text string }
	}
	Layers []struct {
		Layer, Target, State string
		Evidence             []string
	}
}

// atOnce is how soon every reader must see a fault when it is proven, and how long its undo may take.
const atOnce = 5 * time.Second

// statusAtOnce is how soon the node's status must follow the kubelet's record of an unhealthy device.
const statusAtOnce = time.Second

// layers is a workload with one GPU of the worker, whose pod has a CUDA program and a program that waits for XIDs by
// NVML, and a DaemonSet that waits for those of all GPUs of its node, as device plugins do.
type layers struct {
	*cuda
	train  func() *unstructured.Unstructured
	before string
	health func() *appsv1.DaemonSet
	// timed is set by make test-layers: then a reader that is late is as wrong as one that sees nothing. In other runs,
	// tests beside this one may use the processors.
	timed bool
}

func setupLayers(t *testing.T) *layers {
	l := &layers{cuda: setupCUDA(t)}
	d := l.deployment("train", "TRAINER_HEALTH=1", "TRAINER_RESTARTS=100") // so that one log has all that is seen
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: l.worker.Name}
	d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("1"),
	}
	l.train = l.create(d)
	l.healthy("train", 1)
	l.before = asUserSees(t, l.train())
	l.watchHealth()
	return l
}

// watchHealth creates the DaemonSet, in a namespace in which it may read the directories of its node.
func (l *layers) watchHealth() {
	l.t.Helper()
	template := l.template("health", "FAKECUDA_PROC=/driver/nvidia")
	template.Spec.Containers[0].Args = []string{"-health"}
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "driver", MountPath: "/driver", ReadOnly: true},
	}
	template.Spec.Volumes = []corev1.Volume{{
		Name:         "driver",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/proc/driver"}},
	}}
	sets := l.cluster.Client.AppsV1().DaemonSets(l.cluster.Namespace(l.t))
	created, err := sets.Create(l.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "health"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.health = func() *appsv1.DaemonSet {
		l.t.Helper()
		now, err := sets.Get(l.t.Context(), created.Name, metav1.GetOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		return now
	}
	l.watches(patience)
}

// watches waits until the DaemonSet's own pod on the worker watches both GPUs.
func (l *layers) watches(within time.Duration) {
	l.t.Helper()
	cluster.Eventually(l.t, within, "the health of both GPUs is watched", func() (bool, string) {
		text, ours := l.healthLog()
		return !ours && strings.Contains(text, "watching 2 of 2"), text
	})
}

// healthLog returns what the newest pod of the DaemonSet on the worker says, and whether it is that of a run.
func (l *layers) healthLog() (text string, ours bool) {
	l.t.Helper()
	pods := l.cluster.Client.CoreV1().Pods(l.health().Namespace)
	list, err := pods.List(l.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + l.worker.Name})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		data, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{Container: "main"}).DoRaw(l.t.Context())
		if err != nil {
			return err.Error(), false
		}
		return string(data), pod.Labels[ledger.LabelRun] != ""
	}
	return "no pod", false
}

// seenAs is an XID as its readers see it.
type seenAs struct {
	code              string
	running, starting string // by a CUDA program
	nvml              string // a line about a GPU, with its index and what follows
}

// TestOneFaultInEveryLayer is one XID as every reader sees it: the kernel log, the journal, node-problem-detector, the
// node's allocatable GPUs, the status of the pod, device list, a DaemonSet and a program of the pod by NVML, and a CUDA
// program. All of them tell of the same GPU, the one that the program's pod holds; the whole is undone as one run.
// LAYERS_ROUNDS repeats it (make test-layers: ten times for each XID).
func TestOneFaultInEveryLayer(t *testing.T) {
	l := setupLayers(t)
	rounds := 1
	if text := os.Getenv("LAYERS_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		l.timed = true
	}
	idle := l.deployment("idle")
	idle.Spec.Replicas = new(int32(0))
	l.create(idle)
	l.mustSay(l.plugin("xid", "79", l.worker.Name, "--layers", "kernel,cuda", "--workload", "deployment/idle", "-n",
		l.namespace, "--allow-last-gpu-node", "--allow-majority", "--yes"), 1, "deployment/idle does not request a GPU")
	coherent, all := 0, 0
	for _, xid := range []seenAs{
		{"79", "unknown error (999)", "no CUDA-capable device is detected (100)", "NVML: GPU %d %s: GPU is lost (15)"},
		{"48", "uncorrectable ECC error encountered (214)", "", "NVML: Xid=48 on GPU %d %s"},
	} {
		for range rounds {
			all++
			wrong := l.round(xid)
			for _, text := range wrong {
				t.Errorf("XID %s: %s", xid.code, text)
			}
			if len(wrong) == 0 {
				coherent++
			}
		}
	}
	fmt.Printf("layers coherent %d of %d\n", coherent, all)
}

// round injects the XID, asks every reader, and undoes it. It returns what a reader does not see, or sees of another
// GPU.
func (l *layers) round(xid seenAs) (wrong []string) {
	l.t.Helper()
	l.worker.RestartNPD(l.t) // it stops sending Events after 25 about a node
	cursor, began := l.journalCursor(), time.Now()
	defer func() {
		if l.t.Failed() { // other tests need both GPUs
			l.plugin("revert", "--all", "--yes", "--force")
		}
	}()
	var got oneFault
	l.decode(l.ok("xid", xid.code, l.worker.Name, "--layers", "kernel,device,nvml,cuda", "--workload",
		"deployment/train", "-n", l.namespace, "--daemonset", l.health().Namespace+"/health", "--allow-last-gpu-node",
		"--allow-majority", "--yes", "-o", "json").stdout, &got)
	took := time.Since(began)
	wrong = l.incoherent(got, xid, cursor, began.Truncate(time.Second))
	followed := l.statusFollowed(l.runs()[0])
	if l.timed && followed > statusAtOnce {
		wrong = append(wrong, fmt.Sprintf("the node's status followed after %s", followed))
	}
	began = time.Now()
	l.ok("revert", got.ID, "--yes")
	l.healthy("train", 1)
	l.watches(patience)
	cluster.Eventually(l.t, patience, "both GPUs are allocatable", func() (bool, string) {
		n := l.allocatable()
		return n == 2, fmt.Sprint(n)
	})
	undone := time.Since(began)
	l.t.Logf("XID %s: injected and proven in %.1f s, the node's status %.2f s after the kubelet, undone in %.1f s",
		xid.code, took.Seconds(), followed.Seconds(), undone.Seconds())
	if l.timed && undone > atOnce {
		wrong = append(wrong, fmt.Sprintf("undone after %.1f s", undone.Seconds()))
	}
	l.same(l.before, l.train())
	l.nothingLeft()
	l.noPods()
	return wrong
}

// incoherent asks every reader of a fault that has just been proven. Its lines are those of after the cursor of the
// journal and the second in which it began.
func (l *layers) incoherent(got oneFault, xid seenAs, cursor string, began time.Time) (wrong []string) {
	l.t.Helper()
	proven := time.Now()
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, layer := range []string{"cuda", "nvml", "device", "kernel"} {
		if i >= len(got.Layers) || got.Layers[i].Layer != layer || got.Layers[i].State != "proven" {
			add("the layers are %+v", got.Layers)
			return wrong
		}
	}
	if len(got.Nodes) != 1 || len(got.Nodes[0].Records) != 1 || got.Nodes[0].Records[0].XID != xid.code {
		add("the kernel log has %+v", got.Nodes)
		return wrong
	}
	record := got.Nodes[0].Records[0]
	gpu := slices.IndexFunc(l.worker.GPUs, func(g cluster.GPU) bool { return g.PCI == record.GPU })
	if gpu < 0 || !strings.Contains(record.Text, "(PCI:"+record.GPU+"): "+xid.code+",") {
		add("the kernel log has %+v, of no GPU of the node", record)
		return wrong
	}
	line := strings.TrimPrefix(record.Text, "kernel: ") // to journald, that is who says it
	pod := l.pods("train")[0]
	var times []string
	for _, reader := range []struct {
		name string
		sees func() (bool, string)
	}{
		{"allocatable GPUs", func() (bool, string) { n := l.allocatable(); return n == 1, fmt.Sprint(n) }},
		{"status of the pod", func() (bool, string) {
			pod = l.pods("train")[0]
			health := healthOf(&pod)
			return health == string(corev1.ResourceHealthStatusUnhealthy), health
		}},
		{"CUDA program", func() (bool, string) {
			// The running program has ended with the error, and the next one has begun.
			text := l.log(pod, 0)
			return strings.Contains(text, xid.running) && strings.Contains(text, xid.starting), text
		}},
		{"NVML program in the pod", func() (bool, string) {
			text := l.log(pod, 0)
			return strings.Contains(text, fmt.Sprintf(xid.nvml, 0, "00000000:17:00.0")), text // its only one
		}},
		{"NVML loop of the DaemonSet", func() (bool, string) {
			text, ours := l.healthLog()
			address := "0000" + strings.ToUpper(record.GPU) + ".0"
			return ours && strings.Contains(text, fmt.Sprintf(xid.nvml, gpu, address)), text
		}},
		{"journal", func() (bool, string) {
			out := l.worker.Sh(l.t, "journalctl", "-k", "-o", "cat", "--no-pager", "--after-cursor", cursor)
			return strings.Contains(out, line), out
		}},
		{"node-problem-detector", func() (bool, string) { return l.detected(line, began), line }},
	} {
		cluster.Eventually(l.t, soon, "the fault is seen: "+reader.name, reader.sees)
		after := time.Since(proven)
		times = append(times, fmt.Sprintf("%s %.1f s", reader.name, after.Seconds()))
		if l.timed && after > atOnce {
			add("%s: seen %.1f s after the proof", reader.name, after.Seconds())
		}
	}
	l.t.Logf("XID %s, after the proof: %s", xid.code, strings.Join(times, ", "))
	found := false
	for _, d := range l.devices() {
		switch mine := d.Run == got.ID; {
		case mine && (d.Pod != l.namespace+"/"+pod.Name || d.Health == "Healthy" || d.GPU != gpu):
			add("device list: %+v, want GPU %d, that of pod %s", d, gpu, pod.Name)
		case !mine && d.Health != "Healthy":
			add("device list: %+v was not asked for", d)
		default:
			found = found || mine
		}
	}
	if !found {
		add("device list does not show the run")
	}
	return wrong
}

// journalCursor returns where the journal of the worker ends now.
func (l *layers) journalCursor() string {
	l.t.Helper()
	out := l.worker.Sh(l.t, "journalctl", "-k", "-n", "0", "--show-cursor", "--no-pager")
	_, cursor, found := strings.Cut(out, "-- cursor: ")
	if !found {
		l.t.Fatalf("journalctl prints no cursor: %q", out)
	}
	return strings.TrimSpace(cursor)
}

// detected reports whether node-problem-detector has sent an Event about the line since it was started.
func (l *layers) detected(line string, since time.Time) bool {
	l.t.Helper()
	list, err := l.cluster.Client.CoreV1().Events("").List(l.t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + l.worker.Name + ",reason=Xid",
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
		return strings.Contains(e.Message, line) && !e.LastTimestamp.Time.Before(since)
	})
}

// logBefore returns what the container said before it was restarted.
func (c *cuda) logBefore(pod corev1.Pod) string {
	options := &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name, Previous: true}
	text, err := c.cluster.Client.CoreV1().Pods(c.namespace).GetLogs(pod.Name, options).DoRaw(c.t.Context())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestOneGPUOfTwoInEveryLayer holds that a fault of one of the GPUs of a pod is in every layer that of this GPU: a
// program that uses the other one goes on.
func TestOneGPUOfTwoInEveryLayer(t *testing.T) {
	c := setupCUDA(t)
	d := c.deployment("train")
	d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.worker.Name}
	d.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("2"),
	}
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
		MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
	}
	train := c.create(d)
	c.healthy("train", 1)
	before := asUserSees(t, train())
	inject := func(gpu string) result {
		return c.plugin("xid", "79", c.worker.Name, "--gpu", gpu, "--layers", "kernel,device,cuda", "--workload",
			"deployment/train", "-n", c.namespace, "--allow-last-gpu-node", "--allow-majority", "--yes", "-o", "json")
	}
	c.mustSay(inject("2"), 1, "nothing was changed", "has 2 GPUs, with indexes from 0 to 1")
	r := inject("1")
	if r.code != 0 {
		t.Fatalf("exit %d\n%s", r.code, r.stderr)
	}
	var got oneFault
	c.decode(r.stdout, &got)
	for _, device := range c.devices() {
		if (device.GPU == 1) != (device.Run == got.ID) {
			t.Errorf("device list: %+v", device)
		}
	}
	text, address := got.Nodes[0].Records[0].Text, c.worker.GPUs[1].PCI
	if !strings.Contains(text, "(PCI:"+address+")") {
		t.Errorf("the kernel log has %q, want %s", text, address)
	}
	c.healthy("train", 1)
	c.reverted(got.ID, before, train)
}
