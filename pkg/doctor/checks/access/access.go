// Package access checks for GPU pods that the API server rejects because of RBAC, quotas, or Pod Security.
package access

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// wl.forbidden sends no SubjectAccessReview, because a snapshot contains no roles. If the API server rejects a request
// from a user or a pipeline, the request leaves no trace in the cluster. The check therefore finds only rejections
// reported by a controller (FailedCreate) or in a pod's log.

// Checks returns the checks for the access layer.
func Checks() []engine.Check {
	const reads = "FailedCreate events of ReplicaSets, Jobs, StatefulSets and DaemonSets from the last hour"
	component := map[string][]string{ofComponent: {
		"op.*", "dp.*", "drv.*", "gfd.*", "nfd.*", "obs.*", "dra.*", "wl.forbidden", "wl.pod-failing",
		"sched.none-advertised",
	}}
	return []engine.Check{
		{
			ID: "rbac.quota", Symptom: engine.Precise, Layer: finding.LayerAccess, Title: "a quota or limit prevents GPU pods from being created",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: reads + "; ResourceQuotas and LimitRanges",
			Why: "The API server's error names the quota and the requested and used amounts. A quota whose key is " +
				"nvidia.com/gpu instead of requests.nvidia.com/gpu limits nothing, and is reported as a warning.",
			Explains: []string{"wl.forbidden", "wl.pod-failing"}, ExplainsAs: component,
			Doc:     "https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources",
			Sources: []string{"kubeflow/website#2460", "eidf#26", "k8s-device-plugin#304"},
			Run:     checkQuota,
		},
		{
			ID: "ns.podsecurity", Symptom: engine.Precise, Layer: finding.LayerAccess,
			Title: "Pod Security rejects pods in a namespace",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: reads + "; namespace labels pod-security.kubernetes.io/*",
			Why:   "The GPU operator's components need privileged pods, so their namespace must not enforce a stricter level. Rejected component pods affect all GPU nodes.",
			Explains: []string{"op.*", "dp.*", "drv.*", "gfd.*", "nfd.*", "obs.*", "dra.*", "wl.forbidden",
				"wl.other-accelerator"},
			ExplainsAs: map[string][]string{
				ofComponent: component[ofComponent],
				finding.OfPlugin: {"wl.other-accelerator", "sched.insufficient-other", "sched.none-advertised",
					"sched.all-in-use"},
			},
			Doc:     "https://kubernetes.io/docs/concepts/security/pod-security-admission/",
			Sources: []string{"gpu-operator#185", "gpu-operator#364"},
			Run:     checkPodSecurity,
		},
		{
			ID: "wl.forbidden", Symptom: engine.Precise, Layer: finding.LayerAccess,
			Title:    "the API server rejects the creation of GPU pods, or a request from a GPU pod",
			Needs:    []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads:    reads + "; logs of failing GPU pods",
			Why:      "Rejections by RBAC, admission webhooks or policies, or because a service account is missing. A rejection is ignored if the pods' owner has since created a pod.",
			Explains: []string{"wl.pod-failing", "op.operand-failing", "dp.not-running"}, ExplainsAs: component,
			Doc:     "https://kubernetes.io/docs/reference/access-authn-authz/rbac/",
			Sources: []string{"seed 001, scenario 8"},
			Run:     checkForbidden,
		},
	}
}

// severity returns the severity of a rejection (Error if it concerns GPUs, otherwise Warning) and the confidence.
func severity(x facts.Refusal, f *facts.Facts) (finding.Severity, finding.Confidence) {
	switch {
	case x.GPU || x.Component != "":
		return finding.Error, finding.Certain
	case strings.Contains(x.Event.Message, "is forbidden: User "):
		return finding.Warning, finding.Possible
	case slices.ContainsFunc(f.GPUPods, func(pod *corev1.Pod) bool { return pod.Namespace == x.Owner.Namespace }):
		return finding.Warning, finding.Possible
	}
	return finding.Warning, finding.Possible // the workload may need GPUs
}

// ofComponent is the kind (Finding.As) of findings about GPU components. These findings explain why no GPUs are
// advertised.
const ofComponent = "component"

func issueOf(x facts.Refusal, f *facts.Facts) finding.Finding {
	severity, confidence := severity(x, f)
	q := facts.Quote(x.Event)
	q.Text = words.Clip(q.Text)
	issue := finding.Finding{
		Object: x.Owner, Severity: severity, Confidence: confidence, Evidence: []finding.Evidence{q},
	}
	if x.Component != "" {
		issue.As = ofComponent
		for _, n := range f.GPUNodes {
			issue.Nodes = append(issue.Nodes, n.Name)
		}
		return issue
	}
	return issue.ForPods(x.Owner.String()) // no pod exists, so count the owner in place of its pods
}

func isQuota(message string) bool {
	return strings.Contains(message, "exceeded quota") || strings.Contains(message, "failed quota") ||
		strings.Contains(message, " usage per ") ||
		strings.Contains(message, "limit to request ratio") ||
		strings.Contains(message, "insufficient quota to match these scopes")
}

func isPodSecurity(message string) bool {
	return strings.Contains(message, "violates PodSecurity") ||
		strings.Contains(message, "unable to validate against any pod security policy") ||
		strings.Contains(message, "unable to validate against any security context constraint")
}

// isRefusal reports whether the API server rejected the request, as opposed to failing to process it.
func isRefusal(message string) bool {
	return words.ContainsAny(message, []string{"forbidden", "denied", "webhook", "not found", "is invalid"})
}

func checkQuota(f *facts.Facts, r *engine.Result) {
	if !r.Lacks(f, "api/events") {
		for _, x := range f.Refusals() {
			if !isQuota(x.Event.Message) {
				continue
			}
			issue := issueOf(x, f)
			issue.Title = "a quota or limit in the namespace rejects the pods"
			issue.Fix = finding.Fix{Text: "Raise the quota, or delete objects that use it.", Commands: []string{
				shell.Command("kubectl -n %s describe resourcequota,limitrange", x.Owner.Namespace),
			}}
			limit, numbers := exceeded(x.Event.Message)
			if numbers {
				issue.Title = fmt.Sprintf("the quota %s allows %d of %s, %d are in use, and a pod requests %d more",
					limit.quota, limit.hard, limit.resource, limit.used, limit.asked)
			}
			for i := range f.ResourceQuotas {
				q := &f.ResourceQuotas[i]
				if q.Namespace != x.Owner.Namespace || !strings.Contains(x.Event.Message, q.Name) {
					continue
				}
				issue.Evidence = append(issue.Evidence, quoteQuota(q)...)
				if numbers && limit.quota == q.Name {
					issue.Fix.Text = "Raise the quota by at least the request of one pod, or delete objects that " +
						"use it."
					issue.Fix.Commands = append(issue.Fix.Commands,
						shell.Command("kubectl -n %s patch resourcequota %s --type merge -p %s", q.Namespace, q.Name,
							fmt.Sprintf(`{"spec":{"hard":{%q:"%d"}}}`, limit.resource, limit.used+limit.asked)))
					continue
				}
				issue.Fix.Commands = append(issue.Fix.Commands,
					shell.Command("kubectl -n %s edit resourcequota %s", q.Namespace, q.Name))
			}
			r.Add(issue)
		}
	}
	if r.Lacks(f, "api/resourcequotas") {
		return
	}
	for i := range f.ResourceQuotas {
		q := &f.ResourceQuotas[i]
		for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
			hard := q.Spec.Hard[name]
			if !facts.IsGPUResource(name) {
				continue
			}
			r.Add(finding.Finding{
				Title:    "the quota key limits nothing: a key for GPUs must begin with requests.",
				Object:   finding.Object{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name},
				Severity: finding.Warning, Nodes: nil,
				Evidence: []finding.Evidence{{
					Source: fmt.Sprintf("ResourceQuota %s/%s .spec.hard", q.Namespace, q.Name),
					Text:   fmt.Sprintf("%s: %s", name, hard.String()),
				}},
				Fix: finding.Fix{
					Text: "Rename the key to requests." + string(name) + ".",
					Commands: []string{shell.Command("kubectl -n %s patch resourcequota %s --type=json -p %s",
						q.Namespace,
						q.Name,
						fmt.Sprintf(
							`[{"op":"remove","path":"/spec/hard/%s"},{"op":"add","path":"/spec/hard/requests.%s","value":%q}]`,
							pointer(name),
							pointer(name),
							hard.String(),
						))},
				},
			}.ForPods("ResourceQuota " + q.Namespace + "/" + q.Name)) // the quota does not reject pods
		}
	}
}

// exceededQuota is an exceeded GPU quota, as reported in an API server error.
type exceededQuota struct {
	quota, resource   string
	asked, used, hard int
}

// exceeded parses `exceeded quota: gpuq, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1,
// limited: requests.nvidia.com/gpu=1`. It returns false if the message has a different form or names several resources.
func exceeded(message string) (q exceededQuota, ok bool) {
	m := regexp.MustCompile(
		`exceeded quota: ([a-z0-9.-]+), requested: ([a-zA-Z0-9./_-]+)=(\d{1,6}), used: ([a-zA-Z0-9./_-]+)=(\d{1,6}), limited: ([a-zA-Z0-9./_-]+)=(\d{1,6})$`,
	).
		FindStringSubmatch(strings.TrimSpace(message))
	if m == nil || m[2] != m[4] || m[2] != m[6] {
		return q, false
	}
	numbers := [3]int{}
	for i, text := range []string{m[3], m[5], m[7]} {
		n, err := strconv.Atoi(text)
		if err != nil {
			return q, false
		}
		numbers[i] = n
	}
	return exceededQuota{m[1], m[2], numbers[0], numbers[1], numbers[2]}, true
}

// pointer escapes a resource name for a JSON pointer.
func pointer(name corev1.ResourceName) string { return strings.ReplaceAll(string(name), "/", "~1") }

// quoteQuota quotes the GPU resources in a quota's status.
func quoteQuota(q *corev1.ResourceQuota) []finding.Evidence {
	var all []finding.Evidence
	for name, hard := range q.Status.Hard {
		if facts.IsGPUResource(corev1.ResourceName(strings.TrimPrefix(string(name), "requests."))) {
			used := q.Status.Used[name]
			all = append(all, finding.Evidence{
				Source: fmt.Sprintf("ResourceQuota %s/%s .status", q.Namespace, q.Name),
				Text:   fmt.Sprintf("%s: used %s, hard %s", name, used.String(), hard.String()),
			})
		}
	}
	sorting.Func(all, func(a, b finding.Evidence) int { return strings.Compare(a.Text, b.Text) })
	return all
}

func checkPodSecurity(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/events") {
		return
	}
	for _, x := range f.Refusals() {
		if !isPodSecurity(x.Event.Message) {
			continue
		}
		issue := issueOf(x, f)
		issue.Title = "Pod Security rejects the pods in the namespace"
		issue.Fix = finding.Fix{
			Text: "Make the pods meet the level that the namespace enforces: no privileged containers, no host " +
				"namespaces, no hostPath volumes. Pods that get their GPU from a device plugin do not need them.",
			Commands: []string{shell.Command("kubectl get namespace %s --show-labels", x.Owner.Namespace)},
		}
		if mountsGPU.MatchString(x.Event.Message) {
			issue.Title = "Pod Security rejects the pods, which get their GPU through hostPath volumes"
			issue.Severity, issue.Confidence = finding.Error, finding.Likely
			issue.Fix.Text = "Without a device plugin, only these volumes give the pods their GPU, and they need the " +
				"privileged level. If users cannot create pods in the namespace, give it the label " +
				"pod-security.kubernetes.io/enforce=privileged (warn and audit can keep their level). If the nodes " +
				"have a GPU resource in .status.allocatable, or users can create pods there, let a device plugin " +
				"provide the GPU: make the pods request its resource, and remove the settings in the message."
		}
		if x.Component != "" {
			issue.Title = "Pod Security rejects the pods of a GPU component, which must be privileged"
			issue.Fix.Text =
				"If you installed these pods as a GPU component, run them in a dedicated namespace that allows " +
					"privileged pods (the GPU operator's chart does this for its own namespace: psa.enabled=true) " +
					"and that users cannot access. Do not lower the level of a namespace that users can access: pod " +
					"labels do not show who created a pod."
			if forComponents(x.Owner.Namespace) {
				issue.Fix = finding.Fix{
					Text: "Allow privileged pods in the namespace of the GPU components (in the GPU operator's chart: psa.enabled=true).",
					Commands: []string{shell.Command(
						"kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite",
						x.Owner.Namespace,
					)},
				}
			}
		}
		if x.Component == "" && x.Owner.Kind == "DaemonSet" && vendors.MatchString(x.Owner.Name) {
			issue.Title = "Pod Security rejects the pods of a device plugin or driver, which must be privileged"
			issue.Severity, issue.Confidence = finding.Error, finding.Certain
			issue.As, issue.PodScope = finding.OfPlugin, nil
			issue.Fix = finding.Fix{
				Text: "If you installed the plugin, and users cannot create pods in its namespace, give the " +
					"namespace the label pod-security.kubernetes.io/enforce=privileged: the plugin needs its " +
					"hostPath volumes. (Talos enforces the baseline level unless a label sets another.) The name of " +
					"a DaemonSet does not show who created it.",
				Commands: issue.Fix.Commands,
			}
		}
		for i := range f.Namespaces {
			for key, value := range f.Namespaces[i].Labels {
				if f.Namespaces[i].Name == x.Owner.Namespace && key == "pod-security.kubernetes.io/enforce" {
					issue.Evidence = append(issue.Evidence, finding.Evidence{
						Source: "Namespace " + x.Owner.Namespace + " .metadata.labels", Text: key + "=" + value,
					})
				}
			}
		}
		r.Add(issue)
	}
}

// mountsGPU matches rejections of hostPath volumes that are named after device files of GPUs.
var mountsGPU = regexp.MustCompile(`hostPath vol.*"(?:[\w-]*-)?(?:kfd|dri|renderd?\d*|nvidia\w*|davinci\w*|accel\d*)"`)

// vendors matches the names of other vendors' device plugin and driver DaemonSets.
var vendors = regexp.MustCompile(
	`(?:^|-)(?:gpu|npu|tpu|qat|dsa|fpga|rdma|sriov|efa|neuron|amdgpu|habana|gaudi|device)(?:-\w+)*-?` +
		`(?:plugin|driver|daemonset|ds)\b`,
)

// forComponents reports whether Helm charts for GPU software are usually installed in the namespace. It ignores pod
// labels, because anyone who can create pods in a namespace can set them.
func forComponents(namespace string) bool {
	return slices.Contains([]string{
		"kube-system", "gpu-operator", "nvidia-gpu-operator", "gpu-operator-resources", "nvidia-device-plugin",
		"nvidia-dra-driver-gpu", "node-feature-discovery",
	}, namespace)
}

func checkForbidden(f *facts.Facts, r *engine.Result) {
	if !r.Lacks(f, "api/events") {
		for _, x := range f.Refusals() {
			if isQuota(x.Event.Message) || isPodSecurity(x.Event.Message) || !isRefusal(x.Event.Message) {
				continue
			}
			if id, _ := facts.Recognize(x.Event.Message); id == "rc.handler-mismatch" {
				continue // rc.handler-mismatch reports the rejection
			}
			issue := issueOf(x, f)
			issue.Title, issue.Fix, issue.Vague = forbiddenFix(x)
			r.Add(issue)
		}
	}
	for _, pod := range f.Workloads() {
		troubles := f.Troubles(pod)
		if len(troubles) == 0 {
			continue
		}
		e, found := f.Said(pod, troubles, `is forbidden: User "system:serviceaccount:`)
		if !found {
			continue
		}
		account := pod.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		r.Add(finding.Finding{
			Title:  "the API server rejects a request from the pod's service account",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Confidence: finding.Likely, Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text: "Check whether the program should have this permission: its log alone does not prove this. If " +
					"so, create a Role with only the verb and resource in the message, in the namespace that the " +
					"message names, and bind the Role to the service account " + account +
					". Do not bind a broader role such as edit. A binding's role cannot be changed: delete a wrong binding and recreate it.",
				Commands: []string{shell.Command("kubectl auth can-i --list -n %s --as=system:serviceaccount:%s:%s",
					pod.Namespace, pod.Namespace, account)},
			},
		})
	}
}

// forbiddenFix returns the title and the fix for a rejection. vague is true if it does not interpret the message.
func forbiddenFix(x facts.Refusal) (title string, fix finding.Fix, vague bool) {
	message := x.Event.Message
	describe := shell.Command(
		"kubectl -n %s describe %s %s", x.Owner.Namespace, strings.ToLower(x.Owner.Kind), x.Owner.Name,
	)
	switch {
	case strings.Contains(message, "against any pod security policy"):
		return "the pods' service account is not allowed to use any PodSecurityPolicy that allows the " +
				"pods", finding.Fix{
				Text: "Let the service account use a policy that allows the settings in the message: create a Role with " +
					"the use verb for the policy, and a RoleBinding in the namespace (older charts have a value for " +
					"this). Kubernetes 1.25 removed PodSecurityPolicy.",
				Commands: []string{describe, "kubectl get podsecuritypolicies"},
			}, false
	case strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
		return "the pods cannot be created: their service account does not exist",
			finding.Fix{
				Text:     "Create the service account, or specify one that exists.",
				Commands: []string{describe, shell.Command("kubectl -n %s get serviceaccounts", x.Owner.Namespace)},
			}, false
	case strings.Contains(message, "webhook"):
		return rejectedByWebhook(message),
			finding.Fix{
				Text: "See the webhook's message. If the webhook does not respond, check its Service and pods.",
				Commands: []string{
					describe, "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
				},
			}, true
	case strings.Contains(message, "is forbidden: User "):
		return "the pods cannot be created: a role is missing", finding.Fix{
			Text: "Bind a role that allows creating pods to the user named in the message. A binding's role cannot " +
				"be changed: delete and recreate the binding.",
			Commands: []string{
				describe,
				shell.Command("kubectl get rolebindings,clusterrolebindings -A -o wide | grep -F %s",
					x.Owner.Namespace),
			},
		}, false
	}
	return "the API server rejects the pods", finding.Fix{
		Text: "See the API server's message.", Commands: []string{describe},
	}, true
}

var (
	byWebhook = regexp.MustCompile(`admission webhook "([^"]+)" denied the request: *(.+)`)
	ofWebhook = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
)

// rejectedByWebhook returns the title for a rejection by an admission webhook, or for a rejection because the call to a
// webhook failed.
func rejectedByWebhook(message string) string {
	if m := byWebhook.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("the admission webhook %s rejects the pods: %s", m[1], words.ClipTo(m[2], longestReason))
	}
	if m := ofWebhook.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("the pods cannot be created, because the call of the admission webhook %s fails", m[1])
	}
	return "an admission webhook rejects the pods, or does not respond"
}

// longestReason is the maximum length, in bytes, of a webhook's reason in a title.
const longestReason = 160
