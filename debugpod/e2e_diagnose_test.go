//go:build e2e

package debugpod_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	testcluster "github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// TestDiagnose holds that Diagnose sees the node that it is on: facts that the API server and we ourselves know of it.
func TestDiagnose(t *testing.T) {
	c := connect(t)
	// A test before this one may have ended containerd: what the kubelet says of it comes with its next status.
	testcluster.Eventually(t, time.Minute, "the API server knows the version of the node's containerd",
		func() (bool, string) {
			now, err := c.client.CoreV1().Nodes().Get(t.Context(), c.node.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			c.node = now
			said := now.Status.NodeInfo.ContainerRuntimeVersion
			return !strings.HasSuffix(said, "Unknown"), said
		})
	session := c.start(t, "diagnose")
	line := fmt.Sprintf("NVRM: Xid (PCI:0000:2f:00): 31, gpu-fault-e2e diagnose %d", time.Now().UnixNano())
	written, err := session.WriteKmsg(t.Context(),
		api.WriteKmsg{Records: []api.KmsgRecord{{Data: "<4>" + line + "\n"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	found, err := session.Diagnose(t.Context(), api.Diagnose{Units: []string{"nosuch.service"}})
	if err != nil {
		t.Fatal(err)
	}
	p, info := found.Probe, c.node.Status.NodeInfo
	t.Logf("unread: %v", p.Unread)
	t.Logf("probe: %+v", p)
	if name := p.OS["PRETTY_NAME"]; name != info.OSImage {
		t.Errorf("the node's system is %q, the API says %q", name, info.OSImage)
	}
	if found.Info.KernelRelease != info.KernelVersion || found.Info.BootID != info.BootID || len(found.Info.GPUs) == 0 {
		t.Errorf("not this node: %+v", found.Info)
	}
	instance := found.Runtime.Instance
	if instance == nil || instance.PID == 0 ||
		"containerd://"+strings.TrimPrefix(instance.Release, "v") != info.ContainerRuntimeVersion {
		t.Fatalf("the container runtime is %+v (%s), the API says %s", instance, found.Runtime.Problem,
			info.ContainerRuntimeVersion)
	}
	if p.CgroupVersion != 1 && p.CgroupVersion != 2 {
		t.Errorf("version %d of cgroups: %s", p.CgroupVersion, p.Unread["cgroupVersion"])
	}
	if p.KubeletConfig["cgroupDriver"] != found.Runtime.Kubelet.CgroupDriver || p.KubeletConfig["cgroupDriver"] == "" {
		t.Errorf("the kubelet's configuration: %v; its cgroup driver is %q", p.KubeletConfig,
			found.Runtime.Kubelet.CgroupDriver)
	}
	if p.Driver.Kernel != found.Info.DriverVersion || len(p.Devices) < len(found.Info.GPUs)+1 {
		t.Errorf("the driver is %+v, with the devices %+v; Inspect says %s", p.Driver, p.Devices,
			found.Info.DriverVersion)
	}
	checkSockets(t, p.DevicePlugins)
	if len(p.Filesystems) < 2 ||
		slices.ContainsFunc(
			p.Filesystems, func(f api.Filesystem) bool { return f.Bytes == 0 || f.FreeBytes > f.Bytes },
		) {
		t.Errorf("file systems: %+v", p.Filesystems)
	}
	if age := time.Since(p.Time); age < 0 || age > 10*time.Second || p.Uptime <= 0 {
		t.Errorf("asked at %v, %v after boot", p.Time, p.Uptime)
	}
	at := slices.IndexFunc(found.KernelLog, func(r api.KernelRecord) bool { return r.Text == line })
	if at < 0 {
		t.Fatalf("the injected line is not among %d records of the kernel log", len(found.KernelLog))
	}
	record := found.KernelLog[at]
	if record.Sequence != written[0].Sequence || record.Priority != 1<<3|4 || record.Uptime != written[0].Uptime {
		t.Errorf("it is %+v, and was written as %+v", record, written[0])
	}
	if off := record.Time.Sub(written[0].Time).Abs(); off > 2*time.Second {
		t.Errorf("its time is %v off", off)
	}
	if found.SMI == "" && p.SMIError == "" {
		t.Error("nothing is said of nvidia-smi")
	}
	if _, ok := found.Journals["nosuch.service"]; ok {
		t.Error("there is a journal of a unit that does not exist")
	}
	if len(found.Journals) == 0 && p.Unread["journals"] == "" {
		t.Error("nothing is said of the journals")
	}
}

// checkSockets holds that the kubelet's own socket is seen, and that somebody listens there.
func checkSockets(t *testing.T, sockets []api.Socket) {
	t.Helper()
	const own = "/var/lib/kubelet/device-plugins/kubelet.sock"
	at := slices.IndexFunc(sockets, func(s api.Socket) bool { return s.Path == own })
	if at < 0 || len(sockets) < 2 {
		t.Fatalf("%s, and that of the device plugin, are not both among %+v", own, sockets)
	}
	for _, s := range sockets {
		if s.Listening == nil || !*s.Listening || s.Modified.IsZero() {
			t.Errorf("the cluster is well, and nobody listens at %s, made at %v", s.Path, s.Modified)
		}
	}
}

// TestDiagnoseTakesNoTime holds that a node costs doctor not much more than the debug pod itself does. The two take
// turns, and the fastest of each counts: whatever else the machine does only makes them slower, so it goes on until it
// was left alone for long enough.
func TestDiagnoseTakesNoTime(t *testing.T) {
	c := connect(t)
	measure := func(name string, i int, ask func(*debugpod.Session) error) time.Duration {
		start := time.Now()
		if err := ask(c.start(t, fmt.Sprintf("%s-%d", name, i))); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	var bare, whole []time.Duration
	ratio := 0.0
	for i := 0; i < 5 || ratio > 1.5 && i < 30; i++ {
		bare = append(bare, measure("inspect", i, func(s *debugpod.Session) error {
			_, err := s.Inspect(t.Context(), api.Inspect{})
			return err
		}))
		whole = append(whole, measure("diagnose", i, func(s *debugpod.Session) error {
			_, err := s.Diagnose(t.Context(), api.Diagnose{})
			return err
		}))
		ratio = slices.Min(whole).Seconds() / slices.Min(bare).Seconds()
	}
	t.Logf("pod and Inspect: %v", bare)
	t.Logf("pod and Diagnose: %v", whole)
	t.Logf("%v and %v at best: %.2f times", slices.Min(bare), slices.Min(whole), ratio)
	// 1.2 where little else runs; cores that are shared with others, which what Diagnose does side by side needs, have
	// been seen to make it 1.6.
	if ratio > 2 {
		t.Errorf("Diagnose takes %.2f times as long as the bare debug pod", ratio)
	}
}
