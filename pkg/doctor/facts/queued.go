package facts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// The API groups of batch schedulers.
const (
	kueueGroup   = "kueue.x-k8s.io"
	volcanoGroup = "scheduling.volcano.sh"
	kaiGroup     = "scheduling.run.ai"
)

// Queued is GPU work that is waiting in a queue: a Kueue Workload, a Job without a Workload, or a PodGroup of Volcano
// or KAI Scheduler. Often, the pods of this work do not exist yet.
type Queued struct {
	Object   finding.Object
	Resource string   // resource name for kubectl: workloads.kueue.x-k8s.io
	Pods     []string // "namespace/name" of the pods that are held back
	// Full is true if the work is waiting only for quota that other work uses, or for room on the nodes of a topology.
	Full bool
	// Unprocessed is true if no controller has set a status or reported an event.
	Unprocessed bool
	// Evidence contains, most specific first, the results of comparing the work with its queue, with the nodes and with
	// other work, as well as the messages in the work's conditions, in its events and in the logs of controllers.
	Evidence []finding.Evidence
}

// IsFinished reports whether a Workload or PodGroup has finished.
func IsFinished(object *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	return object.GetKind() == "Workload" && isTrue(object, "Finished") ||
		object.GetKind() == "PodGroup" && slices.Contains([]string{"Completed", "Succeeded", "Failed"}, phase)
}

// waits reports whether a Workload or PodGroup is waiting in a queue.
func waits(object *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	return !IsFinished(object) && !isTrue(object, "Admitted") && phase != "Running"
}

// Queued returns the GPU work that is waiting in queues.
func (f *Facts) Queued() []Queued { return Once(f, findQueued) }

// comparer compares waiting work with the rest of the cluster. Large clusters have thousands of similar Workloads, so
// it caches results.
type comparer struct {
	*Facts
	pods   map[string][]*corev1.Pod // unfinished pods by namespace
	newest map[string]time.Time     // time of the latest condition of any work, by API group
	cache  map[cacheKey][]finding.Evidence
}

type cacheKey struct {
	comparison, cluster string
	resource            corev1.ResourceName
	priority, want      int64
}

func findQueued(facts *Facts) []Queued {
	f := &comparer{
		Facts: facts, pods: map[string][]*corev1.Pod{}, newest: map[string]time.Time{},
		cache: map[cacheKey][]finding.Evidence{},
	}
	if len(f.Snapshot.Queued) == 0 {
		return nil
	}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; !Ended(pod) {
			f.pods[pod.Namespace] = append(f.pods[pod.Namespace], pod)
		}
	}
	for i := range f.Snapshot.Queued {
		object := &f.Snapshot.Queued[i]
		for _, c := range mapsIn(object.Object, "status", "conditions") {
			if at := changed(c); at.After(f.newest[apiGroup(object)]) {
				f.newest[apiGroup(object)] = at
			}
		}
	}
	var all []Queued
	for i := range f.Snapshot.Queued {
		object := &f.Snapshot.Queued[i]
		if !waits(object) || f.Now.Sub(object.GetCreationTimestamp().Time) < young {
			continue
		}
		isJob := object.GetKind() == "Job"
		if isJob && (!IsHeld(object) || f.Now.Sub(object.GetCreationTimestamp().Time) < processed) {
			continue
		}
		group, resource := f.podsOf(object), "workloads."+kueueGroup
		if object.GetKind() == "PodGroup" {
			resource = "podgroups." + apiGroup(object)
		} else if isJob {
			resource = "jobs"
		}
		pods := slices.DeleteFunc(slices.Clone(group), func(pod *corev1.Pod) bool { return !Unscheduled(pod) })
		wants := requestsOf(object)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(wants)), LooksLikeGPU) &&
			!slices.ContainsFunc(pods, f.AsksForGPU) {
			continue
		}
		q := Queued{Resource: resource, Object: finding.Object{
			Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
		}}
		for _, pod := range pods {
			q.Pods = append(q.Pods, pod.Namespace+"/"+pod.Name)
		}
		if isJob {
			if q.Evidence = f.withoutWorkload(object); len(q.Evidence) > 0 {
				all = append(all, q)
			}
			continue
		}
		q.Evidence = append(f.compareQueue(object, wants), f.incomplete(object, group)...)
		if len(q.Evidence) == 0 {
			q.Evidence = f.unprocessed(object, q.Object)
			q.Unprocessed = len(q.Evidence) > 0
		}
		if object.GetKind() == "Workload" || len(pods) == 0 { // the conditions of a PodGroup's pods are more specific
			q.Evidence = append(q.Evidence, f.reported(object, q.Object, pods)...)
		}
		q.Evidence = append(f.heldByOthers(object, wants), q.Evidence...)
		matches := func(re *regexp.Regexp) bool {
			return slices.ContainsFunc(q.Evidence, func(e finding.Evidence) bool { return re.MatchString(e.Text) })
		}
		q.Full = matches(quotaInUse) && !matches(problem)
		all = append(all, q)
	}
	return all
}

// reported returns the conditions and events of a Workload or PodGroup, and the last error about it in the controllers'
// logs.
func (f *comparer) reported(
	object *unstructured.Unstructured, of finding.Object, pods []*corev1.Pod,
) []finding.Evidence {
	all := append(f.errorsAbout(of, pods), conditionsOf(object, of)...)
	for _, e := range f.EventsOf(of.Kind, of.Namespace, of.Name) {
		if len(all) < finding.Most {
			quoted := Quote(e)
			quoted.Text = words.Clip(quoted.Text)
			all = append(all, quoted)
		}
	}
	return all
}

// quotaInUse matches evidence that other work uses the quota. problem matches evidence that waiting does not help.
var (
	quotaInUse = regexp.MustCompile(`insufficient unused quota for|excluded: .*resource "|fit any of \d+ pod\(s\)$|` +
		`is StrictFIFO, and is waiting:|^queues\.\S+ \S+: allocated `)
	problem = regexp.MustCompile(`PodsReady timeout|maximum number of re-queuing retries|is deactivated|` +
		`Can't admit new|outside of Kueue hold|^quota of|without pods|lower priority hold|` +
		`a flavor has enough free quota|^Reconciler error|^no toleration for |is held by pods without`)
)

// groupKeys are the annotations and labels with which pods specify their group, by the API group of the PodGroup.
var groupKeys = map[string][]string{
	kueueGroup:   {"kueue.x-k8s.io/pod-group-name"},
	volcanoGroup: {"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"},
	kaiGroup:     {"pod-group-name"},
}

func apiGroup(object *unstructured.Unstructured) string {
	group, _, _ := strings.Cut(object.GetAPIVersion(), "/")
	return group
}

// podsOf returns the pods that belong to a Workload or PodGroup.
func (f *comparer) podsOf(object *unstructured.Unstructured) []*corev1.Pod {
	group := apiGroup(object)
	owns := func(pod *corev1.Pod) bool {
		controller := metav1.GetControllerOf(pod)
		for _, owner := range object.GetOwnerReferences() {
			if owner.UID != "" && (owner.UID == pod.UID || controller != nil && owner.UID == controller.UID) {
				return true
			}
		}
		return slices.ContainsFunc(groupKeys[group], func(key string) bool {
			return pod.Annotations[key] == object.GetName() || pod.Labels[key] == object.GetName()
		})
	}
	var all []*corev1.Pod
	for _, pod := range f.pods[object.GetNamespace()] {
		if owns(pod) {
			all = append(all, pod)
		}
	}
	return all
}

// conditionsOf returns the messages in the conditions and admission checks that prevent an object from starting.
func conditionsOf(object *unstructured.Unstructured, of finding.Object) []finding.Evidence {
	var all []finding.Evidence
	for _, field := range []string{"conditions", "schedulingConditions", "admissionChecks"} {
		for _, c := range mapsIn(object.Object, "status", field) {
			name, state := fmt.Sprint(c["type"]), fmt.Sprint(c["status"])
			if field == "admissionChecks" {
				name, state = fmt.Sprint(c["name"]), fmt.Sprint(c["state"])
			}
			message, _ := c["message"].(string)
			// These conditions indicate a problem if they are true. All other conditions indicate a problem if they are
			// not true.
			bad := slices.Contains([]string{
				"Unschedulable", "UnschedulableOnNodePool", "Evicted", "DeactivationTarget",
			}, name)
			if message == "" || (state == "True" || state == "Ready") != bad {
				continue
			}
			all = append(all, finding.Evidence{
				Source: fmt.Sprintf("%s .status.%s[%s]", of, field, name), Time: changed(c), Text: words.Clip(message),
			})
		}
	}
	return all
}

func changed(condition map[string]any) time.Time {
	text, _ := condition["lastTransitionTime"].(string)
	at, _ := time.Parse(time.RFC3339, text) // the zero time means unknown
	return at
}

const (
	young     = 30 * time.Second // maximum age at which work may not have been admitted yet
	processed = 5 * time.Minute  // maximum time until a controller reports about new work
)

// unprocessed returns evidence that no controller has processed any work in this API group since the object was
// created. It ignores KAI Scheduler, which sets a status only if it cannot schedule the work.
//
//	no status, although the Workload was created AGE ago
//	no status, and Kueue has re-queued NUMBER times only the Workload NAME
func (f *comparer) unprocessed(object *unstructured.Unstructured, of finding.Object) []finding.Evidence {
	created := object.GetCreationTimestamp().Time
	status, _, _ := unstructured.NestedMap(object.Object, "status")
	newest := f.newest[apiGroup(object)]
	age := f.Now.Sub(created)
	if len(status) == 0 && !created.IsZero() && age > processed && newest.Before(created.Add(-processed)) &&
		apiGroup(object) != kaiGroup {
		if e := f.requeued(of); e.Text != "" {
			return []finding.Evidence{e}
		}
		return []finding.Evidence{{
			Source: of.String() + " .status",
			Text:   fmt.Sprintf("no status, although the %s was created %s ago", of.Kind, words.AgeText(age)),
		}}
	}
	return nil
}

// incomplete returns evidence that a gang has fewer pods than its minimum, in which case no
// scheduler places any of them.
//
//	pods of the gang: 1, minimum: 2
func (f *comparer) incomplete(object *unstructured.Unstructured, pods []*corev1.Pod) []finding.Evidence {
	least, _, _ := unstructured.NestedInt64(object.Object, "spec", "minMember")
	age := f.Now.Sub(object.GetCreationTimestamp().Time)
	if len(pods) == 0 || int64(len(pods)) >= least || age < processed {
		return nil
	}
	return []finding.Evidence{{
		Source: "PodGroup " + object.GetNamespace() + "/" + object.GetName() + " .spec.minMember and its pods",
		Text:   fmt.Sprintf("pods of the gang: %d, minimum: %d", len(pods), least),
	}}
}

// logsError matches error lines logged by zap, klog and the Go runtime.
var logsError = regexp.MustCompile(`"level":"error"|^E\d{4} |^panic: `)

// errorsAbout returns the last error that a scheduler or queue controller logged about an object or its pods.
func (f *comparer) errorsAbout(of finding.Object, pods []*corev1.Pod) []finding.Evidence {
	names := []string{of.Name}
	for _, pod := range pods[:min(len(pods), fewPods)] {
		names = append(names, pod.Name)
	}
	var last []finding.Evidence
	for i := range f.Snapshot.Logs {
		l := &f.Snapshot.Logs[i]
		if !placesWork(l.Pod) || l.Namespace == of.Namespace {
			continue
		}
		for line := range strings.Lines(l.Text) {
			if !logsError.MatchString(line) || !words.ContainsAny(line, names) {
				continue
			}
			text := strings.TrimSpace(line)
			var record struct{ Msg, Error string }
			if json.Unmarshal([]byte(text), &record) == nil && record.Error != "" {
				text = record.Msg + ": " + record.Error
			}
			last = []finding.Evidence{{Source: LogSource(l), Text: words.Clip(text)}}
		}
	}
	return last
}

// placers are substrings of the names of pods that schedule GPU work. They do not match the schedulers of Dask or
// Airflow, for example, because those do not schedule pods.
var placers = []string{
	"kueue-controller", "volcano-scheduler", "volcano-controllers", "volcano-admission", "kai-scheduler",
	"runai-scheduler", "yunikorn-scheduler", "binder",
}

func placesWork(pod string) bool { return words.ContainsAny(pod, placers) }

// FailingPlacers returns the failing pods of schedulers and queue controllers if GPU work is waiting in a queue.
// Tenants can choose the names of their pods, so FailingPlacers ignores pods in namespaces with waiting work.
func (f *Facts) FailingPlacers() []*corev1.Pod {
	tenants := map[string]bool{}
	for _, q := range f.Queued() {
		tenants[q.Object.Namespace] = true
	}
	if len(tenants) == 0 {
		return nil
	}
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if placesWork(pod.Name) && !tenants[pod.Namespace] && len(f.Troubles(pod)) > 0 {
			all = append(all, pod)
		}
	}
	return all
}

// compareQueue compares work with its queue, if the queues were read. Signatures explain the results.
func (f *comparer) compareQueue(
	object *unstructured.Unstructured, wants map[corev1.ResourceName]int64,
) []finding.Evidence {
	group := apiGroup(object)
	switch group {
	case kueueGroup:
		return f.compareKueue(object, wants)
	case volcanoGroup:
		name, _, _ := unstructured.NestedString(object.Object, "spec", "queue")
		return f.QueueProblem(volcanoGroup, name, wants)
	case kaiGroup:
		name, _, _ := unstructured.NestedString(object.Object, "spec", "queue")
		return f.QueueProblem(kaiGroup, name, nil)
	}
	return nil
}

func (f *Facts) queueOf(group, kind, namespace, name string) *unstructured.Unstructured {
	for i := range f.Snapshot.Queues {
		q := &f.Snapshot.Queues[i]
		if q.GetKind() == kind && q.GetNamespace() == namespace && q.GetName() == name &&
			strings.HasPrefix(q.GetAPIVersion(), group+"/") {
			return q
		}
	}
	return nil
}

// QueueProblem compares a Volcano or KAI Scheduler queue with the other queues and with the requests of its work.
// Signatures explain the results.
//
//	queues.GROUP NAME: does not exist
//	queues.GROUP NAME: is the parent of NAME
//	queues.GROUP NAME: has no parentQueue
//	queues.GROUP NAME: state Closed
//	queues.GROUP NAME: capability RESOURCE: 4, the work requests at least 8
//	queues.GROUP NAME: allocated RESOURCE: 6 of 8, the work requests at least 4
//	queues.GROUP NAME: deserved RESOURCE: 2, allocated 0, but no RESOURCE
func (f *Facts) QueueProblem(group, name string, wants map[corev1.ResourceName]int64) []finding.Evidence {
	quote := func(field, format string, args ...any) []finding.Evidence {
		return []finding.Evidence{{
			Source: "Queue " + name + field, Text: "queues." + group + " " + name + ": " + fmt.Sprintf(format, args...),
		}}
	}
	parentField := map[string]string{kaiGroup: "parentQueue", volcanoGroup: "parent"}[group]
	read := false
	for i := range f.Snapshot.Queues {
		q := &f.Snapshot.Queues[i]
		if !strings.HasPrefix(q.GetAPIVersion(), group+"/") {
			continue
		}
		read = true
		if parent, _, _ := unstructured.NestedString(q.Object, "spec", parentField); parent == name && name != "" {
			return quote("", "is the parent of %s", q.GetName())
		}
	}
	if !read || name == "" {
		return nil
	}
	q := f.queueOf(group, "Queue", "", name)
	if q == nil {
		return quote("", "does not exist")
	}
	parent, _, _ := unstructured.NestedString(q.Object, "spec", parentField)
	if group == kaiGroup && parent == "" {
		return quote(" .spec.parentQueue", "has no parentQueue")
	}
	if state, _, _ := unstructured.NestedString(q.Object, "status", "state"); state != "" && state != "Open" {
		return quote(" .status.state", "state %s", state)
	}
	capability, _, _ := unstructured.NestedMap(q.Object, "spec", "capability")
	allocated, _, _ := unstructured.NestedMap(q.Object, "status", "allocated")
	var full []finding.Evidence
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		has, bounded := amountIn(capability, name)
		used, _ := amountIn(allocated, name)
		switch want := wants[name]; {
		case bounded && has < want:
			return quote(" .spec.capability", "capability %s: %s, the work requests at least %s", name,
				words.InWords(name, has), words.InWords(name, want))
		case bounded && has-used < want && full == nil:
			full = quote(" .status.allocated", "allocated %s: %s of %s, the work requests at least %s", name,
				words.InWords(name, used), words.InWords(name, has), words.InWords(name, want))
		}
	}
	if full != nil {
		return full
	}
	deserved, _, _ := unstructured.NestedMap(q.Object, "spec", "deserved")
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		due, _ := amountIn(deserved, name)
		used, _ := amountIn(allocated, name)
		for _, also := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if _, named := deserved[string(also)]; due > 0 && used+wants[name] <= due && !named && wants[also] > 0 {
				return quote(" .spec.deserved", "deserved %s: %s, allocated %s, but no %s", name,
					words.InWords(name, due), words.InWords(name, used), also)
			}
		}
	}
	return nil
}

// nodePool is the label that assigns nodes, queues and pods to a shard of KAI Scheduler.
const nodePool = "kai.scheduler/node-pool"

// OtherNodePool compares a pod's node pool with that of its KAI Scheduler queue.
//
//	queues.GROUP NAME: has kai.scheduler/node-pool=NAME, the work has (none)
func (f *Facts) OtherNodePool(pod *corev1.Pod, name string) []finding.Evidence {
	q := f.queueOf(kaiGroup, "Queue", "", name)
	if q == nil || q.GetLabels()[nodePool] == pod.Labels[nodePool] {
		return nil
	}
	return []finding.Evidence{{
		Source: "Queue " + name + " .metadata.labels and those of " + PodObject(pod).String(),
		Text: fmt.Sprintf("queues.%s %s: has %s=%s, the work has %s", kaiGroup, name, nodePool,
			cmp.Or(q.GetLabels()[nodePool], "(none)"), cmp.Or(pod.Labels[nodePool], "(none)")),
	}}
}

func amountIn(amounts map[string]any, name corev1.ResourceName) (int64, bool) {
	q, err := resource.ParseQuantity(fmt.Sprint(amounts[string(name)]))
	return amount(name, q), err == nil
}

func isTrue(object *unstructured.Unstructured, condition string) bool {
	return slices.ContainsFunc(mapsIn(object.Object, "status", "conditions"), func(c map[string]any) bool {
		return c["type"] == condition && c["status"] == "True"
	})
}

// mapsIn returns the maps in a list field. It skips elements of other types.
func mapsIn(object map[string]any, fields ...string) []map[string]any {
	list, _, _ := unstructured.NestedSlice(object, fields...)
	var all []map[string]any
	for _, item := range list {
		if m, is := item.(map[string]any); is {
			all = append(all, m)
		}
	}
	return all
}
