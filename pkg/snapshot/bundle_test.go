package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func custom(kind, name string) []unstructured.Unstructured {
	return []unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": kind, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"n": int64(3), "x": 1.5},
	}}}
}

// full has something of everything, and no secrets.
func full() *Snapshot {
	created := time.Date(2026, 1, 1, 12, 0, 0, 5000, time.UTC)
	booted := created.Add(-time.Hour)
	shared := []byte("version = 2\n")
	return &Snapshot{
		Meta: Meta{
			APIVersion: APIVersion, Kind: Kind, Created: created, Client: "v1", Server: "v1.36.3", Context: "c",
			PodsSeen: 9,
		},
		Nodes: []corev1.Node{{
			ObjectMeta: named("", "a"),
			Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
		}, {ObjectMeta: named("", "b")}},
		Pods: []corev1.Pod{{
			ObjectMeta: named("x", "p"),
			Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
		Namespaces: []corev1.Namespace{{ObjectMeta: named("", "x")}},
		Events: []corev1.Event{
			{ObjectMeta: named("x", "e"), Message: "m", EventTime: metav1.NewMicroTime(created)},
		},
		DaemonSets:     []appsv1.DaemonSet{{ObjectMeta: named("x", "d")}},
		RuntimeClasses: []nodev1.RuntimeClass{{ObjectMeta: named("", "nvidia"), Handler: "nvidia"}},
		ResourceQuotas: []corev1.ResourceQuota{{ObjectMeta: named("x", "q")}},
		LimitRanges:    []corev1.LimitRange{{ObjectMeta: named("x", "l")}},
		ConfigMaps: []corev1.ConfigMap{{
			ObjectMeta: named("x", "cm"),
			Data:       map[string]string{"config.yaml": "version: v1\nsharing:\n  timeSlicing: {}\n"},
		}},
		NetworkPolicies: []networkingv1.NetworkPolicy{{
			ObjectMeta: named("x", "np"),
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			},
		}},
		Services: []corev1.Service{{ObjectMeta: named("x", "svc"), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"a": "b"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}},
		ResourceSlices:  []resourcev1.ResourceSlice{{ObjectMeta: named("", "s")}},
		ResourceClaims:  []resourcev1.ResourceClaim{{ObjectMeta: named("x", "rc")}},
		DeviceClasses:   []resourcev1.DeviceClass{{ObjectMeta: named("", "gpu.nvidia.com")}},
		ClusterPolicies: custom("ClusterPolicy", "cp"), NVIDIADrivers: custom("NVIDIADriver", "nd"),
		ComputeDomains: custom("ComputeDomain", "cd"), ServiceMonitors: custom("ServiceMonitor", "sm"),
		Prometheuses: custom("Prometheus", "pr"), Queues: custom("Queue", "q"), Queued: custom("Workload", "w"),
		CRDs: []string{"clusterpolicies.nvidia.com"},
		HelmReleases: []HelmRelease{{
			Namespace: "g", Name: "gpu-operator", Chart: "gpu-operator", Revision: 2,
			Values: map[string]any{"n": int64(3), "toolkit": map[string]any{"enabled": true}},
		}},
		Logs: []Log{
			{Namespace: "x", Pod: "p", Container: "c", Head: true, Text: "device: cpu\n"},
			{Namespace: "x", Pod: "p", Container: "c", Text: "text\xff\n" + strings.Repeat("a", 1<<20)},
			{Namespace: "x", Pod: "p", Container: "c", Previous: true},
		},
		Images: map[string]Image{"r/i:1": {Platforms: []string{"linux/amd64"}}, "r/j": {Error: "away"}},
		Runs: []Run{{ID: "xid-1", Fault: "xid", Created: created,
			Targets: []Target{{Kind: "Node", Name: "a", Permanent: true,
				Evidence: []RunEvidence{{Source: "sequence 3", Time: created, Text: "NVRM"}}}}}},
		Missing: []Missing{{What: "api/events", Why: "forbidden"}},
		Hosts: map[string]*api.Diagnosis{
			"a": {
				Info: api.Info{Hostname: "a", KernelRelease: "6.8"},
				Runtime: api.Runtime{
					Kubelet: api.Kubelet{PID: 3},
					Instance: &api.Instance{PID: 4, ConfigPath: "/etc/containerd/config.toml", CRI: &cri.Info{
						Name: "containerd", Config: json.RawMessage(`{"a":1}`),
					}, Files: []api.ConfigFile{
						{Path: "/etc/containerd/config.toml", Data: shared},
						{Path: "/etc/containerd/empty.toml", Data: []byte{}}, {Path: "/etc/containerd/none.toml"},
						{Path: "odd/../path", Data: []byte("x")},
					}},
					Decoys: []api.Instance{{Files: []api.ConfigFile{
						{Path: "/etc/containerd/config.toml", Data: []byte("another root's\n")},
						{Path: "/etc/containerd/empty.toml", Data: []byte{}},
					}}},
				},
				Probe: api.Probe{Time: created, Uptime: time.Hour, OS: map[string]string{"ID": "ubuntu"}},
				SMI:   "<nvidia_smi_log/>\n",
				KernelLog: []api.KernelRecord{
					{
						Sequence: 7, Uptime: 2500 * time.Millisecond, Time: booted.Add(2500 * time.Millisecond),
						Priority: 4, Text: "NVRM: a;b",
					},
					{
						Sequence: 9, Uptime: 3 * time.Second, Time: booted.Add(3 * time.Second), Priority: 14,
						Text: "two\nlines\r and \\x0a, \xff",
					},
				},
				Journals: map[string]string{"kubelet.service": "l\n", "snap.k8s.containerd.service": ""},
			},
			"b": {},
		},
	}
}

func same(t *testing.T, want, got *Snapshot) {
	t.Helper()
	diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
		cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
		cmp.Comparer(func(a, b metav1.Time) bool { return a.Equal(&b) }),
		cmp.Comparer(func(a, b metav1.MicroTime) bool { return a.Equal(&b) }),
		cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
	)
	if diff != "" {
		t.Errorf("the snapshot changed on its way (-want +got):\n%s", diff)
	}
}

func written(t *testing.T, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What is diagnosed from a bundle must be what would have been diagnosed in the cluster.
func TestBundleHoldsTheWholeSnapshot(t *testing.T) {
	t.Parallel()
	data := written(t, full())
	if !bytes.Equal(data, written(t, full())) {
		t.Error("the same snapshot made two different bundles")
	}
	file := filepath.Join(t.TempDir(), "bundle.tgz")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	same(t, full(), got)
	if !bytes.Equal(data, written(t, got)) {
		t.Error("a bundle of what was read from a bundle is another one")
	}

	folder := unpack(t, data)
	got, err = Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	same(t, full(), got)
}

func unpack(t *testing.T, data []byte) string {
	t.Helper()
	folder := t.TempDir()
	zipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(zipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return folder
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(folder, header.Name)
		content, err := io.ReadAll(entries)
		if err := errors.Join(
			err, os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, content, 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
}

// entry is one entry of an archive that somebody else made.
type entry struct {
	tar.Header
	content string
}

const meta = `{"apiVersion":"gpufault.dev/v1alpha1","kind":"Snapshot","created":"2026-01-01T12:00:00Z"}`

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zipped)
	for _, e := range entries {
		if e.Typeflag == 0 {
			e.Typeflag = tar.TypeReg
		}
		if e.Size == 0 && e.Typeflag == tar.TypeReg {
			e.Size = int64(len(e.content))
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Flush() // it fails where an entry is shorter than it says
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plain(name, content string) entry { return entry{tar.Header{Name: name}, content} }

// A folder that was packed again, with its own name and what an editor left, is still a bundle.
func TestBundleOfAFolderIsRead(t *testing.T) {
	t.Parallel()
	data := archive(t,
		entry{tar.Header{Name: "./", Typeflag: tar.TypeDir}, ""},
		entry{tar.Header{Name: "case-17/", Typeflag: tar.TypeDir}, ""},
		plain("case-17/snapshot.json", meta), plain("case-17/api/nodes.json", `{"items":[{"metadata":{"name":"a"}}]}`),
		plain("case-17/.api.swp", "x"), plain("case-17/api/nodes.json", `{"items":[{"metadata":{"name":"again"}}]}`),
		entry{tar.Header{Name: "case-17/api/pods.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ""},
		entry{tar.Header{Name: "case-17/api/events.json", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}, ""},
	)
	s, err := readBundle(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 1 || s.Nodes[0].Name != "a" {
		t.Errorf("nodes are %+v: of two files with one name the first counts", s.Nodes)
	}
}

// A bundle comes from a stranger: it must not reach outside, hang, or fill the memory, and the message must say what to
// do.
func TestHostileBundles(t *testing.T) {
	t.Parallel()
	good := written(t, full())
	zeros := func(name string, mib int) entry { return plain(name, strings.Repeat("\x00", mib<<20)) }
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"traversal": {
			archive(t, plain("snapshot.json", meta), plain("nodes/../../../tmp/x", "")), "invalid file name",
		},
		"absolute":        {archive(t, plain("/etc/passwd", "")), "invalid file name"},
		"truncated":       {good[:len(good)/2], "truncated: copy the file again"},
		"without its end": {good[:len(good)-4], "truncated: copy the file again"},
		"one bit":         {append(bytes.Clone(good[:len(good)-6]), 1, 2, 3, 4, 5, 6), "corrupt"},
		"not gzip":        {[]byte("hello world, I am a text"), "not a tar.gz"},
		"empty":           {nil, "not a tar.gz"},
		"gzip of a text":  {zip(t, strings.Repeat("no tar ", 200)), "corrupt"},
		"something else":  {archive(t, plain("README.md", "x")), "snapshot.json not found"},
		"garbage": {
			archive(t, plain("snapshot.json", meta), plain("api/pods.json", "{")), `"api/pods.json" cannot be parsed`,
		},
		"newer": {
			archive(t, plain("snapshot.json", strings.Replace(meta, "v1alpha1", "v1", 1))),
			"use a newer version of this tool",
		},
		"a file of 10 GB": {
			archive(t, plain("snapshot.json", meta), entry{tar.Header{Name: "api/pods.json", Size: 10 << 30}, "{"}),
			`"api/pods.json" is larger than 256 MiB`,
		},
		"a large YAML": {archive(t, plain("snapshot.json", meta), zeros("api/pods.yaml", 33)), "larger than 32 MiB"},
		"a bomb": {
			archive(t, plain("snapshot.json", meta), entry{tar.Header{Name: "other", Size: 10 << 30}, ""}),
			"truncated",
		},
		"too many small": {archive(t, many(maxEntries+1)...), "more than 200000 files"},
		"no regular length": {
			archive(t, entry{tar.Header{Name: strings.Repeat("n/", 4000) + "x"}, ""}), "snapshot.json not found",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readBundle(bytes.NewReader(test.data))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, wanted it to say %q", err, test.want)
			}
			if strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 600 {
				t.Errorf("the message is not fit to print: %q", err)
			}
		})
	}
}

func many(n int) []entry {
	all := make([]entry, n)
	for i := range all {
		all[i] = plain(fmt.Sprintf("f%d", i), "")
	}
	return all
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A megabyte that unpacks to a terabyte ends at the limit, and none of it is held.
func TestZipBombEnds(t *testing.T) {
	t.Parallel()
	zeros := &endless{}
	limited := &limitedReader{r: zeros, left: maxTotal}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := io.Copy(io.Discard, limited)
	runtime.ReadMemStats(&after)
	if err == nil || zeros.read > maxTotal {
		t.Fatalf("%v after %d bytes, wanted an error at %d", err, zeros.read, maxTotal)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 512<<20 {
		t.Errorf("%d MiB were allocated to pass over what is not wanted", grown>>20)
	}
}

type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read += int64(len(p))
	return len(p), nil
}

// A folder may have been unpacked from a stranger's archive, links and all.
func TestFolderWithLinks(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "secret.json")
	folder := t.TempDir()
	err := errors.Join(
		os.WriteFile(outside, []byte(`{"items":[{"metadata":{"name":"outside"}}]}`), 0o600),
		os.WriteFile(filepath.Join(folder, "snapshot.json"), []byte(meta), 0o600),
		os.Mkdir(filepath.Join(folder, "api"), 0o700),
		os.Symlink(outside, filepath.Join(folder, "api", "nodes.json")),
		os.Symlink("/dev/zero", filepath.Join(folder, "api", "pods.json")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Open(folder); err == nil && len(s.Nodes) > 0 {
		t.Error("a link led out of the folder")
	}
}

// Whatever the bytes are: an error or a snapshot, and no panic.
func FuzzBundle(f *testing.F) {
	var b bytes.Buffer
	if err := Write(&b, full()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		if s, err := readBundle(bytes.NewReader(data)); err == nil {
			_ = Write(io.Discard, s)
		}
	})
}

// A file of any content, under each name of the layout.
func FuzzRead(f *testing.F) {
	f.Add("api/pods.json",
		`{"items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}]}`)
	f.Add("api/clusterpolicies.yaml", "a: &a [1]\nb: *a\n---\nmetadata: 3\n")
	f.Add("nodes/a/runtime.json",
		`{"instance":{"files":[{"path":"/x","data":"eA=="}],"cri":{"config":{"registry":{"auth":"x"}}}}}`)
	f.Add("api/crds.json", `[1]`)
	f.Add("helm.json", `[{"values":{"env":[{"name":"A_TOKEN","value":"x"}]}}]`)
	f.Fuzz(func(t *testing.T, name, content string) {
		r := newReader()
		if r.add(name, int64(len(content)), strings.NewReader(content)) != nil {
			return
		}
		s, err := r.finish()
		if err != nil {
			return
		}
		s.Meta.Kind = Kind
		var b bytes.Buffer
		if err := Write(&b, s); err != nil {
			return // names that no file can have
		}
		if _, err := readBundle(&b); err != nil {
			t.Fatalf("%s with %q was read and written, and cannot be read again: %v", name, content, err)
		}
	})
}
