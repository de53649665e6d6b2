package engine

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Name sets the title, cause and fix of symptom findings from the signature that matches the messages of their pods and
// nodes. If no signature matches, the finding quotes the most important line, and its cause is unknown.
func (r *Result) Name(f *facts.Facts) {
	if r.Check.Symptom == NoSymptom {
		return
	}
	for i := range r.Findings {
		if found := &r.Findings[i]; found.Severity != finding.Info {
			nameOne(f, r.Check, found)
		}
	}
	r.follow()
	r.Findings = slices.DeleteFunc(r.Findings, func(found finding.Finding) bool {
		return found.Signature == "" && (r.Check.Symptom == Known && found.As != signatures.Unmade ||
			found.As == signatures.Restarted)
	})
}

// follow lowers the severity of a failure whose message names another pod that failed for a different reason, because
// that other pod failed first.
func (r *Result) follow() {
	for i := range r.Findings {
		found := &r.Findings[i]
		if found.Confidence != finding.Possible || found.Signature == "" || len(found.Evidence) == 0 {
			continue
		}
		for j := range r.Findings {
			first := &r.Findings[j]
			if first.Object.Kind == "Pod" && first.Object.Namespace == found.Object.Namespace &&
				first.Object.Name != found.Object.Name && first.Confidence != finding.Possible &&
				strings.Contains(found.Evidence[0].Text, "peer "+first.Object.Name) {
				found.Severity = finding.Info
			}
		}
	}
}

func nameOne(f *facts.Facts, check Check, found *finding.Finding) {
	known := f.Signatures
	pods, node := f.Concerned(*found)
	ofOperator := found.Object.Kind == "ClusterPolicy" || found.Object.Kind == "NVIDIADriver"
	if node == nil && len(pods) > 0 && !ofOperator && slices.Contains([]finding.Layer{
		finding.LayerDevicePlugin, finding.LayerOperator, finding.LayerRuntime, finding.LayerDRA,
	}, check.Layer) {
		node = f.Node(pods[0].Spec.NodeName) // findings in these layers depend on the node's driver and runtime
	}
	lines := f.Lines(pods, node)
	if check.Layer == finding.LayerScheduling {
		if check.ID != "sched.unschedulable" { // the check interprets the scheduler's message itself
			lines = slices.DeleteFunc(lines, func(line signatures.Line) bool {
				if strings.HasPrefix(line.Evidence.Text, "Failed to schedule pod") {
					return false // an event from Karpenter
				}
				return strings.HasPrefix(line.Evidence.Source, "event FailedScheduling ") ||
					strings.Contains(line.Evidence.Source, "[PodScheduled]")
			})
		}
		lines = slices.Concat(f.PlacementLogs(pods), lines, f.Refused(pods))
	}
	switch {
	case strings.HasPrefix(found.As, signatures.Running):
		known = known.Running()
		lines = append(f.Heads(pods), lines...)
		if slices.ContainsFunc(lines, ofPrevious) { // lines from the current instance come first
			now := slices.DeleteFunc(slices.Clone(lines), ofPrevious)
			before := slices.DeleteFunc(lines, func(line signatures.Line) bool { return !ofPrevious(line) })
			lines = slices.Concat(now, before)
		}
	case found.As == signatures.Killed, found.As == signatures.Restarted:
		lines = slices.DeleteFunc(lines, func(line signatures.Line) bool {
			return !ofFailure(line, found.As == signatures.Restarted) && line.Place != signatures.Log
		})
		for i := range lines { // other log lines only confirm a message
			if !ofFailure(lines[i], found.As == signatures.Restarted) {
				lines[i].Place = ""
			}
		}
	case check.Symptom == Known && len(pods) == 0:
		lines = nil // only the object's own event counts
	}
	said := func(line signatures.Line) bool { return line.Place != signatures.Spec }
	if ofOperator || !slices.ContainsFunc(lines, said) {
		var own []signatures.Line // for a running operator, the evidence is more relevant than the rest of its log
		for _, e := range found.Evidence {
			own = append(own, signatures.Line{Place: signatures.Event, Evidence: e})
		}
		lines = append(own, lines...)
	}
	for _, e := range found.Evidence { // a check that compares objects may leave the title to a signature
		lines = append(lines, signatures.Line{Place: signatures.Spec, Evidence: e})
	}
	switch {
	case found.Cause != "":
		check.Symptom = Precise // the check determined the cause of this finding
	case found.Vague && check.Symptom == Precise:
		check.Symptom = Known
	}
	if check.Symptom == Precise {
		known = known.Decisive()
	}
	matches := best(f, known, lines, node)
	if strings.HasPrefix(found.As, signatures.Running) && len(pods) > 0 &&
		(len(matches) == 0 || matches[0].Confidence != finding.Likely && !matches[0].Decisive) {
		if last := lastError(f, pods[0], lines); len(last) > 0 {
			matches = last
		}
	}
	if len(matches) > 0 &&
		(matches[0].Decisive || check.Symptom == Unexplained ||
			check.Symptom != Precise && matches[0].Confidence == finding.Likely ||
			check.Symptom == Known && !strings.HasPrefix(found.As, signatures.Running)) {
		take(f, found, matches[0], pods, node)
		if len(matches) > 1 {
			other := matches[1]
			found.Cause += fmt.Sprintf(" Another message indicates another cause: %s (doctor signatures %s).",
				words.FirstLine(fill(other.Title, values(other, pods, node))), other.ID)
			found.Evidence = append(found.Evidence, other.Line.Evidence)
		}
		return
	}
	if check.Symptom != Unexplained && found.Crashed == "" {
		return
	}
	if found.Crashed != "" { // the node and the other containers log unrelated messages
		lines = slices.DeleteFunc(lines, func(line signatures.Line) bool { return line.Container != found.Crashed })
	}
	if found.Confidence == finding.Certain {
		found.Confidence = finding.Likely
	}
	quote(found, lines)
}

// best returns the best matches. If the driver rejected a node's GPUs, no driver check recognizes the node as a GPU
// node, so the reason in the node's kernel log takes precedence over the messages from its pods.
func best(f *facts.Facts, known *signatures.Set, lines []signatures.Line, node *facts.Node) []signatures.Match {
	if node != nil && (!node.IsGPUNode || node.Host != nil && len(node.Host.Info.GPUs) == 0 &&
		len(node.Host.Probe.PCI) == 0) && known.Decisive() != nil {
		matches := known.Decisive().Best(slices.DeleteFunc(slices.Clone(lines), func(line signatures.Line) bool {
			return line.Place != signatures.Kernel
		}))
		if len(matches) > 0 {
			return matches
		}
	}
	return known.Best(lines)
}

// previous marks the source of lines from the log of an instance that has exited.
const previous = ", previous instance"

func ofPrevious(line signatures.Line) bool { return strings.HasSuffix(line.Evidence.Source, previous) }

// ofFailure reports whether a line about a restarted container either is about the container's failure or comes from
// the pod's spec. withLog is true if the log of the failed instance counts.
func ofFailure(line signatures.Line, withLog bool) bool {
	switch line.Place {
	case signatures.Spec:
		return true
	case signatures.Event:
		return strings.Contains(line.Evidence.Text, "iveness probe")
	case signatures.Status:
		return line.Container != ""
	case signatures.Log:
		return withLog && ofPrevious(line)
	default:
		return false
	}
}

// lastError returns the match for the error at the end of a running pod's log.
func lastError(f *facts.Facts, pod *corev1.Pod, lines []signatures.Line) []signatures.Match {
	if len(f.Troubles(pod)) > 0 || !f.AsksForGPU(pod) && facts.OtherAccelerator(pod) == "" ||
		facts.ComponentOf(pod.Labels, &pod.Spec) != "" {
		return nil // other checks report these pods
	}
	likely := func() []signatures.Match {
		matches := f.Signatures.Best(lines)
		if len(matches) != 1 || matches[0].Confidence != finding.Likely {
			return nil
		}
		return matches
	}
	if likely() == nil {
		return nil // most logs match no signature; skip the search for their last errors
	}
	lines = slices.Clone(lines)
	f.RecentErrors(pod, lines)
	if matches := likely(); matches != nil && matches[0].Line.Place == signatures.Log {
		return matches
	}
	return nil
}

// take copies the signature's title, cause and fix into the finding.
func take(f *facts.Facts, found *finding.Finding, m signatures.Match, pods []*corev1.Pod, node *facts.Node) {
	v := values(m, pods, node)
	fix := signatures.Fix{Fix: m.Fix, Commands: m.Commands}
	if node == nil && len(pods) > 0 {
		node = f.Node(pods[0].Spec.NodeName)
	}
	if node == nil {
		node = f.Typical()
	}
	if node != nil {
		if own, ok := m.Platforms[string(node.Distribution)]; ok {
			fix = own
		}
	}
	found.Signature, found.Confidence, found.Decisive = m.ID, m.Confidence, m.Decisive || found.Decisive
	found.Title = words.FirstLine(fill(m.Title, v))
	found.Cause = fill(m.Cause, v)
	look := slices.DeleteFunc(
		slices.Clone(found.Fix.Commands),
		func(command string) bool { return !reads.MatchString(command) },
	)
	found.Fix = finding.Fix{Text: fill(fix.Fix, v)}
	for _, command := range fix.Commands {
		inCopy := command
		if len(pods) > 0 && facts.Stopped(pods[0], v["container"]) {
			inCopy = strings.Replace(command, " exec {pod} -c {container} -- ",
				" debug {pod} -it --copy-to={pod}-debug --container={container} -- ", 1)
		}
		if command, ok := v.command(inCopy); ok {
			found.Fix.Commands = append(found.Fix.Commands, command)
		}
		if inCopy != command {
			found.Fix.Text += " The debug command runs in a copy of the pod, which needs GPUs of its own; delete the " +
				"copy afterwards."
		}
	}
	for _, command := range look {
		if !slices.Contains(found.Fix.Commands, command) && len(found.Fix.Commands) < finding.Most {
			found.Fix.Commands = append(found.Fix.Commands, command)
		}
	}
	if m.Also != nil && (m.Version != "" || m.Also.Compared || m.Also.Place == signatures.Kernel ||
		m.Line.Place == signatures.Spec && m.Also.Place != signatures.Spec) {
		addEvidence(found, m.Also.Evidence)
	}
	addEvidence(found, m.Line.Evidence)
}

// reads matches commands that are read-only.
var reads = regexp.MustCompile(`^kubectl (?:-n \S+ )?(?:logs|describe|get) `)

// addEvidence prepends a quotation to the evidence and removes any duplicate of it.
func addEvidence(found *finding.Finding, e finding.Evidence) {
	e.Text = words.Clip(e.Text)
	rest := slices.DeleteFunc(slices.Clone(found.Evidence), func(other finding.Evidence) bool {
		return other.Source == e.Source && other.Text == e.Text
	})
	found.Evidence = append([]finding.Evidence{e}, rest...)
}

// filling maps placeholders to their values.
type filling map[string]string

func values(m signatures.Match, pods []*corev1.Pod, node *facts.Node) filling {
	v := filling{"container": m.Line.Container}
	if len(pods) > 0 {
		pod := pods[0]
		v["namespace"], v["pod"], v["node"] = pod.Namespace, pod.Name, pod.Spec.NodeName
		if v["container"] == "" && len(pod.Spec.Containers) > 0 {
			v["container"] = pod.Spec.Containers[0].Name
		}
		v["image"] = facts.ImageOf(pod, v["container"])
	}
	if node != nil {
		v["node"] = node.Name
	}
	if m.Version != "" {
		v["version"] = m.Version
	}
	for i, group := range m.Groups() {
		v[fmt.Sprint(i)] = words.Clip(strings.TrimSpace(group))
	}
	return v
}

var placeholder = regexp.MustCompile(`\{([a-z]+|\d)\}`)

func fill(text string, v filling) string {
	return strings.TrimSpace(placeholder.ReplaceAllStringFunc(text, func(p string) string {
		if value, ok := v[p[1:len(p)-1]]; ok {
			return value
		}
		return p
	}))
}

// local lists the programs that users run on their own machine. All other programs run in the node's shell.
var local = []string{
	"kubectl", "helm", "oc", "aws", "gcloud", "az", "eksctl", "talosctl", "oci", "skopeo", "crane", "rosa", "hf",
	"huggingface-cli", "ngc", "kustomize", "argocd", "flux",
}

// command replaces the placeholders in a command with their values. ok is false if a value is missing.
func (v filling) command(text string) (command string, ok bool) {
	var args []any
	ok = true
	format := placeholder.ReplaceAllStringFunc(strings.ReplaceAll(text, "%", "%%"), func(p string) string {
		value := v[p[1:len(p)-1]]
		ok = ok && value != ""
		args = append(args, value)
		return "%s"
	})
	program, _, _ := strings.Cut(text, " ")
	switch {
	case !ok:
	case strings.HasPrefix(text, "#"):
		return text, len(args) == 0
	case slices.Contains(local, program):
		command = shell.Command(format, args...)
	default:
		command = shell.OnHost(v["node"], format, args...)
	}
	return command, ok && command != shell.LeftOut
}
