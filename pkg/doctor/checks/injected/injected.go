// Package injected checks for deliberately injected faults.
package injected

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// Checks returns the checks for deliberately injected faults.
func Checks() []engine.Check {
	return engine.InSentences([]engine.Check{
		{
			ID: finding.InjectedFault, Layer: finding.LayerWorkload, Needs: []engine.Need{engine.NeedAPI},
			Title: "a fault that this tool injected is in effect",
			Reads: "the records of this tool's runs, the runs' changes and lines in kernel logs, and the pods with " +
				"their faults",
			Why: "A run is open and has not expired, and nothing shows that its change was undone. The finding " +
				"explains only the direct effects of this kind of fault on the node or pod that the run changed, and " +
				"only those since the run was created: kernel log and detector findings for an XID, problems that a " +
				"runtime mode causes, failures of pods with a CUDA fault, and problems in the namespaces of an " +
				"exercise. These findings explain further effects. With --ignore-injected, doctor ignores the runs.",
			Sources: []string{"pkg/fault/ledger"}, Run: checkInjected, ExplainsAs: finding.InjectedEffects(),
		},
		{
			ID: "fault.recorded", Layer: finding.LayerWorkload, From: []string{"runs"},
			Needs: []engine.Need{engine.NeedAPI},
			Title: "a run of this tool is open but its fault is not in effect, or is closed but its lines are still in a kernel log",
			Reads: "the records of this tool's runs, and kernel logs",
			Why: "The open run has changed nothing yet, has expired, or no longer has lines in the node's kernel " +
				"log: it explains nothing and should be closed. Lines from closed runs are reported here, not as GPU " +
				"errors.",
			Sources: []string{"pkg/fault/ledger"}, Run: checkRecorded,
		},
		{
			ID: "wl.cuda-preload", Layer: finding.LayerWorkload, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI},
			Title: "a library that makes CUDA fail is preloaded into a pod",
			Reads: "LD_PRELOAD, environment variables, volumes and init containers of pods",
			Why: "The pod loads the library of this tool's CUDA faults or of Dynamo's fault injection, and no open run of this tool " +
				"explains why. The finding is an error if the pod fails, because the library may be the cause.",
			Explains: []string{"wl.pod-failing", "wl.cuda*", "wl.cpu-mode"},
			Sources:  []string{"ai-dynamo/dynamo tests/fault_tolerance/hardware"},
			Run:      checkPreloaded,
		},
	})
}

// kindOf returns the kind of fault that a run injected, for Check.ExplainsAs.
func kindOf(run snapshot.Run) string {
	if run.Fault == finding.AsRuntime {
		for _, word := range strings.Fields(run.Summary) { // for example "containerd missing-handler (nvidia)"
			if mode, err := containerd.ParseMode(word); err == nil {
				return finding.RuntimeAs(mode)
			}
		}
	}
	if run.Fault == finding.AsXID && !isActedUpon(run) {
		return finding.AsHarmlessXID
	}
	return run.Fault
}

// isActedUpon reports whether a detector treats a line written by the run as fatal, or may reboot the node because of
// it.
func isActedUpon(run snapshot.Run) bool {
	acts := func(e xid.Event) bool {
		return slices.ContainsFunc(xid.Detectors(), func(d xid.Detector) bool {
			v := d.Judge(e, xid.FormAuto)
			return v.Seen == xid.Yes && (v.Fatal || v.MayReboot)
		})
	}
	for _, t := range run.Targets {
		for _, evidence := range t.Evidence {
			for _, record := range facts.DriverRecords(api.KernelRecord{Text: evidence.Text}) {
				if acts(record.Event) {
					return true
				}
			}
		}
	}
	return false
}

// fixRun is the fault name of runs that record changes made by `doctor --fix`. These runs are not faults
// (pkg/faults/fixes).
const fixRun = "fix"

func checkInjected(f *facts.Facts, r *engine.Result) {
	r.Lacks(f, "runs")
	for _, run := range f.Runs {
		if stands, _ := f.RunState(run); stands && run.Fault != fixRun {
			r.Add(Injected(f, run))
		}
	}
}

func checkRecorded(f *facts.Facts, r *engine.Result) {
	checkOwnLines(f, r)
	for _, run := range f.Runs {
		stands, why := f.RunState(run)
		if stands || run.Fault == fixRun || !run.Closed.IsZero() {
			continue
		}
		r.Add(finding.Finding{
			Object: finding.Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), Severity: finding.Info,
			Title:    "a run of this tool is open, but its fault is not in effect",
			Evidence: []finding.Evidence{facts.RunEvidence(run), {Source: "run " + run.ID, Text: why}},
			Fix:      finding.Fix{Text: "revert the run to close it", Commands: []string{shell.RevertRun(run)}},
		})
	}
}

func layerOfRun(run snapshot.Run) finding.Layer {
	switch run.Fault {
	case "xid":
		return finding.LayerHardware
	case "runtime":
		return finding.LayerRuntime
	}
	return finding.LayerWorkload
}

// Injected returns the finding about a run whose fault is in effect. It concerns only the nodes and pods that the run
// changed.
func Injected(f *facts.Facts, run snapshot.Run) finding.Finding {
	issue := finding.Finding{
		Object: finding.Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), As: kindOf(run), Began: run.Created,
		Title: describeRun(f, run), Evidence: []finding.Evidence{facts.RunEvidence(run)},
		Fix: finding.Fix{
			Text: "nothing is wrong with the cluster: revert the run", Commands: []string{shell.RevertRun(run)},
		},
	}
	if !run.Until.IsZero() {
		issue.Fix.Text += ", or wait until " + facts.UntilClock(run.Until)
	}
	var pods []string
	for _, t := range run.Targets {
		if t.Kind == "Node" {
			issue.Nodes = append(issue.Nodes, t.Name)
			issue.Evidence = append(issue.Evidence, targetEvidence(f, t)...)
		}
	}
	if run.Fault == finding.AsScenario {
		return exercise(f, run, issue)
	}
	for _, t := range run.Targets {
		if t.Kind == "Node" {
			continue
		}
		found := carriers(f, run, t)
		if len(found) == 0 {
			found = []string{t.Namespace + "/" + t.Name} // with no pods, limit the finding to the target
		}
		pods = append(pods, found...)
		issue.Evidence = append(issue.Evidence, finding.FieldEvidence(
			finding.Object{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}, "pods with the fault", "%s",
			strings.Join(found, ", "),
		))
	}
	issue.Evidence = issue.Evidence[:min(len(issue.Evidence), 6)]
	return issue.ForPods(pods...)
}

// deviceEvidence is the source of the evidence that devices on a node are unhealthy; see package devicehealth.
const deviceEvidence = "kubelet's device checkpoint"

// exercise completes the finding about a scenario's run. The run owns its namespaces and all objects in them.
func exercise(f *facts.Facts, run snapshot.Run, issue finding.Finding) finding.Finding {
	slices.Sort(issue.Nodes)
	issue.Nodes = slices.Compact(issue.Nodes)
	issue.Lab = &finding.Lab{Nodes: issue.Nodes, Since: run.Created}
	for _, t := range run.Targets {
		if t.Kind == "Node" && slices.ContainsFunc(t.Evidence, func(e snapshot.RunEvidence) bool {
			return e.Source == deviceEvidence
		}) {
			issue.Lab.Devices = append(issue.Lab.Devices, t.Name)
		}
		namespace := t.Namespace
		if t.Kind == "Namespace" {
			namespace = t.Name
		}
		if namespace == "" && t.Kind != "Node" {
			issue.Lab.Objects = append(issue.Lab.Objects, finding.Object{Kind: t.Kind, Name: t.Name}.String())
		}
		if namespace != "" && !slices.Contains(issue.Lab.Namespaces, namespace) {
			issue.Lab.Namespaces = append(issue.Lab.Namespaces, namespace)
		}
	}
	var places []finding.Evidence
	for _, namespace := range issue.Lab.Namespaces {
		var pods []string
		for i := range f.Snapshot.Pods {
			if pod := &f.Snapshot.Pods[i]; pod.Namespace == namespace {
				pods = append(pods, pod.Name)
				issue.PodScope = append(issue.PodScope, namespace+"/"+pod.Name)
			}
		}
		if len(pods) > 0 {
			places = append(places,
				finding.FieldEvidence(
					finding.Object{Kind: "Namespace", Name: namespace}, "pods of the exercise", "%s",
					words.Joined(pods),
				))
		}
	}
	issue.Evidence = slices.Concat(issue.Evidence[:1], places, issue.Evidence[1:])
	issue.Evidence = issue.Evidence[:min(len(issue.Evidence), 6)]
	return issue
}

// describeRun describes a run: its creator, age, end time, fault, and targets.
func describeRun(f *facts.Facts, run snapshot.Run) string {
	text := words.Clip(cmp.Or(run.By, "an unknown user")) + " injected a fault on purpose"
	if age := f.Now.Sub(run.Created); !run.Created.IsZero() && age >= 0 {
		text += ", " + duration.HumanDuration(age) + " ago"
	}
	if !run.Until.IsZero() {
		clock := "15:04 UTC"
		if run.Until.Sub(f.Now) > 12*time.Hour {
			clock = "2006-01-02 15:04 UTC"
		}
		text += ", until " + run.Until.UTC().Format(clock)
	}
	const few = 3
	var where []string
	for _, t := range run.Targets {
		name := t.Name
		if t.Kind != "Node" {
			name = finding.Object{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}.String()
		}
		if !slices.Contains(where, name) {
			where = append(where, name)
		}
	}
	text += ": " + words.Clip(run.Summary) + " on " + strings.Join(where[:min(len(where), few)], ", ")
	if rest := len(where) - few; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// targetEvidence returns the lines that a run wrote to a node's kernel log. If there are none, it returns the evidence
// recorded in the run.
func targetEvidence(f *facts.Facts, t snapshot.Target) []finding.Evidence {
	var all []finding.Evidence
	n := f.Node(t.Name)
	for i, e := range t.Evidence {
		if strings.Contains(e.Text, "SHA-256") && i < len(t.Evidence)-1 {
			continue // skip file checksums if other evidence follows
		}
		if n != nil && n.Host != nil {
			if r, there := facts.KernelRecord(n.Host, e); there {
				all = append(all, finding.Clipped(finding.Evidence{Source: fmt.Sprintf("nodes/%s/kernel.log sequence "+
					"%d", t.Name, r.Sequence), Time: r.Time, Text: r.Text}))
				continue
			}
		}
		all = append(
			all,
			finding.Clipped(finding.Evidence{Source: "node " + t.Name + ", " + e.Source, Time: e.Time, Text: e.Text}),
		)
	}
	return all
}

// These names are the ones that this tool's CUDA faults add to pods. The packages pkg/faults/cudashim and pkg/leftover
// also define them, but require a client, which this package must not import.
const (
	labelRun      = "gpufault.dev/run"
	ourLibVolume  = "gpu-fault-lib"
	ourConfigMap  = "gpu-fault-" // followed by the run's ID
	ourLibrary    = "libgpufault.so"
	ourLibraryDir = "/gpu-fault/lib"
)

// runOf returns the ID of the run that injected a fault into the pod. carried is false if the pod has no fault.
func runOf(pod *corev1.Pod) (run string, carried bool) {
	for _, v := range pod.Spec.Volumes {
		if v.Name == ourLibVolume {
			if v.ConfigMap != nil {
				run = strings.TrimPrefix(v.ConfigMap.Name, ourConfigMap)
			}
			return run, true
		}
	}
	return pod.Labels[labelRun], pod.Labels[labelRun] != ""
}

// carriers returns the pods that have a run's fault or belong to the given target.
func carriers(f *facts.Facts, run snapshot.Run, t snapshot.Target) []string {
	var all []string
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Namespace != t.Namespace {
			continue
		}
		id, _ := runOf(pod)
		if id == run.ID || t.Kind == "Pod" && pod.Name == t.Name || t.Kind != "Pod" && ownedBy(pod, t) {
			all = append(all, pod.Namespace+"/"+pod.Name)
		}
	}
	return all
}

// ownedBy reports whether a workload owns the pod, directly or through a ReplicaSet or a Job.
func ownedBy(pod *corev1.Pod, t snapshot.Target) bool {
	for _, o := range pod.OwnerReferences {
		parent := o.Name[:max(strings.LastIndexByte(o.Name, '-'), 0)]
		if o.Kind == t.Kind && o.Name == t.Name ||
			(t.Kind == "Deployment" && o.Kind == "ReplicaSet" || t.Kind == "CronJob" && o.Kind == "Job") &&
				parent == t.Name {
			return true
		}
	}
	return false
}

func checkPreloaded(f *facts.Facts, r *engine.Result) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		evidence, ours := preloaded(pod)
		if len(evidence) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp != nil {
			continue
		}
		issue := finding.Finding{
			Object: facts.PodObject(pod), Severity: finding.Warning, Title: "a library that makes CUDA fail is " +
				"preloaded", Evidence: evidence[:min(len(evidence), 4)],
			Fix: finding.Fix{
				Text:     "a fault injection left the library behind: list the leftovers, and remove them with --clean, which asks for confirmation",
				Commands: []string{"kubectl gpu-fault leftovers"},
			},
		}
		if ours {
			issue.Fix =
				finding.Fix{Text: "a CUDA fault of this tool added the library, and no open run is known: list the " +
					"leftovers, and remove them with --clean", Commands: []string{"kubectl gpu-fault leftovers"}}
		}
		if run, _ := runOf(pod); run != "" {
			issue.Fix.Text, issue.Fix.Commands = "run "+run+" added the library: revert the run",
				[]string{shell.RevertRun(snapshot.Run{ID: run})}
		}
		if pod.Spec.NodeName != "" {
			issue.Nodes = []string{pod.Spec.NodeName}
		}
		if podFails(pod) {
			issue.Severity, issue.Confidence = finding.Error, finding.Likely
		}
		r.Add(issue)
	}
}

// podFails reports whether a container in the pod has exited with an error or is in CrashLoopBackOff.
func podFails(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !podutils.IsPodReady(pod) && slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses,
		pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		return s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 ||
			s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode != 0 ||
			s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
}

// preloaded returns the traces of fault injection in a pod. ours is true if this tool injected the fault.
func preloaded(pod *corev1.Pod) (evidence []finding.Evidence, ours bool) {
	object := facts.PodObject(pod)
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Name == ourLibVolume && v.ConfigMap != nil:
			ours = true
			evidence = append(evidence,
				finding.FieldEvidence(object, ".spec.volumes", "%s (ConfigMap %s)", v.Name, v.ConfigMap.Name))
		case v.Name == "cuda-fault-lib-source" && v.ConfigMap != nil: // Dynamo's inject_into_pods.py
			evidence = append(evidence,
				finding.FieldEvidence(object, ".spec.volumes", "%s (ConfigMap %s)", v.Name, v.ConfigMap.Name))
		}
	}
	for c := range facts.Containers(pod) {
		for _, e := range c.Env {
			switch {
			case e.Name == "LD_PRELOAD" || e.Name == "LD_AUDIT":
				for _, file := range strings.FieldsFunc(e.Value, func(r rune) bool { return r == ':' || r == ' ' }) {
					mine := path.Base(file) == ourLibrary || strings.HasPrefix(file, ourLibraryDir+"/")
					if mine || slices.Contains([]string{"cuda_intercept.so", "fake_cuda_xid79.so"}, path.Base(file)) {
						ours = ours || mine
						evidence = append(evidence,
							finding.FieldEvidence(object, "container "+c.Name+" .env", "%s=%s", e.Name, e.Value))
					}
				}
			case e.Name == "CUDA_XID_TYPE" || e.Name == "CUDA_FAULT_INJECTION_ENABLED":
				evidence = append(evidence,
					finding.FieldEvidence(object, "container "+c.Name+" .env", "%s=%s", e.Name, e.Value))
			}
		}
	}
	return evidence, ours
}
