package cuda

import (
	"fmt"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// statusList is the output of `cuda status -o json`.
type statusList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Items      []runStatus `json:"items"`

	now time.Time // used for ages in the table
}

// runStatus is one run and its pods.
type runStatus struct {
	Run       string    `json:"run"`
	Summary   string    `json:"summary"`
	Workload  string    `json:"workload"` // deployment.apps/web
	Namespace string    `json:"namespace"`
	Phase     string    `json:"phase"`            // such as "armed since 14:00:05"
	Until     time.Time `json:"until,omitzero"`   // all calls pass through after this time
	ArmedAt   time.Time `json:"armedAt,omitzero"` // zero while it is disarmed
	// Generation is the generation of the state in the run's ConfigMap. Pods and processes with the same generation
	// have received the latest change.
	Generation uint64      `json:"generation"`
	Pods       []podStatus `json:"pods"`
}

// podStatus is one pod with the shim.
type podStatus struct {
	Name       string   `json:"name"`
	Node       string   `json:"node,omitempty"`
	Containers []string `json:"containers"` // the containers that load the shim
	// State is armed, disarmed, expired, excluded, stale (the kubelet has not refreshed the file yet), or the reason
	// why the pod cannot be queried, such as CrashLoopBackOff or Pending: ...
	State string `json:"state"`
	// Generation is the generation of the state file in the pod; 0 if the pod cannot be queried.
	Generation uint64 `json:"generation,omitempty"`
	// Problem describes what is wrong with the shim in the pod.
	Problem   string          `json:"problem,omitempty"`
	Processes []processStatus `json:"processes"`
	// Log contains the last lines that the shim wrote to the log, if the pod cannot be queried.
	Log []string `json:"log,omitempty"`
}

// processStatus is one running or terminated process.
type processStatus struct {
	cudafault.Process
	State     string `json:"state"`               // disarmed, armed, tripped, poisoned, expired, excluded (node), ...
	ErrorName string `json:"errorName,omitempty"` // of lastError
	// Former reports whether the process belongs to a previous instance of its container.
	Former bool `json:"former,omitempty"`
}

// statusOf returns the status of a run.
func statusOf(p *inPlace, reports []report, now time.Time) runStatus {
	status := runStatus{
		Run: p.run.ID, Summary: p.run.Summary, Workload: p.data.Ref(), Namespace: p.data.Namespace, Phase: p.phase(now),
		Until:   p.run.Until,
		ArmedAt: p.state.ArmedAt, Generation: p.state.Generation, Pods: []podStatus{},
	}
	for i := range reports {
		status.Pods = append(status.Pods, podOf(p, &reports[i], now))
	}
	return status
}

func podOf(p *inPlace, r *report, now time.Time) podStatus {
	pod := podStatus{
		Name: r.pod.Name, Node: r.pod.Spec.NodeName, Containers: r.containers, State: r.state,
		Processes: []processStatus{}, Log: r.said, Problem: r.trouble,
	}
	if len(r.refused) > 0 {
		pod.Problem = r.refused[len(r.refused)-1]
	}
	if r.asked && r.file != nil {
		pod.State, pod.Generation = fileState(p, *r.file, r.pod.Spec.NodeName, now), r.file.Generation
	}
	if r.missing {
		pod.State = "not loaded"
	}
	since := r.runningSince().Truncate(time.Second)
	for _, process := range r.processes {
		s := processStatus{Process: process, State: statusWord(process.Status), Former: process.Started.Before(since)}
		if process.LastError != 0 {
			s.ErrorName = cudafault.ErrorName(process.LastError)
		}
		pod.Processes = append(pod.Processes, s)
	}
	return pod
}

// fileState returns the state of a pod according to its state file.
func fileState(p *inPlace, file cudafault.State, node string, now time.Time) string {
	switch {
	case file.Run != p.run.ID:
		return fmt.Sprintf("state of run %s", file.Run)
	case !sameArming(file, p.state) && p.state.Generation != 0:
		return "stale"
	case !file.Expires.IsZero() && !now.Before(file.Expires):
		return "expired"
	case file.ArmedAt.IsZero():
		return "disarmed"
	case !file.HasNode(node):
		return "excluded (node)"
	default:
		return "armed"
	}
}

// print writes the list. In a table, each process has a row, as does each pod without processes.
func (l statusList) print(streams genericiooptions.IOStreams, format printer.Format) error {
	l.APIVersion, l.Kind = ledger.APIVersion, "CUDAStatusList"
	if l.now.IsZero() {
		l.now = time.Now()
	}
	if !format.IsTable() {
		var names []string
		for _, run := range l.Items {
			for _, pod := range run.Pods {
				names = append(names, "pod/"+pod.Name)
			}
		}
		return format.Object(streams.Out, l, names...)
	}
	for _, run := range l.Items {
		printer.Talk(streams.ErrOut, "%s: %s on %s in namespace %s; %s%s", run.Run, without(run.Summary), run.Workload,
			run.Namespace, run.Phase, untilOf(run, l.now))
		if len(run.Pods) == 0 {
			printer.Talk(streams.ErrOut,
				"No pod has the shim: the controller has not created one yet, the workload has no replicas, or the shim was removed from the workload.")
		}
	}
	table := l.table(format)
	if len(table.Rows) == 0 {
		return nil
	}
	return table.Write(streams.Out)
}

func untilOf(run runStatus, now time.Time) string {
	switch {
	case run.Until.IsZero():
		return ", until the run is reverted"
	case now.Before(run.Until):
		return ", until " + run.Until.Local().Format("15:04:05")
	default:
		return ""
	}
}
