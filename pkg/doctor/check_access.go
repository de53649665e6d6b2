package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the catalogue has and these checks do not: wl.forbidden asks no SubjectAccessReview, because a snapshot holds no roles; a request that
// the API server refused to a user or a pipeline leaves no trace in the cluster, and is seen only where a controller tried (FailedCreate)
// or a pod's log says so.

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
			ID: "wl.forbidden", Layer: LayerAccess, Title: "the API server refuses to create GPU pods, or refuses what a GPU pod asks of it",
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
	// gpu is whether the pods are known to ask for GPUs; component is what part of the GPU software they are.
	gpu       bool
	component Component
}

// refusals are those of the last hour that no newer pod or event disproves, one for each owner.
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
		if newest.Reason != "FailedCreate" || f.createdSince(owner, EventTime(newest)) {
			continue
		}
		all = append(all, f.refusal(owner, newest))
	}
	return all
}

// ownedBy are the pods that an object controls.
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

func (f *Facts) refusal(owner Object, e *corev1.Event) refusal {
	x := refusal{event: e, owner: owner, gpu: strings.Contains(e.Message, "nvidia.com/")}
	for _, pod := range f.ownedBy(owner) {
		x.gpu = x.gpu || WantsGPU(pod)
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

// severity: what is known to concern GPUs is an error; in a namespace that has GPU pods it may, and a missing role is rare enough to be told
// in any.
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
	return strings.Contains(message, "exceeded quota") || strings.Contains(message, "failed quota") || strings.Contains(message, " usage per ") ||
		strings.Contains(message, "limit to request ratio")
}

func isPodSecurity(message string) bool {
	return strings.Contains(message, "violates PodSecurity") || strings.Contains(message, "unable to validate against any pod security policy") ||
		strings.Contains(message, "unable to validate against any security context constraint")
}

// isRefusal is whether the API server said no, and did not only fail.
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
				"kubectl -n " + x.owner.Namespace + " describe resourcequota,limitrange",
			}}
			for i := range f.ResourceQuotas {
				q := &f.ResourceQuotas[i]
				if q.Namespace != x.owner.Namespace || !strings.Contains(x.event.Message, q.Name) {
					continue
				}
				finding.Evidence = append(finding.Evidence, quoteQuota(q)...)
				finding.Fix.Commands = append(finding.Fix.Commands, "kubectl -n "+q.Namespace+" edit resourcequota "+q.Name)
			}
			r.Add(finding)
		}
	}
	if r.Lacks(f, "api/resourcequotas") {
		return
	}
	for i := range f.ResourceQuotas {
		q := &f.ResourceQuotas[i]
		for name, hard := range q.Spec.Hard {
			if !IsGPUResource(name) {
				continue
			}
			r.Add(Finding{
				Title:    "the quota's key limits nothing: for GPUs it must begin with requests.",
				Object:   Object{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name},
				Severity: Warning, Nodes: nil,
				Evidence: []Evidence{{Source: fmt.Sprintf("ResourceQuota %s/%s .spec.hard", q.Namespace, q.Name), Text: fmt.Sprintf("%s: %s", name, hard.String())}},
				Fix: Fix{
					Text: "Rename the key to requests." + string(name) + ".",
					Commands: []string{fmt.Sprintf(`kubectl -n %s patch resourcequota %s --type=json -p '[{"op":"remove","path":"/spec/hard/%s"},{"op":"add","path":"/spec/hard/requests.%s","value":"%s"}]'`,
						q.Namespace, q.Name, pointer(name), pointer(name), hard.String())},
				},
			}.ForPods("ResourceQuota " + q.Namespace + "/" + q.Name)) // it refuses nothing, and explains nothing
		}
	}
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
				Source: fmt.Sprintf("ResourceQuota %s/%s .status", q.Namespace, q.Name), Text: fmt.Sprintf("%s: used %s, hard %s", name, used.String(), hard.String()),
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
			Commands: []string{"kubectl get namespace " + x.owner.Namespace + " --show-labels"},
		}
		if x.component != "" {
			finding.Title = "Pod Security of the namespace refuses the pods of a GPU component, which need privilege"
			finding.Fix = Fix{
				Text:     "Let the namespace of the GPU components run privileged pods (chart of the GPU operator: psa.enabled=true does it).",
				Commands: []string{"kubectl label namespace " + x.owner.Namespace + " pod-security.kubernetes.io/enforce=privileged --overwrite"},
			}
		}
		for i := range f.Namespaces {
			for key, value := range f.Namespaces[i].Labels {
				if f.Namespaces[i].Name == x.owner.Namespace && key == "pod-security.kubernetes.io/enforce" {
					finding.Evidence = append(finding.Evidence, Evidence{Source: "Namespace " + x.owner.Namespace + " .metadata.labels", Text: key + "=" + value})
				}
			}
		}
		r.Add(finding)
	}
}

func checkForbidden(f *Facts, r *Result) {
	if !r.Lacks(f, "api/events") {
		for _, x := range f.refusals() {
			if isQuota(x.event.Message) || isPodSecurity(x.event.Message) || !isRefusal(x.event.Message) {
				continue
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
			Title: "the pod's service account may not do what the program asks of the API server", Object: PodObject(pod), Nodes: onNode(pod),
			Confidence: Likely, Evidence: []Evidence{e},
			Fix: Fix{
				Text: "Bind a role that allows it to the service account; the role of a binding cannot be changed: delete the wrong binding and create it again.",
				Commands: []string{
					fmt.Sprintf("kubectl auth can-i --list -n %s --as=system:serviceaccount:%s:%s", pod.Namespace, pod.Namespace, account),
					fmt.Sprintf("kubectl -n %s create rolebinding %s-edit --clusterrole=edit --serviceaccount=%s:%s", pod.Namespace, account, pod.Namespace, account),
				},
			},
		})
	}
}

func forbiddenFix(x refusal) (string, Fix) {
	message := x.event.Message
	describe := fmt.Sprintf("kubectl -n %s describe %s %s", x.owner.Namespace, strings.ToLower(x.owner.Kind), x.owner.Name)
	switch {
	case strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
		return "the pods cannot be created: their service account does not exist",
			Fix{Text: "Create the service account, or name one that exists.", Commands: []string{describe, "kubectl -n " + x.owner.Namespace + " get serviceaccounts"}}
	case strings.Contains(message, "webhook"):
		return "an admission webhook refuses the pods, or does not answer",
			Fix{Text: "See the webhook's message; when it does not answer, look at its service and pods.", Commands: []string{
				describe, "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
			}}
	case strings.Contains(message, "is forbidden: User "):
		return "the pods cannot be created: a role is missing", Fix{
			Text: "Bind a role that may create pods to the user that the message names; the role of a binding cannot be changed: delete and create it.", Commands: []string{
				describe, "kubectl get rolebindings,clusterrolebindings -A -o wide | grep -F " + x.owner.Namespace,
			},
		}
	case strings.Contains(message, "RuntimeClass") && strings.Contains(message, "not found"):
		return "the pods cannot be created: their RuntimeClass does not exist",
			Fix{Text: "Create the RuntimeClass, or take runtimeClassName out of the pods.", Commands: []string{"kubectl get runtimeclasses", describe}}
	}
	return "the API server refuses the pods", Fix{Text: "See the message of the API server.", Commands: []string{describe}}
}
