// Package cudashim injects the CUDA shim into the pod templates of any workload, and removes it exactly.
//
// A workload is an object with pod templates: Kubernetes' own kinds, and custom resources in which pod templates are
// found. The additions are edits (package kubeedit). They are in the ledger before the first change, and the undo is
// three-way: it reverts only values that have not changed since the injection.
//
// All changes are JSON patches with tests, even if server-side apply could make them. Server-side apply rejects
// templates that the API server accepts (an environment variable that is set twice), owns entire lists if a schema has
// no list keys (nodeSelectorTerms, most custom resources), and cannot return a value that it took over, because a value
// that its last manager releases is deleted. Patches work for all kinds, and the undo restores the managed fields: see
// ownership.go.
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

// FieldManager is the field manager of this tool's changes to workloads.
const FieldManager = ledger.ManagedBy

// Names and paths of the shim in a pod.
const (
	LibraryDir = "/gpu-fault/lib" // the ConfigMap's volume, read-only
	RunDir     = "/gpu-fault/run" // an emptyDir, which survives container restarts
	// in LibraryDir, or one directory deeper in clusters with several architectures
	LibraryName = "libgpufault.so"
	Executable  = LibraryDir + "/" + LibraryName // in clusters with one architecture
	NodeVar     = "GPU_FAULT_NODE"               // the node's name
	PreloadVar  = "LD_PRELOAD"                   // ld.so(8)
	AuditVar    = "LD_AUDIT"                     // rtld-audit(7)
	StateKey    = "state"                        // key of the ConfigMap, and file name in LibraryDir
	volumeLib   = "gpu-fault-lib"                // names of the volumes
	volumeRun   = "gpu-fault-run"                //
	refreshedAt = "gpufault.dev/refreshed"       // the annotation that makes the kubelet synchronize a pod
)

// Cluster finds and changes workloads.
type Cluster struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Mapper maps kinds and short names. It is the mapper from kubectl's connection flags.
	Mapper meta.RESTMapper
	// Conflicts is the backoff for writes that conflict with other clients. Zero means 12 attempts within about 10
	// seconds.
	Conflicts wait.Backoff
}

// Workload is an object with pod templates.
type Workload struct {
	Object    *unstructured.Unstructured
	Resource  schema.GroupVersionResource
	Templates []Template // never empty
	// Asked is the object that the user specified, such as "pod/web-0", if the workload is one of its owners.
	Asked string
	// Above is an owner that has no pod templates but may undo changes, such as "trainjob.trainer.kubeflow.org/x", or
	// empty.
	Above string
}

// Ref formats the name of the workload in kubectl's style: deployment.apps/web.
func (w *Workload) Ref() string { return refOf(w.Object) }

// Target returns the workload as a target in the ledger.
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
