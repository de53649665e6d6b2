package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
)

// Write writes the snapshot as a bundle: a tar.gz file with the layout in README.md, without secrets (see Redact). The
// same snapshot always produces the same bytes. Open returns an equal snapshot, except for secrets.
func Write(w io.Writer, s *Snapshot) error {
	zipped := gzip.NewWriter(w)
	b := &bundle{tar: tar.NewWriter(zipped), walker: redact.NewWalker(), time: s.Meta.Created}
	b.all(s)
	if b.err != nil {
		return fmt.Errorf("write the snapshot: %w", b.err)
	}
	if err := b.tar.Close(); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	if err := zipped.Close(); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return nil
}

// bundle writes files until a write fails.
type bundle struct {
	tar    *tar.Writer
	walker *redact.Walker
	time   time.Time
	err    error
}

func (b *bundle) all(s *Snapshot) {
	b.some("missing.json", len(s.Missing), func() any { return redactMissing(b.walker, s.Missing) })
	list(b, "nodes", "v1", "Node", s.Nodes)
	list(b, "namespaces", "v1", "Namespace", s.Namespaces)
	list(b, "pods", "v1", "Pod", s.Pods)
	list(b, "events", "v1", "Event", s.Events)
	list(b, "daemonsets", "apps/v1", "DaemonSet", s.DaemonSets)
	list(b, "runtimeclasses", "node.k8s.io/v1", "RuntimeClass", s.RuntimeClasses)
	list(b, "resourcequotas", "v1", "ResourceQuota", s.ResourceQuotas)
	list(b, "limitranges", "v1", "LimitRange", s.LimitRanges)
	list(b, "configmaps", "v1", "ConfigMap", s.ConfigMaps)
	list(b, "networkpolicies", "networking.k8s.io/v1", "NetworkPolicy", s.NetworkPolicies)
	list(b, "services", "v1", "Service", s.Services)
	list(b, "resourceslices", "resource.k8s.io/v1", "ResourceSlice", s.ResourceSlices)
	list(b, "resourceclaims", "resource.k8s.io/v1", "ResourceClaim", s.ResourceClaims)
	list(b, "deviceclasses", "resource.k8s.io/v1", "DeviceClass", s.DeviceClasses)
	b.custom("clusterpolicies", s.ClusterPolicies)
	b.custom("nvidiadrivers", s.NVIDIADrivers)
	b.custom("computedomains", s.ComputeDomains)
	b.custom("servicemonitors", s.ServiceMonitors)
	b.custom("prometheuses", s.Prometheuses)
	b.custom("queues", s.Queues)
	b.custom("queued", s.Queued)
	b.custom("persistentvolumes", s.PersistentVolumes)
	b.custom("persistentvolumeclaims", s.PersistentVolumeClaims)
	b.some("api/crds.json", len(s.CRDs), func() any { return s.CRDs })
	b.some("helm.json", len(s.HelmReleases), func() any { return redactHelm(b.walker, s.HelmReleases) })
	b.some("images.json", len(s.Images), func() any { return redactImages(b.walker, s.Images) })
	b.some("runs.json", len(s.Runs), func() any { return redactRuns(b.walker, s.Runs) })
	for _, l := range s.Logs {
		name := l.Container + ".log"
		switch {
		case l.Previous:
			name = l.Container + ".previous.log"
		case l.Head:
			name = l.Container + ".head.log"
		}
		b.file(path.Join("logs", l.Namespace, l.Pod, name), []byte(b.walker.Text("logs", l.Text)))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		if s.Hosts[name] != nil {
			b.host("nodes/"+name, redactHost(b.walker, s.Hosts[name]))
		}
	}
	meta := s.Meta
	meta.APIVersion, meta.Kind = APIVersion, Kind
	meta.Redacted = maps.Clone(meta.Redacted)
	meta.Server, meta.Context = b.walker.Text("meta", meta.Server), b.walker.Text("meta", meta.Context)
	meta.count(b.walker.Removed)
	b.json("snapshot.json", meta)
}

// host writes the data that the helper read on a node; it may change host.
func (b *bundle) host(folder string, host *api.Diagnosis) {
	b.json(folder+"/info.json", host.Info)
	files := takeFiles(&host.Runtime)
	b.json(folder+"/runtime.json", host.Runtime)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b.file(folder+"/files"+name, files[name])
	}
	b.json(folder+"/probe.json", host.Probe)
	if host.SMI != "" {
		b.file(folder+"/nvidia-smi.xml", []byte(host.SMI))
	}
	if len(host.KernelLog) > 0 {
		b.file(folder+"/kernel.log", []byte(formatKernelLog(host.KernelLog)))
	}
	for _, unit := range slices.Sorted(maps.Keys(host.Journals)) {
		name := strings.ReplaceAll(strings.ToValidUTF8(unit, "_"), "/", "_") // unit names are arbitrary
		b.file(folder+"/journal/"+name+".log", []byte(host.Journals[unit]))
	}
}

// takeFiles removes the contents of files from the runtime and returns them by path. Contents that cannot become files
// in the bundle stay in the runtime, because two runtimes may see different files at the same path, or because a path
// is invalid.
func takeFiles(runtime *api.Runtime) map[string][]byte {
	files := map[string][]byte{}
	take := func(instance *api.Instance) {
		for i := range instance.Files {
			f := &instance.Files[i]
			if f.Data == nil || !strings.HasPrefix(f.Path, "/") || f.Path != path.Clean(f.Path) ||
				!fs.ValidPath(f.Path[1:]) || f.Path == "/" {
				continue
			}
			if other, taken := files[f.Path]; taken && !bytes.Equal(other, f.Data) {
				continue
			}
			files[f.Path] = f.Data
			f.Data = nil
		}
	}
	if runtime.Instance != nil {
		take(runtime.Instance)
	}
	for i := range runtime.Decoys {
		take(&runtime.Decoys[i])
	}
	return files
}

// list writes objects in the format of `kubectl get --raw`, one per line.
func list[T any, P interface {
	typed[T]
	DeepCopy() *T
}](b *bundle, resource, apiVersion, kind string, all []T) {
	b.list(resource, metav1.TypeMeta{APIVersion: apiVersion, Kind: kind + "List"}, len(all), func(i int) any {
		object := P(P(&all[i]).DeepCopy())
		redactObject(b.walker, resource, object)
		return object
	})
}

func (b *bundle) custom(resource string, all []unstructured.Unstructured) {
	b.list(resource, metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, len(all), func(i int) any {
		object := all[i].DeepCopy()
		redactObject(b.walker, resource, object)
		return object.Object
	})
}

func (b *bundle) list(resource string, kind metav1.TypeMeta, n int, item func(int) any) {
	if n == 0 || b.err != nil {
		return
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\"apiVersion\":%q,\"kind\":%q,\"items\":[\n", kind.APIVersion, kind.Kind)
	for i := range n {
		data, err := json.Marshal(item(i))
		if err != nil {
			b.err = err
			return
		}
		if i > 0 {
			out.WriteString(",\n")
		}
		out.Write(data)
	}
	out.WriteString("\n]}\n")
	b.file("api/"+resource+".json", out.Bytes())
}

// some writes a file only if it is not empty.
func (b *bundle) some(name string, n int, content func() any) {
	if n > 0 {
		b.json(name, content())
	}
}

func (b *bundle) json(name string, content any) {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%s: %w", name, err)
	}
	b.file(name, append(data, '\n'))
}

func (b *bundle) file(name string, data []byte) {
	if b.err != nil {
		return
	}
	if !fs.ValidPath(name) {
		b.err = fmt.Errorf("invalid file name %q", cut(name))
		return
	}
	header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: b.time, Format: tar.FormatPAX}
	if b.err = b.tar.WriteHeader(header); b.err == nil {
		_, b.err = b.tar.Write(data)
	}
}
