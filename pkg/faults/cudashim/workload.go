// Package cudashim delivers the CUDA shim into the pod templates of any workload, and takes it out again exactly.
//
// A workload is whatever object has pod templates: Kubernetes' own kinds, and custom resources in which pod templates
// are located. What is added is a list of edits with the value before and the value of ours; the list is in the ledger
// before the first change, and the undo is three-way: it takes back only what still is as we left it.
//
// All changes are JSON patches with tests, also where server-side apply could do it. Server-side apply refuses
// templates that the API server accepts (an environment variable given twice), owns whole lists where a schema has no
// list keys (nodeSelectorTerms, most custom resources), and cannot give a value back that it took over: released by its
// last manager it is deleted. With patches one path serves all kinds, and the managed fields are put back after the
// undo: see ownership.go.
package cudashim

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// FieldManager is who changes workloads for this tool: the API server keeps its name with every field.
const FieldManager = ledger.ManagedBy

// Where the shim is in a pod.
const (
	LibraryDir = "/gpu-fault/lib" // the ConfigMap's volume, read-only
	RunDir     = "/gpu-fault/run" // an emptyDir, which survives container restarts
	// below LibraryDir, or one folder deeper on clusters of several architectures
	LibraryName = "libgpufault.so"
	Executable  = LibraryDir + "/" + LibraryName // on clusters of one architecture
	NodeVar     = "GPU_FAULT_NODE"               // the node's name
	PreloadVar  = "LD_PRELOAD"                   // ld.so(8)
	AuditVar    = "LD_AUDIT"                     // rtld-audit(7)
	StateKey    = "state"                        // of the ConfigMap, and its file's name below LibraryDir
	volumeLib   = "gpu-fault-lib"                // names of volumes
	volumeRun   = "gpu-fault-run"                //
	refreshedAt = "gpufault.dev/refreshed"       // the annotation by which the kubelet is made to look at a pod
)

// Cluster is what workloads are found in and changed by.
type Cluster struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Mapper knows kinds and short names: that of kubectl's connection flags.
	Mapper meta.RESTMapper
	// Conflicts is how often, and with which pauses, a write is tried against others; zero means 12 times within some
	// 10 seconds.
	Conflicts wait.Backoff
}

// Workload is an object with pod templates.
type Workload struct {
	Object    *unstructured.Unstructured
	Resource  schema.GroupVersionResource
	Templates []Template // never empty
	// Asked is what the user named, where its owner is what can be changed: "pod/web-0".
	Asked string
	// Above names an owner without pod templates, which may undo changes: "trainjob.trainer.kubeflow.org/x". Else
	// empty.
	Above string
}

// Ref names the workload as kubectl does: deployment.apps/web.
func (w *Workload) Ref() string { return refOf(w.Object) }

// Target returns the workload in the ledger.
func (w *Workload) Target() ledger.Target {
	return ledger.Target{
		Kind: w.Object.GetKind(), Namespace: w.Object.GetNamespace(), Name: w.Object.GetName(),
		UID: string(w.Object.GetUID()),
	}
}

func refOf(object *unstructured.Unstructured) string {
	return ref(object.GetAPIVersion(), object.GetKind(), object.GetName())
}

func ref(apiVersion, kind, name string) string {
	text := strings.ToLower(kind)
	if group, _, grouped := strings.Cut(apiVersion, "/"); grouped {
		text += "." + group
	}
	return text + "/" + name
}
