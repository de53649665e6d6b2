package workload

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// messageChecks returns the checks for pods that request no NVIDIA GPU, and for objects that create pods.
func messageChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "wl.message", Layer: finding.LayerWorkload, Symptom: engine.Known,
			Title: "a pod, or an object that creates pods, reports a known problem",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: "statuses, events and logs of failing pods that request no NVIDIA GPU and are not NVIDIA " +
				"components; logs of running pods; warning events about other objects; kernel logs of nodes with " +
				"other vendors' GPUs",
			Why: "Only messages that match a signature are reported (see `doctor signatures`), because a pod that " +
				"requests no GPU may be unrelated to GPUs. An error that a controller repeats is also reported if its " +
				"object, such as a NIMService, has no pods. For a running GPU pod, an error logged within the last " +
				"hour (for a job: the last day) is also reported if it is at the end of the log or was repeated for " +
				"ten minutes, unless later lines show that the program works.",
			// A failing device plugin from another vendor explains the findings about pods that need its resources.
			ExplainsAs: map[string][]string{
				finding.OfPlugin: ofPlugins(), signatures.Running + " " + finding.OfPlugin: ofPlugins(),
				ofMachine: {"wl.pod-failing"},
			},
			Run: checkMessages,
		},
		{
			ID: "wl.other-accelerator", Layer: finding.LayerWorkload, Symptom: engine.Unexplained, Last: true,
			Title: "a pod that requests another vendor's accelerator is not running",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: "pods that request amd.com/gpu, gpu.intel.com, habana.ai and other accelerators, and the vendors' " +
				"plugins",
			Why: "The pod's state shows this. The checks of nodes and device plugins are for NVIDIA GPUs only, so " +
				"the cause may be unknown.",
			Run: checkOthers,
		},
	}
}

// ofMachine marks findings about virtual machines of KubeVirt, whose pods fail for the same reason.
const ofMachine = "machine"

// ofPlugins returns the IDs of findings about pods that are waiting for a plugin's resources.
func ofPlugins() []string {
	return []string{
		"wl.other-accelerator", "sched.insufficient-other", "sched.none-advertised", "sched.all-in-use",
		"sched.wrong-resource-name", "sched.no-scheduler", "dra.unallocatable", "dp.selects-none",
	}
}

// inTrouble reports whether a pod has failed, does not start or is not scheduled.
func inTrouble(f *facts.Facts, pod *corev1.Pod) bool {
	switch {
	case pod.DeletionTimestamp != nil:
		return f.Now.Sub(pod.DeletionTimestamp.Time) > slowStart
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed && f.Past(pod):
		return false
	case len(f.Troubles(pod)) > 0, pod.Status.Phase == corev1.PodFailed:
		return true
	case pod.Status.Phase == corev1.PodPending:
		return f.Age(pod) > startTime
	case pod.Status.Phase == corev1.PodRunning && !facts.RunsReady(pod):
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return !s.Ready && s.RestartCount >= manyRestarts
		})
	}
	return false
}

// manyRestarts is the number of restarts after which a container that is not ready counts as failing, whatever its
// current state.
const manyRestarts = 5

func checkMessages(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	var helpers []*corev1.Pod
	beside := scheduler.Beside(f)
	for i := range beside {
		helpers = append(helpers, beside[i].Pod)
	}
	seen := map[finding.Object]bool{}
	for _, p := range scheduler.Pending(f) {
		for _, v := range p.Pod.Spec.Volumes {
			if claim := v.PersistentVolumeClaim; claim != nil && p.Id == "sched.volume" { // reported there
				seen[finding.Object{
					Kind: "PersistentVolumeClaim", Namespace: p.Pod.Namespace, Name: claim.ClaimName,
				}] = true
			}
		}
		if p.Helper != nil {
			helpers = append(helpers, p.Helper)
		}
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		// Of a share of a GPU, the scheduling layer does not report that it waits for quota.
		ours := f.UsesGPU(pod) && (len(facts.GPUDemand(pod)) > 0 || f.Waits(pod, false) == "") ||
			facts.ComponentOf(pod.Labels, &pod.Spec) != ""
		switch {
		case facts.OtherAccelerator(pod) != "" && inTrouble(f, pod): // reported by wl.other-accelerator
		case len(pod.Spec.ResourceClaims) > 0 && pod.Spec.NodeName == "" &&
			!slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return strings.Contains(c.Message, "resource class ") // before Kubernetes 1.31
			}): // reported by the DRA layer
		case slices.Contains(f.FailingPlacers(), pod): // reported by sched.queued
		case slices.Contains(helpers, pod): // reported by sched.volume or sched.insufficient-other
		case inTrouble(f, pod) && (!ours || pod.DeletionTimestamp != nil):
			issue := finding.Finding{
				Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Title: "the pod is not running",
				Failed: facts.LastChange(pod), Severity: concern(pod), As: kindOf(pod), PodScope: waiting(f, pod),
				Evidence: append(scheduler.VolumeApart(f, pod), f.AdmittedButGated(pod)...),
			}
			if len(issue.PodScope) > 0 {
				issue.Severity = finding.Error // GPU pods are waiting for it
			}
			r.Add(issue)
		case len(f.LogsOf(pod))+len(f.HeadsOf(pod)) == 0:
		case facts.RunsReady(pod) || pod.Status.Phase == corev1.PodRunning:
			r.Add(finding.Finding{
				Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Title: "the pod runs",
				As:       strings.TrimSpace(signatures.Running + " " + kindOf(pod)),
				Severity: finding.Warning, PodScope: waiting(f, pod),
			})
		}
	}
	reportKernel(f, r)
	for _, q := range f.Queued() {
		seen[q.Object] = len(q.Evidence) > 0 // reported by sched.queued
	}
	if f.Missing("api/events") != "" {
		return // checks in layers that require events report that they are missing
	}
	for _, e := range f.Events {
		o := finding.Object{
			Kind:      e.InvolvedObject.Kind,
			Namespace: e.InvolvedObject.Namespace,
			Name:      e.InvolvedObject.Name,
		}
		if e.Type != corev1.EventTypeWarning || seen[o] || f.Now.Sub(facts.EventTime(e)) > time.Hour ||
			o.Kind == "Pod" || o.Kind == "Node" && e.Reason != "SystemOOM" ||
			e.Reason == "FailedCreate" { // reported by the access layer
			continue
		}
		seen[o] = true
		newest := f.EventsOf(o.Kind, o.Namespace, o.Name)[0]
		if newest.Type != corev1.EventTypeWarning || f.CreatedSince(o, facts.EventTime(newest)) {
			continue
		}
		q := facts.Quote(newest)
		q.Text = words.Clip(q.Text)
		issue := finding.Finding{
			Object: o, Title: "an object that creates pods reports a problem", Severity: finding.Warning,
			Evidence: []finding.Evidence{q},
		}.ForPods(o.String())
		if ofModels.MatchString(o.Kind) {
			pods, ready, ill, removed := podsNamed(f, o)
			if removed.Text != "" {
				issue.Evidence = append(issue.Evidence, removed)
			}
			switch {
			case ready:
			case ill && e.Reason == "LatestCreatedFailed":
				continue // the pods say why the revision failed
			case pods == 0 && newest.Count >= manyRestarts &&
				words.ContainsAny(newest.Reason, []string{"Fail", "Error"}):
				issue.Severity, issue.As = finding.Error, signatures.Unmade
				issue.Title = fmt.Sprintf("%s %s has no pod, because its controller is failing", o.Kind, o.Name)
				issue.Fix = finding.Fix{
					Text: "Correct the part of the object that the message names. If the message names no part of " +
						"it, see the log of the object's controller and the release notes of newer versions.",
					Commands: []string{shell.Command("kubectl -n %s get %s %s -o yaml", o.Namespace,
						strings.ToLower(o.Kind), o.Name)},
				}
			default:
				issue.Severity = finding.Error
			}
		}
		if o.Kind == "VirtualMachineInstance" {
			issue.As = ofMachine
			for i := range f.Snapshot.Pods {
				pod := &f.Snapshot.Pods[i]
				if pod.Namespace == o.Namespace && strings.HasPrefix(pod.Name, "virt-launcher-"+o.Name+"-") {
					issue.PodScope = append(issue.PodScope, pod.Namespace+"/"+pod.Name)
				}
			}
		}
		if o.Kind == "NodeClaim" {
			pending := scheduler.Pending(f)
			if len(pending) == 0 {
				continue // another node claim replaced it
			}
			if slices.ContainsFunc(pending, func(p scheduler.PendingPod) bool { return p.NominatedTo(f, o.Name) }) {
				issue.As = finding.OfPlugin // the finding explains why the pods are pending
			}
		}
		r.Add(issue)
	}
}

// ofModels matches the kinds of objects that create the pods of model servers, training and notebooks.
var ofModels = regexp.MustCompile(`^(?:NIM|Nemo|LLM|VLLM|Inference|Ray|Train|PyTorchJob|TFJob|MPIJob|JobSet|Leader|Dynamo|` +
	`Notebook|Workspace|Model|Seldon|Configuration$)`)

// podsNamed counts the pods whose names begin with the name of an object. It also reports whether any of these pods is
// ready, whether any does not run, and which of them was removed before it was ready.
func podsNamed(f *facts.Facts, o finding.Object) (count int, ready, ill bool, removed finding.Evidence) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Namespace == o.Namespace && strings.HasPrefix(pod.Name, o.Name+"-") &&
			pod.Status.Phase != corev1.PodSucceeded { // for example the finished download of a model
			count++
			ready = ready || facts.RunsReady(pod) && pod.DeletionTimestamp == nil
			ill = ill || pod.DeletionTimestamp == nil && (inTrouble(f, pod) || facts.Unscheduled(pod))
			if at := pod.DeletionTimestamp; at != nil && !facts.RunsReady(pod) && len(f.LogsOf(pod)) > 0 {
				var grace time.Duration // deletionTimestamp is when it ends
				if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
					grace = time.Duration(*seconds) * time.Second
				}
				last, _ := lastWords(f, pod, facts.MainContainer(pod))
				removed = finding.Evidence{Source: "its pod " + pod.Name, Text: "removed before it was ready, " +
					words.AgeText(at.Add(-grace).Sub(pod.CreationTimestamp.Time)) + " after its creation: " +
					words.LastLine(last.Text)}
			}
		}
	}
	return count, ready, ill, removed
}

// reportKernel adds findings about errors that a node's kernel reports for other vendors' GPUs, if pods use these GPUs.
func reportKernel(f *facts.Facts, r *engine.Result) {
	for _, n := range f.Nodes {
		if n.IsGPUNode || n.Host == nil {
			continue
		}
		var users []string
		for _, pod := range n.Pods {
			if !facts.Ended(pod) && (facts.OtherAccelerator(pod) != "" || f.OtherClass(pod) != "") && suffers(f, pod) {
				users = append(users, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(users) > 0 {
			r.Add(finding.Finding{
				Object: n.Object(), Nodes: []string{n.Name}, Title: "the kernel reports a GPU error",
				As: signatures.Running, Severity: finding.Warning, PodScope: users,
			})
		}
	}
}

// suffers reports whether a container in the pod is not ready, or has failed within the last day. This is necessary
// because an error in the kernel log may be old.
func suffers(f *facts.Facts, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		last := s.LastTerminationState.Terminated
		return !s.Ready || last != nil && last.ExitCode != 0 && f.Now.Sub(last.FinishedAt.Time) < 24*time.Hour
	})
}

// kindOf returns finding.OfPlugin for pods that belong to software that advertises devices or places pods, and "" for
// others.
func kindOf(pod *corev1.Pod) string {
	if facts.Serves(pod) {
		return finding.OfPlugin
	}
	return ""
}

// waiting returns the unscheduled pods that request the resources advertised by the plugin, or that the plugin should
// schedule.
func waiting(f *facts.Facts, plugin *corev1.Pod) []string {
	if kindOf(plugin) == "" {
		return nil
	}
	all := f.PodsWaitingFor(facts.OfferedBy(plugin))
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		own := pod.Spec.SchedulerName != "" && strings.HasPrefix(plugin.Name, pod.Spec.SchedulerName)
		if facts.Unscheduled(pod) && (own || f.AsksForGPU(pod) && facts.Schedules(plugin.Name)) {
			all = append(all, pod.Namespace+"/"+pod.Name)
		}
	}
	return all
}

// concern returns Error for a pod that is related to GPUs although it requests none, and Warning for others.
func concern(pod *corev1.Pod) finding.Severity {
	if facts.LooksForGPU(pod) {
		return finding.Error
	}
	return finding.Warning
}

func checkOthers(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		name := facts.OtherAccelerator(pod)
		if name == "" || !inTrouble(f, pod) || pod.DeletionTimestamp != nil {
			continue
		}
		issue := finding.Finding{
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Confidence: finding.Likely,
			Title: "the pod, which requests " + string(name) + ", is not running", Failed: facts.LastChange(pod),
			Fix: finding.Fix{Text: "Check the pod's events, and the log of the vendor's device plugin on the nodes."},
		}
		for _, t := range f.Troubles(pod) {
			if t.Ran {
				issue.Fix.Text = "Check the log of container " + t.Container + ", and the pod's events."
			}
			issue.Evidence = append(issue.Evidence, quoteTrouble(pod, t))
		}
		for _, e := range f.EventsOfPod(pod) {
			if e.Type == corev1.EventTypeWarning && len(issue.Evidence) < words.Few {
				q := facts.Quote(e)
				q.Text = words.Clip(q.Text)
				issue.Evidence = append(issue.Evidence, q)
			}
		}
		describeHolders(f, pod, name, &issue)
		describePlugin(f, pod, name, &issue)
		if len(issue.Evidence) == 0 {
			issue.Evidence = []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(pod), ".status.phase", "%s", pod.Status.Phase),
			}
		}
		r.Add(issue)
	}
}

// describePlugin describes a pod that is not scheduled because the plugin that should advertise the resource is not
// running.
func describePlugin(f *facts.Facts, pod *corev1.Pod, name corev1.ResourceName, issue *finding.Finding) {
	offered := func(n *facts.Node) bool { return n.Allocatable(name) > 0 }
	if !facts.Unscheduled(pod) || slices.ContainsFunc(f.Nodes, offered) {
		return
	}
	for i := range f.Snapshot.Pods {
		plugin := &f.Snapshot.Pods[i]
		if !facts.Serves(plugin) || facts.Schedules(plugin.Name) ||
			!words.ContainsAny(string(name), facts.ResourcesOf(plugin.Name)) {
			continue
		}
		t, bad := facts.OperandTrouble(f, plugin)
		if !bad && !inTrouble(f, plugin) {
			continue
		}
		if !bad {
			t.Pod, t.Reason = plugin, string(plugin.Status.Phase)
			t.Evidence = []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(plugin), ".status.phase", "%s", t.Reason),
			}
		}
		found := facts.TroubleFinding(t)
		issue.Title = "no node offers " + string(name) +
			", and a pod of the software that advertises it is not running"
		issue.Cause = "The pod " + plugin.Name + " " + facts.TroubleWords(t) + ". The waiting pod does not need to " +
			"be changed."
		issue.Evidence, issue.Fix = append(found.Evidence, issue.Evidence...), found.Fix
		return
	}
}

// describeHolders describes a pod that is not scheduled because other pods hold the resource's entire capacity.
func describeHolders(f *facts.Facts, pod *corev1.Pod, name corev1.ResourceName, issue *finding.Finding) {
	if !facts.Unscheduled(pod) {
		return
	}
	var all, used int64
	var holders []finding.Evidence
	app := pod.Labels[instance]
	shared := app != ""
	for _, n := range f.Nodes {
		all += n.Allocatable(name)
		for _, other := range n.Pods {
			if holds := facts.Demand(other)[name]; holds > 0 && !facts.Ended(other) && n.Allocatable(name) > 0 {
				used += holds
				shared = shared && other.Namespace == pod.Namespace && other.Labels[instance] == app &&
					facts.CreatorOf(other) != facts.CreatorOf(pod)
				holders = append(holders, finding.Evidence{
					Source: facts.PodObject(other).String() + " on " + n.Object().String(),
					Text:   fmt.Sprintf("%s: %d of %d", name, holds, n.Allocatable(name)),
				})
			}
		}
	}
	if all == 0 || used < all {
		return
	}
	issue.Title = fmt.Sprintf("other pods hold the entire capacity of %s: %d", name, all)
	issue.Cause = "The plugin works and advertises the resource, but all of it is in use."
	issue.Evidence = append(holders[:min(len(holders), words.Few)], issue.Evidence...)
	issue.Fix = finding.Fix{
		Text: "Reduce the requests of the pods that hold the devices: if a device is shared, one share already gives " +
			"access to the whole device (in an app that uses the same number for each of its pods, set the number to " +
			"1). Otherwise, wait, or add nodes.",
		Commands: []string{shell.Command("kubectl -n %s get pod %s -o yaml", pod.Namespace, pod.Name)},
	}
	if shared {
		issue.Title = fmt.Sprintf("several pods of the app %s request %s, but the nodes have only %d", app, name, all)
		issue.Cause = "Other pods of the app hold all of it, so this pod waits as long as they run."
		issue.Fix.Text = "Request the device only in the pods of the app that use it; web servers and databases do " +
			"not. If the chart sets the request for all pods of the app, override it for the others, or update the " +
			"chart. Alternatively, let the device plugin share each device among as many pods (Intel's plugin: " +
			"-shared-dev-num). Deleting the pods that hold it does not help."
	}
}

// instance is the label in which charts store the name of the release that a pod belongs to.
const instance = "app.kubernetes.io/instance"
