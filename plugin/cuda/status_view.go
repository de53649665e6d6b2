package cuda

import (
	"fmt"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// statusList is what `cuda status -o json` prints.
type statusList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Items      []runStatus `json:"items"`

	now time.Time // for ages in the table
}

// runStatus is one run and its pods.
type runStatus struct {
	Run       string    `json:"run"`
	Summary   string    `json:"summary"`
	Workload  string    `json:"workload"` // deployment.apps/web
	Namespace string    `json:"namespace"`
	Phase     string    `json:"phase"`            // in words: armed since 14:00:05
	Until     time.Time `json:"until,omitzero"`   // from then on all calls pass through
	ArmedAt   time.Time `json:"armedAt,omitzero"` // zero while it is disarmed
	// Generation is that of the state in the run's ConfigMap; pods and processes that have it know of the last arming.
	Generation uint64      `json:"generation"`
	Pods       []podStatus `json:"pods"`
}

// podStatus is one pod with the shim.
type podStatus struct {
	Name       string   `json:"name"`
	Node       string   `json:"node,omitempty"`
	Containers []string `json:"containers"` // that load the shim
	// State is one of armed, disarmed, expired, excluded, stale (the kubelet has not refreshed the file yet), or why it
	// cannot be asked: CrashLoopBackOff, Pending: ...
	State string `json:"state"`
	// Generation is that of the state file in the pod; 0 when it cannot be asked.
	Generation uint64 `json:"generation,omitempty"`
	// Problem says what is wrong with the shim there.
	Problem   string          `json:"problem,omitempty"`
	Processes []processStatus `json:"processes"`
	// Log are the last lines of the shim in the log, where the pod cannot be asked.
	Log []string `json:"log,omitempty"`
}

// processStatus is one process, or one that ended.
type processStatus struct {
	cudafault.Process
	State     string `json:"state"`               // disarmed, armed, tripped, poisoned, expired, excluded (node), ...
	ErrorName string `json:"errorName,omitempty"` // of lastError
	// Former says that it belongs to a former life of its container.
	Former bool `json:"former,omitempty"`
}

// statusOf puts together what is known of a run.
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

// fileState returns what the state file in a pod says about it.
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

// print writes the list; in a table each process has a row, and each pod without one too.
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
				"No pod has it: its controller has not made one yet, it has no replicas, or somebody took the shim out of the workload.")
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
		return ", until it is reverted"
	case now.Before(run.Until):
		return ", until " + run.Until.Local().Format("15:04:05")
	default:
		return ""
	}
}
