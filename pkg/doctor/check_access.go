package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the catalog has and these checks do not: wl.forbidden asks no SubjectAccessReview, because a snapshot holds no
// roles; a request that the API server refused to a user or a pipeline leaves no trace in the cluster, and is seen only
// where a controller tried (FailedCreate) or a pod's log says so.

func accessChecks() []Check {
	const reads = "events FailedCreate of ReplicaSets, Jobs, StatefulSets and DaemonSets of the last hour"
	return []Check{
		{
			ID: "rbac.quota", Layer: LayerAccess, Title: "a quota or a limit keeps GPU pods from being created",
			Needs:    []Need{NeedAPI},
			Reads:    reads + "; ResourceQuotas and LimitRanges",
			Why:      "The API server's refusal names the quota, what was asked for and what is used. A quota on nvidia.com/gpu without the prefix requests. limits nothing: a warning.",
			Explains: []string{"wl.forbidden", "wl.pod-failing"},
			Doc:      "https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources",
			Sources:  []string{"kubeflow/website#2460", "eidf#26", "k8s-device-plugin#304"},
			Run:      checkQuota,
		},
		{
			ID: "ns.podsecurity", Layer: LayerAccess, Title: "Pod Security of a namespace refuses its pods",
			Needs:    []Need{NeedAPI},
			Reads:    reads + "; labels pod-security.kubernetes.io/* of namespaces",
			Why:      "The components of the GPU operator need privileged pods, so that their namespace must enforce nothing stricter. Refused pods of components concern all GPU nodes.",
			Explains: []string{"op.*", "dp.*", "drv.*", "gfd.*", "nfd.*", "obs.*", "dra.*", "wl.forbidden"},
			Doc:      "https://kubernetes.io/docs/concepts/security/pod-security-admission/",
			Sources:  []string{"gpu-operator#185", "gpu-operator#364"},
			Run:      checkPodSecurity,
		},
		{
			ID: "wl.forbidden", Layer: LayerAccess,
			Title:    "the API server refuses to create GPU pods, or refuses what a GPU pod asks of it",
			Needs:    []Need{NeedAPI, NeedLogs},
			Reads:    reads + "; logs of failing GPU pods",
			Why:      "Refusals by RBAC, admission webhooks and policies, a missing service account. One that a newer pod of the same owner disproves is not told.",
			Explains: []string{"wl.pod-failing", "op.operand-failing", "dp.not-running"},
			Doc:      "https://kubernetes.io/docs/reference/access-authn-authz/rbac/",
			Sources:  []string{"seed 001, scenario 8"},
			Run:      checkForbidden,
		},
	}
}

// refusal is an owner whose pods the API server does not let be created.
type refusal struct {
	event *corev1.Event
	owner Object
	// gpu reports whether the pods are known to ask for GPUs; component is what part of the GPU software they are.
	gpu       bool
	component Component
}

// refusals returns those of the last hour that no newer pod or event disproves, one for each owner.
func (f *Facts) refusals() []refusal {
	var all []refusal
	seen := map[Object]bool{}
	for i := range f.Snapshot.Events {
		e := &f.Snapshot.Events[i]
		owner := Object{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
		if e.Reason != "FailedCreate" || seen[owner] || f.Now.Sub(EventTime(e)) > time.Hour {
			continue
		}
		newest := e
		for _, other := range f.EventsOf(owner.Kind, owner.Namespace, owner.Name) { // the newest first
			if other.Reason == "FailedCreate" || other.Reason == "SuccessfulCreate" {
				newest = other
				break
			}
		}
		seen[owner] = true
		if newest.Reason != "FailedCreate" || f.createdSince(owner, EventTime(newest)) || f.rolledOut(owner) ||
			f.classThere(newest.Message) {
			continue
		}
		all = append(all, f.refusal(owner, newest))
	}
	return all
}

// ownedBy returns the pods that an object controls.
func (f *Facts) ownedBy(owner Object) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		c := metav1.GetControllerOf(pod)
		if c != nil && pod.Namespace == owner.Namespace && c.Kind == owner.Kind && c.Name == owner.Name {
			all = append(all, pod)
		}
	}
	return all
}

func (f *Facts) createdSince(owner Object, t time.Time) bool {
	return slices.ContainsFunc(f.ownedBy(owner), func(pod *corev1.Pod) bool { return pod.CreationTimestamp.After(t) })
}

// rolledOut reports whether a ReplicaSet is an old one, of a Deployment that has a newer one whose pods are ready: it
// wants no pods any more.
func (f *Facts) rolledOut(owner Object) bool {
	deployment := owner.Name[:max(strings.LastIndexByte(owner.Name, '-'), 0)]
	if owner.Kind != "ReplicaSet" || deployment == "" || len(f.ownedBy(owner)) > 0 {
		return false
	}
	return slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
		c := metav1.GetControllerOf(&pod)
		if c == nil || pod.Namespace != owner.Namespace || c.Kind != owner.Kind || c.Name == owner.Name {
			return false
		}
		return c.Name[:max(strings.LastIndexByte(c.Name, '-'), 0)] == deployment && isReady(&pod)
	})
}

// classThere reports whether a refusal says that a RuntimeClass does not exist which does by now: the controller tries
// again by itself.
func (f *Facts) classThere(message string) bool {
	id, class := recognize(message)
	return id == "rc.handler-mismatch" && f.Missing("api/runtimeclasses") == "" && f.runtimeClass(class) != nil
}

func (f *Facts) refusal(owner Object, e *corev1.Event) refusal {
	x := refusal{event: e, owner: owner, gpu: strings.Contains(e.Message, "nvidia.com/")}
	for _, pod := range f.ownedBy(owner) {
		x.gpu = x.gpu || f.wantsGPU(pod)
		if c := ComponentOf(pod.Labels, pod.Spec); c != "" {
			x.component = c
		}
	}
	for i := range f.Snapshot.DaemonSets {
		set := &f.Snapshot.DaemonSets[i]
		if owner.Kind == "DaemonSet" && set.Namespace == owner.Namespace && set.Name == owner.Name {
			x.component = ComponentOf(set.Spec.Template.Labels, set.Spec.Template.Spec)
		}
	}
	return x
}

// severity: what is known to concern GPUs is an error; in a namespace that has GPU pods it may, and a missing role is
// rare enough to be told in any.
func (x refusal) severity(f *Facts) (Severity, Confidence) {
	switch {
	case x.gpu || x.component != "":
		return Error, Certain
	case strings.Contains(x.event.Message, "is forbidden: User "):
		return Warning, Possible
	case slices.ContainsFunc(f.GPUPods, func(pod *corev1.Pod) bool { return pod.Namespace == x.owner.Namespace }):
		return Warning, Possible
	}
	return Info, Possible
}

func (x refusal) finding(f *Facts) Finding {
	severity, confidence := x.severity(f)
	q := Quote(x.event)
	q.Text = cut(q.Text)
	finding := Finding{Object: x.owner, Severity: severity, Confidence: confidence, Evidence: []Evidence{q}}
	if x.component != "" {
		for _, n := range f.GPUNodes {
			finding.Nodes = append(finding.Nodes, n.Name)
		}
		return finding
	}
	return finding.ForPods(x.owner.String()) // no pod exists: the owner stands for those that should
}

func isQuota(message string) bool {
	return strings.Contains(message, "exceeded quota") || strings.Contains(message, "failed quota") ||
		strings.Contains(message, " usage per ") ||
		strings.Contains(message, "limit to request ratio")
}

func isPodSecurity(message string) bool {
	return strings.Contains(message, "violates PodSecurity") ||
		strings.Contains(message, "unable to validate against any pod security policy") ||
		strings.Contains(message, "unable to validate against any security context constraint")
}

// isRefusal reports whether the API server said no, and did not only fail.
func isRefusal(message string) bool {
	return containsAny(message, []string{"forbidden", "denied", "webhook", "not found", "is invalid"})
}

func checkQuota(f *Facts, r *Result) {
	if !r.Lacks(f, "api/events") {
		for _, x := range f.refusals() {
			if !isQuota(x.event.Message) {
				continue
			}
			finding := x.finding(f)
			finding.Title = "a quota or limit of the namespace refuses the pods"
			finding.Fix = Fix{Text: "Raise the quota, or end what uses it up.", Commands: []string{
				command("kubectl -n %s describe resourcequota,limitrange", x.owner.Namespace),
			}}
			limit, numbers := exceeded(x.event.Message)
			if numbers {
				finding.Title = fmt.Sprintf("the quota %s allows %d of %s, %d are used, and a pod asks for %d more",
					limit.quota, limit.hard, limit.resource, limit.used, limit.asked)
			}
			for i := range f.ResourceQuotas {
				q := &f.ResourceQuotas[i]
				if q.Namespace != x.owner.Namespace || !strings.Contains(x.event.Message, q.Name) {
					continue
				}
				finding.Evidence = append(finding.Evidence, quoteQuota(q)...)
				if numbers && limit.quota == q.Name {
					finding.Fix.Text = "Raise the quota, here by what one pod asks for, or end what uses it up."
					finding.Fix.Commands = append(finding.Fix.Commands,
						command("kubectl -n %s patch resourcequota %s --type merge -p %s", q.Namespace, q.Name,
							fmt.Sprintf(`{"spec":{"hard":{%q:"%d"}}}`, limit.resource, limit.used+limit.asked)))
					continue
				}
				finding.Fix.Commands = append(finding.Fix.Commands,
					command("kubectl -n %s edit resourcequota %s", q.Namespace, q.Name))
			}
			r.Add(finding)
		}
	}
	if r.Lacks(f, "api/resourcequotas") {
		return
	}
	for i := range f.ResourceQuotas {
		q := &f.ResourceQuotas[i]
		for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
			hard := q.Spec.Hard[name]
			if !IsGPUResource(name) {
				continue
			}
			r.Add(Finding{
				Title:    "the quota's key limits nothing: for GPUs it must begin with requests.",
				Object:   Object{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name},
				Severity: Warning, Nodes: nil,
				Evidence: []Evidence{{
					Source: fmt.Sprintf("ResourceQuota %s/%s .spec.hard", q.Namespace, q.Name),
					Text:   fmt.Sprintf("%s: %s", name, hard.String()),
				}},
				Fix: Fix{
					Text: "Rename the key to requests." + string(name) + ".",
					Commands: []string{command("kubectl -n %s patch resourcequota %s --type=json -p %s", q.Namespace,
						q.Name,
						fmt.Sprintf(
							`[{"op":"remove","path":"/spec/hard/%s"},{"op":"add","path":"/spec/hard/requests.%s","value":%q}]`,
							pointer(name), pointer(name), hard.String(),
						))},
				},
			}.ForPods("ResourceQuota " + q.Namespace + "/" + q.Name)) // it refuses nothing, and explains nothing
		}
	}
}

// exceededQuota is what a quota allows of GPUs, in the words of the API server.
type exceededQuota struct {
	quota, resource   string
	asked, used, hard int
}

// exceeded reads `exceeded quota: gpuq, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited:
// requests.nvidia.com/gpu=1`; ok is false for what is no such message about one resource.
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

// pointer escapes a name for a JSON pointer.
func pointer(name corev1.ResourceName) string { return strings.ReplaceAll(string(name), "/", "~1") }

// quoteQuota quotes what a quota says of GPUs.
func quoteQuota(q *corev1.ResourceQuota) []Evidence {
	var all []Evidence
	for name, hard := range q.Status.Hard {
		if IsGPUResource(corev1.ResourceName(strings.TrimPrefix(string(name), "requests."))) {
			used := q.Status.Used[name]
			all = append(all, Evidence{
				Source: fmt.Sprintf("ResourceQuota %s/%s .status", q.Namespace, q.Name),
				Text:   fmt.Sprintf("%s: used %s, hard %s", name, used.String(), hard.String()),
			})
		}
	}
	slices.SortFunc(all, func(a, b Evidence) int { return strings.Compare(a.Text, b.Text) })
	return all
}

func checkPodSecurity(f *Facts, r *Result) {
	if r.Lacks(f, "api/events") {
		return
	}
	for _, x := range f.refusals() {
		if !isPodSecurity(x.event.Message) {
			continue
		}
		finding := x.finding(f)
		finding.Title = "Pod Security of the namespace refuses the pods"
		finding.Fix = Fix{
			Text:     "Make the pods meet the level that the namespace enforces: no privilege, no host namespaces, no hostPath; a GPU by itself needs none of these.",
			Commands: []string{command("kubectl get namespace %s --show-labels", x.owner.Namespace)},
		}
		if x.component != "" {
			finding.Title = "Pod Security of the namespace refuses the pods of a GPU component, which need privilege"
			finding.Fix.Text =
				"If these pods are a GPU component that you installed, let a namespace that holds nothing else run privileged pods (chart of the GPU operator: psa.enabled=true " +
					"does it for its own), and keep users out of it. In a namespace of users leave the level as it is: labels on a pod say nothing of who made it."
			if forComponents(x.owner.Namespace) {
				finding.Fix = Fix{
					Text: "Let the namespace of the GPU components run privileged pods (chart of the GPU operator: psa.enabled=true does it).",
					Commands: []string{command(
						"kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite",
						x.owner.Namespace,
					)},
				}
			}
		}
		for i := range f.Namespaces {
			for key, value := range f.Namespaces[i].Labels {
				if f.Namespaces[i].Name == x.owner.Namespace && key == "pod-security.kubernetes.io/enforce" {
					finding.Evidence = append(finding.Evidence, Evidence{
						Source: "Namespace " + x.owner.Namespace + " .metadata.labels", Text: key + "=" + value,
					})
				}
			}
		}
		r.Add(finding)
	}
}

// forComponents reports whether a namespace is one that charts of GPU software make for themselves. What its pods say
// of themselves is no proof: whoever may make pods in a namespace chooses their labels.
func forComponents(namespace string) bool {
	return slices.Contains([]string{
		"kube-system", "gpu-operator", "nvidia-gpu-operator", "gpu-operator-resources", "nvidia-device-plugin",
		"nvidia-dra-driver-gpu", "node-feature-discovery",
	}, namespace)
}

func checkForbidden(f *Facts, r *Result) {
	if !r.Lacks(f, "api/events") {
		for _, x := range f.refusals() {
			if isQuota(x.event.Message) || isPodSecurity(x.event.Message) || !isRefusal(x.event.Message) {
				continue
			}
			if id, _ := recognize(x.event.Message); id == "rc.handler-mismatch" {
				continue // which tells it
			}
			finding := x.finding(f)
			finding.Title, finding.Fix = forbiddenFix(x)
			r.Add(finding)
		}
	}
	for _, pod := range f.workloads() {
		troubles := f.troubles(pod)
		if len(troubles) == 0 {
			continue
		}
		e, found := f.said(pod, troubles, `is forbidden: User "system:serviceaccount:`)
		if !found {
			continue
		}
		account := pod.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		r.Add(Finding{
			Title:  "the pod's service account may not do what the program asks of the API server",
			Object: PodObject(pod), Nodes: onNode(pod),
			Confidence: Likely, Evidence: []Evidence{e},
			Fix: Fix{
				Text: "See whether the program should be allowed that: its log is its own word. If so, make a Role with just the verb and the resource that the message names, in the namespace " +
					"that it names, and bind that to the service account " + account +
					", and no wider one such as edit. The role of a binding cannot be changed: delete a wrong binding and create it again.",
				Commands: []string{command("kubectl auth can-i --list -n %s --as=system:serviceaccount:%s:%s",
					pod.Namespace, pod.Namespace, account)},
			},
		})
	}
}

func forbiddenFix(x refusal) (string, Fix) {
	message := x.event.Message
	describe := command("kubectl -n %s describe %s %s", x.owner.Namespace, strings.ToLower(x.owner.Kind), x.owner.Name)
	switch {
	case strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
		return "the pods cannot be created: their service account does not exist",
			Fix{
				Text:     "Create the service account, or name one that exists.",
				Commands: []string{describe, command("kubectl -n %s get serviceaccounts", x.owner.Namespace)},
			}
	case strings.Contains(message, "webhook"):
		return "an admission webhook refuses the pods, or does not answer",
			Fix{Text: "See the webhook's message; when it does not answer, look at its service and pods.",
				Commands: []string{
					describe, "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
				}}
	case strings.Contains(message, "is forbidden: User "):
		return "the pods cannot be created: a role is missing", Fix{
			Text: "Bind a role that may create pods to the user that the message names; the role of a binding cannot be changed: delete and create it.",
			Commands: []string{
				describe,
				command("kubectl get rolebindings,clusterrolebindings -A -o wide | grep -F %s", x.owner.Namespace),
			},
		}
	}
	return "the API server refuses the pods", Fix{
		Text: "See the message of the API server.", Commands: []string{describe},
	}
}
