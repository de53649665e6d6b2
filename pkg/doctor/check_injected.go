package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// injectedChecks are about faults that somebody made on purpose.
func injectedChecks() []Check {
	return inSentences([]Check{
		{
			ID: injectedFault, Layer: LayerWorkload, Needs: []Need{NeedAPI},
			Title: "a fault that this tool injected is in place",
			Reads: "the records of this tool's runs, what they changed, the lines that they wrote to kernel logs, the pods that carry them",
			Why: "a run is open, its time is not up, and nothing says that its change is gone. It explains only what its kind of fault leads to " +
				"directly, on the node or pod that it changed, and since it was made: an XID what the kernel log and the detectors say of its line, a " +
				"broken runtime what its mode breaks, a CUDA fault how the pods that carry it fail, an exercise what is wrong in its namespaces. What " +
				"follows from that follows from those findings. --ignore-injected looks at the cluster as if nobody knew",
			Sources: []string{"pkg/fault/ledger"}, Run: checkInjected, ExplainsAs: injectedEffects(),
		},
		{
			ID: "fault.recorded", Layer: LayerWorkload, From: []string{"runs"}, Needs: []Need{NeedAPI},
			Title: "a run of this tool is open, and its fault is not in place, or it is over, and its lines are still in a kernel log",
			Reads: "the records of this tool's runs, and kernel logs",
			Why: "an open run was planned and nothing was changed, its time is up, or its lines are no longer in the node's kernel log: it explains " +
				"nothing, and should be closed. Lines of runs that are over are told here, and not as errors of a GPU",
			Sources: []string{"pkg/fault/ledger"}, Run: checkRecorded,
		},
		{
			ID: "wl.cuda-preload", Layer: LayerWorkload, From: []string{"api/pods"}, Needs: []Need{NeedAPI},
			Title: "a library that makes CUDA fail is preloaded into a pod",
			Reads: "LD_PRELOAD, variables, volumes and init containers of pods",
			Why: "the pod loads the library of this tool's CUDA faults, or that of Dynamo's fault injection, and no open run of this tool " +
				"explains it. It is an error where the pod fails: the library may be the reason",
			Explains: []string{"wl.pod-failing", "wl.cuda*", "wl.cpu-mode"},
			Sources:  []string{"ai-dynamo/dynamo tests/fault_tolerance/hardware"},
			Run:      checkPreloaded,
		},
	})
}

// injectedFault is the finding of an open run whose fault is in place.
const injectedFault = "fault.injected"

// The faults of runs, as the ledger names them. A runtime fault whose mode is known goes by both: "runtime
// missing-handler".
const (
	asXID = "xid"

	asHarmlessXID = "xid harmless"
	asRuntime     = "runtime"
	asCUDA        = "cuda"
	asScenario    = "scenario"
)

// injectedEffects returns what each kind of fault leads to directly. What these findings explain in their turn is
// theirs, so that something real that is wrong at the same place stays a root.
func injectedEffects() map[string][]string {
	// Without its configuration, or while it restarts, a runtime starts no pods, and its node is not Ready.
	runtime := []string{
		"rt.sandbox-failed", "rt.not-ready", "rt.restart-loop", "rt.edited-not-restarted", "rt.config-not-loaded",
		"node.not-ready", "node.condition",
	}
	effects := map[string][]string{
		// The line itself, and what detectors and remediators do about it: a condition, a cordon, a reboot.
		asXID: {"hw.*", "drv.gsp", "node.condition", "sched.node-state", "node.not-ready"},
		// Of an XID upon which no detector acts nobody cordons or loses a node.
		asHarmlessXID: {"hw.*", "drv.gsp", "node.condition"},
		// A pod that carries the library sees CUDA fail, and ends, hangs or computes on the CPU.
		asCUDA: {
			"wl.pod-failing", "wl.cuda-error", "wl.cuda-oom", "wl.cuda-vs-driver", "wl.cuda-preload", "wl.cpu-mode",
			"wl.probe-failing", "wl.idle-holder",
		},
		// An exercise has its namespaces to itself: what is proven by itself there is what it is about.
		asScenario: append([]string{"*"}, provenByItself()...),
		asRuntime:  runtime,
	}
	for _, mode := range containerd.Modes() {
		effects[asRuntime] = append(effects[asRuntime], mode.Root)
		of := append(slices.Clone(runtime), mode.Root)
		if mode.NodeLoss || mode.Mode == containerd.ModeWrongInstance {
			of = append(of, "rt.handler-missing", "rt.default-missing", "rt.cri-disabled", "rt.unparsable")
		}
		effects[runtimeAs(mode.Mode)] = of
	}
	effects[asRuntime] = append(effects[asRuntime], "rt.cri-disabled")
	return effects
}

func runtimeAs(mode containerd.Mode) string { return asRuntime + " " + string(mode) }

// labEffects returns what an exercise's steps on nodes lead to directly: lines in kernel logs, broken runtimes,
// firewalls, taints and labels.
func labEffects() []string {
	all := injectedEffects()
	return slices.Concat(all[asXID], all[asRuntime], []string{"net.*", "sched.*", "gfd.labels", "nfd.labels"})
}

// kindOf returns how a run explains, for Check.ExplainsAs.
func kindOf(run snapshot.Run) string {
	if run.Fault == asRuntime {
		for _, word := range strings.Fields(run.Summary) { // "containerd missing-handler (nvidia)"
			if mode, err := containerd.ParseMode(word); err == nil {
				return runtimeAs(mode)
			}
		}
	}
	if run.Fault == asXID && !isActedUpon(run) {
		return asHarmlessXID
	}
	return run.Fault
}

// isActedUpon reports whether a detector takes a line of the run for the end of a GPU or a node.
func isActedUpon(run snapshot.Run) bool {
	acts := func(e xid.Event) bool {
		return slices.ContainsFunc(xid.Detectors(), func(d xid.Detector) bool {
			v := d.Judge(e, xid.FormAuto)
			return v.Seen == xid.Yes && (v.Fatal || v.MayReboot)
		})
	}
	for _, t := range run.Targets {
		for _, evidence := range t.Evidence {
			for _, record := range driverRecords(api.KernelRecord{Text: evidence.Text}) {
				if acts(record.event) {
					return true
				}
			}
		}
	}
	return false
}

// isOfGPU reports whether a finding is about the GPUs or their driver, which lines in kernel logs tell of.
func isOfGPU(f Finding) bool { return f.Layer == LayerHardware || f.Layer == LayerDriver || f.ofGPU }

// fixRun is the fault of runs that record what `doctor --fix` made: they are no faults (pkg/faults/fixes).
const fixRun = "fix"

// runState reports whether a run's fault is in place; why says why not.
func (f *Facts) runState(run snapshot.Run) (stands bool, why string) {
	switch {
	case !run.Closed.IsZero():
		return false, "it was closed at " + untilClock(run.Closed)
	case run.Phase == "Planned":
		return false, "it was planned, and nothing was changed yet"
	case run.Phase == "Reverted" || len(run.Targets) == 0:
		return false, "nothing of it is in place any more"
	case !run.Until.IsZero() && !f.Now.Before(run.Until):
		return false, "its time was up at " + untilClock(run.Until)
	}
	lines, gone := 0, 0
	for _, t := range run.Targets {
		n := f.Node(t.Name)
		if t.Kind != "Node" || !t.Permanent || n == nil || n.Host == nil || len(t.Evidence) == 0 {
			lines++ // nobody knows better
			continue
		}
		for _, e := range t.Evidence {
			lines++
			if _, there := kernelRecord(n.Host, e); !there {
				gone++
			}
		}
	}
	if gone == lines {
		return false, "its lines are no longer in the kernel log: the node was started anew, or the log has wrapped"
	}
	return true, ""
}

// kernelRecord finds the record of the node's kernel log that a run wrote.
func kernelRecord(host *api.Diagnosis, e snapshot.RunEvidence) (api.KernelRecord, bool) {
	i := slices.IndexFunc(host.KernelLog, func(r api.KernelRecord) bool { return proves(e, r) })
	if i < 0 {
		return api.KernelRecord{}, false
	}
	return host.KernelLog[i], true
}

// proves reports whether a record is the one that a run says it wrote: the same sequence number and text, or, without
// numbers, the same text.
func proves(e snapshot.RunEvidence, r api.KernelRecord) bool {
	_, after, known := strings.Cut(e.Source, "sequence ")
	digits := strings.TrimRight(after[:min(len(after), 20)], " .,:;)")
	if n := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); n >= 0 {
		digits = digits[:n]
	}
	sequence, err := strconv.ParseUint(digits, 10, 64)
	if known && err == nil && r.Sequence != 0 {
		return r.Sequence == sequence && strings.Contains(e.Text, strings.TrimSpace(r.Text))
	}
	return r.Text != "" && strings.Contains(e.Text, r.Text)
}

func untilClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

func checkInjected(f *Facts, r *Result) {
	r.Lacks(f, "runs")
	for _, run := range f.Runs {
		if stands, _ := f.runState(run); stands && run.Fault != fixRun {
			r.Add(f.injected(run))
		}
	}
}

func checkRecorded(f *Facts, r *Result) {
	f.checkOwnLines(r)
	for _, run := range f.Runs {
		stands, why := f.runState(run)
		if stands || run.Fault == fixRun || !run.Closed.IsZero() {
			continue
		}
		r.Add(Finding{
			Object: Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), Severity: Info,
			Title: "a run of this tool is open, and its fault " +
				"is not in place",
			Evidence: []Evidence{runEvidence(run), {Source: "run " + run.ID, Text: why}},
			Fix:      Fix{Text: "close it by reverting it", Commands: []string{revertRun(run)}},
		})
	}
}

func layerOfRun(run snapshot.Run) Layer {
	switch run.Fault {
	case "xid":
		return LayerHardware
	case "runtime":
		return LayerRuntime
	}
	return LayerWorkload
}

func runEvidence(run snapshot.Run) Evidence {
	text := fmt.Sprintf("%s: %s (%s)", run.Fault, run.Summary, run.Phase)
	if run.By != "" {
		text += ", by " + run.By
	}
	switch {
	case !run.Closed.IsZero():
		text += ", over since " + untilClock(run.Closed)
	case !run.Until.IsZero():
		text += ", until " + untilClock(run.Until)
	}
	return clipped(Evidence{Source: "record of run " + run.ID, Time: run.Created, Text: text})
}

// injected returns the finding of a run whose fault is in place. It concerns the nodes and the pods that the run
// changed, and no others.
func (f *Facts) injected(run snapshot.Run) Finding {
	finding := Finding{
		Object: Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), as: kindOf(run), began: run.Created,
		Title: f.whoseRun(run), Evidence: []Evidence{runEvidence(run)},
		Fix: Fix{Text: "nothing is wrong with the cluster: revert it", Commands: []string{revertRun(run)}},
	}
	if !run.Until.IsZero() {
		finding.Fix.Text += ", or wait until " + untilClock(run.Until)
	}
	var pods []string
	for _, t := range run.Targets {
		if t.Kind == "Node" {
			finding.Nodes = append(finding.Nodes, t.Name)
			finding.Evidence = append(finding.Evidence, f.targetEvidence(t)...)
		}
	}
	if run.Fault == asScenario {
		return f.exercise(run, finding)
	}
	for _, t := range run.Targets {
		if t.Kind == "Node" {
			continue
		}
		found := f.carriers(run, t)
		if len(found) == 0 {
			found = []string{t.Namespace + "/" + t.Name} // no pod of it is there; it does not concern the whole cluster
		}
		pods = append(pods, found...)
		finding.Evidence = append(finding.Evidence, fieldEvidence(
			Object{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}, "pods that carry it", "%s",
			strings.Join(found, ", "),
		))
	}
	finding.Evidence = finding.Evidence[:min(len(finding.Evidence), 6)]
	return finding.ForPods(pods...)
}

// exercise completes the finding of a scenario's run: its namespaces are its own, with all that is in them. Its steps
// name them many times.
func (f *Facts) exercise(run snapshot.Run, finding Finding) Finding {
	slices.Sort(finding.Nodes)
	finding.Nodes = slices.Compact(finding.Nodes)
	finding.lab = &lab{nodes: finding.Nodes, since: run.Created}
	for _, t := range run.Targets {
		namespace := t.Namespace
		if t.Kind == "Namespace" {
			namespace = t.Name
		}
		if namespace == "" && t.Kind != "Node" {
			finding.lab.objects = append(finding.lab.objects, Object{Kind: t.Kind, Name: t.Name}.String())
		}
		if namespace != "" && !slices.Contains(finding.lab.namespaces, namespace) {
			finding.lab.namespaces = append(finding.lab.namespaces, namespace)
		}
	}
	var places []Evidence
	for _, namespace := range finding.lab.namespaces {
		var pods []string
		for i := range f.Snapshot.Pods {
			if pod := &f.Snapshot.Pods[i]; pod.Namespace == namespace {
				pods = append(pods, pod.Name)
				finding.pods = append(finding.pods, namespace+"/"+pod.Name)
			}
		}
		if len(pods) > 0 {
			places = append(places,
				fieldEvidence(Object{Kind: "Namespace", Name: namespace}, "pods of the exercise", "%s", joined(pods)))
		}
	}
	finding.Evidence = slices.Concat(finding.Evidence[:1], places, finding.Evidence[1:])
	finding.Evidence = finding.Evidence[:min(len(finding.Evidence), 6)]
	return finding
}

// whoseRun says who injected what, where, when, and until when.
func (f *Facts) whoseRun(run snapshot.Run) string {
	text := clip(cmp.Or(run.By, "somebody")) + " injected a fault on purpose"
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
			name = Object{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}.String()
		}
		if !slices.Contains(where, name) {
			where = append(where, name)
		}
	}
	text += ": " + clip(run.Summary) + " on " + strings.Join(where[:min(len(where), few)], ", ")
	if rest := len(where) - few; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// targetEvidence returns the lines that a run wrote on a node, as the node's kernel log has them; else what the run
// itself says.
func (f *Facts) targetEvidence(t snapshot.Target) []Evidence {
	var all []Evidence
	n := f.Node(t.Name)
	for i, e := range t.Evidence {
		if strings.Contains(e.Text, "SHA-256") && i < len(t.Evidence)-1 {
			continue // which bytes of a file were changed helps nobody, where the runtime itself says what came of it
		}
		if n != nil && n.Host != nil {
			if r, there := kernelRecord(n.Host, e); there {
				all = append(all, clipped(Evidence{Source: fmt.Sprintf("nodes/%s/kernel.log sequence "+
					"%d", t.Name, r.Sequence), Time: r.Time, Text: r.Text}))
				continue
			}
		}
		all = append(all, clipped(Evidence{Source: "node " + t.Name + ", " + e.Source, Time: e.Time, Text: e.Text}))
	}
	return all
}

// What CUDA faults of this tool add to pods (pkg/faults/cudashim, pkg/leftover; they need a client, and this package
// must not).
const (
	labelRun      = "gpufault.dev/run"
	ourLibVolume  = "gpu-fault-lib"
	ourConfigMap  = "gpu-fault-" // and the run's ID
	ourLibrary    = "libgpufault.so"
	ourLibraryDir = "/gpu-fault/lib"
)

// runOf returns the run whose fault a pod carries; carried reports whether it carries one.
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

// carriers returns the pods that carry a run's fault, or belong to a target of it.
func (f *Facts) carriers(run snapshot.Run, t snapshot.Target) []string {
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

// ownedBy reports whether a pod was made for a workload: directly, or by a ReplicaSet or a Job that has its name.
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

func checkPreloaded(f *Facts, r *Result) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		evidence, ours := preloaded(pod)
		if len(evidence) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp != nil {
			continue
		}
		finding := Finding{
			Object: PodObject(pod), Severity: Warning, Title: "a library that makes CUDA fail is " +
				"preloaded", Evidence: evidence[:min(len(evidence), 4)],
			Fix: Fix{
				Text:     "a fault injection left it: look at what is left, and take it out with --clean, which asks first",
				Commands: []string{"kubectl gpu-fault leftovers"},
			},
		}
		if ours {
			finding.Fix =
				Fix{Text: "a CUDA fault of this tool put it there, and no open run of it is known: look for what is left, and take it " +
					"out with --clean", Commands: []string{"kubectl gpu-fault leftovers"}}
		}
		if run, _ := runOf(pod); run != "" {
			finding.Fix.Text, finding.Fix.Commands = "run "+run+" put it there: revert that",
				[]string{revertRun(snapshot.Run{ID: run})}
		}
		if pod.Spec.NodeName != "" {
			finding.Nodes = []string{pod.Spec.NodeName}
		}
		if podFails(pod) {
			finding.Severity, finding.Confidence = Error, Likely
		}
		r.Add(finding)
	}
}

// podFails reports whether a container of the pod has ended with an error, or cannot start.
func podFails(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !podReady(pod) && slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses,
		pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		return s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 ||
			s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode != 0 ||
			s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
}

// preloaded returns what of fault injections a pod has; ours reports whether it is this tool's.
func preloaded(pod *corev1.Pod) (evidence []Evidence, ours bool) {
	object := PodObject(pod)
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Name == ourLibVolume && v.ConfigMap != nil:
			ours = true
			evidence = append(evidence,
				fieldEvidence(object, ".spec.volumes", "%s (ConfigMap %s)", v.Name, v.ConfigMap.Name))
		case v.Name == "cuda-fault-lib-source" && v.ConfigMap != nil: // Dynamo's inject_into_pods.py
			evidence = append(evidence,
				fieldEvidence(object, ".spec.volumes", "%s (ConfigMap %s)", v.Name, v.ConfigMap.Name))
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, e := range c.Env {
			switch {
			case e.Name == "LD_PRELOAD" || e.Name == "LD_AUDIT":
				for _, file := range strings.FieldsFunc(e.Value, func(r rune) bool { return r == ':' || r == ' ' }) {
					mine := path.Base(file) == ourLibrary || strings.HasPrefix(file, ourLibraryDir+"/")
					if mine || slices.Contains([]string{"cuda_intercept.so", "fake_cuda_xid79.so"}, path.Base(file)) {
						ours = ours || mine
						evidence = append(evidence,
							fieldEvidence(object, "container "+c.Name+" .env", "%s=%s", e.Name, e.Value))
					}
				}
			case e.Name == "CUDA_XID_TYPE" || e.Name == "CUDA_FAULT_INJECTION_ENABLED":
				evidence = append(evidence,
					fieldEvidence(object, "container "+c.Name+" .env", "%s=%s", e.Name, e.Value))
			}
		}
	}
	return evidence, ours
}
