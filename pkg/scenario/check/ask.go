package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	// startFor is the maximum time for the client pod to start, because the image may have to be pulled.
	startFor = 60 * time.Second
	// runEvery is the interval at which the pod's phase is polled.
	runEvery = 200 * time.Millisecond
	// spare is the time, in addition to the request's own timeout, for reaching the pod and for DNS resolution, which
	// wget's timeout does not include.
	spare = 3 * time.Second
)

// asker sends requests from its own pod. It creates the pod on first use and then reuses it.
type asker struct {
	*Checker
	http scenario.HTTP
	// avoid lists nodes to use only if there are no others; busy is set for a pod that sends many requests.
	avoid []string
	busy  bool

	began   time.Time
	pod     *ownPod
	running *corev1.Pod
	// asked is set once a pod has been running. From then on, the start of a replacement pod counts toward the check's
	// time.
	asked bool
	// client is the index of the client program that the image contains.
	client int
}

func newAsker(c *Checker, h scenario.HTTP) *asker { return &asker{Checker: c, http: h} }

func (a *asker) close(ctx context.Context) error { return a.pod.remove(ctx) }

func (a *asker) look(ctx context.Context) (view, error) {
	if a.running == nil {
		if early, err := a.start(ctx); err != nil || a.running == nil {
			return early, err
		}
	}
	seen, err := a.ask(ctx)
	if err != nil && ctx.Err() == nil && a.ended(ctx) { // the next evaluation creates another pod
		a.running, a.began = nil, time.Time{}
		return view{}, errors.Join(err, a.pod.remove(ctx))
	}
	seen.starts = err == nil && !a.asked
	a.asked = a.asked || err == nil
	return seen, err
}

// ended reports whether the pod has terminated or was deleted.
func (a *asker) ended(ctx context.Context) bool {
	_, pod, err := a.pod.read(ctx)
	return errors.Is(err, errGone) || err == nil && pod.Status.Phase != corev1.PodRunning
}

// start creates the pod and waits briefly for it to run. While the pod is starting, the view is early. If the pod
// cannot start, start returns an error.
func (a *asker) start(ctx context.Context) (view, error) {
	if a.began.IsZero() {
		a.began = time.Now()
	}
	for until := time.Now().Add(lookTimeout / 2); ; {
		state, err := a.step(ctx)
		switch {
		case a.running != nil || err != nil && !errors.Is(err, errNotYet):
			return view{}, err
		case time.Since(a.began) > startFor || a.asked && time.Now().After(until):
			return view{}, fmt.Errorf("the client pod is not running: %s", state)
		case time.Now().After(until):
			return view{early: true, evidence: "the client pod is not running yet: " + state}, nil
		}
		if err := sleep(ctx, runEvery); err != nil {
			return view{}, err
		}
	}
}

// errNotYet marks temporary conditions.
var errNotYet = errors.New("not yet")

// step takes the next step toward a running pod, and describes the pod's state.
func (a *asker) step(ctx context.Context) (state string, err error) {
	if a.pod == nil || a.pod.made.IsZero() {
		return a.make(ctx)
	}
	_, pod, err := a.pod.read(ctx)
	if errors.Is(err, errGone) {
		return "", errors.Join(err, a.pod.remove(ctx)) // the next evaluation creates another pod
	}
	if err != nil {
		return "", err
	}
	if pod.Status.Phase == corev1.PodRunning && trouble(pod) == "" {
		a.running = pod
		return "", nil
	}
	err = fmt.Errorf("the client pod is not running: %s", podState(pod))
	switch judge(pod) {
	case ended:
		return "", errors.Join(err, a.pod.remove(ctx))
	case stuck:
		return "", err
	}
	return podState(pod), nil
}

func (a *asker) make(ctx context.Context) (state string, err error) {
	object, err := a.manifest(ctx)
	if err != nil {
		return "", err
	}
	own, o, err := a.newPod(object)
	if err != nil {
		return "", err
	}
	a.pod = own
	if err := own.create(ctx, o); settling(err) {
		return "its namespace is new", errNotYet
	} else if err != nil {
		return "", err
	}
	return "created", nil
}

// manifest returns a pod that only sleeps and may run on any healthy node.
func (a *asker) manifest(ctx context.Context) (map[string]any, error) {
	nodes, err := a.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	labels := map[string]any{}
	for key, value := range a.http.Labels {
		labels[key] = value
	}
	container := map[string]any{
		"name":    "main",
		"command": []any{"sh", "-c", fmt.Sprintf("trap 'exit 0' TERM INT; sleep %d & wait", deadline)},
	}
	if a.busy {
		container["resources"] = map[string]any{
			"requests": map[string]any{"cpu": "50m", "memory": "32Mi"},
			"limits":   map[string]any{"cpu": "1", "memory": "256Mi"},
		}
	}
	spec := map[string]any{"tolerations": tolerations(nodes.Items), "containers": []any{container}}
	if len(a.avoid) > 0 {
		spec["affinity"] = otherNodes(a.avoid)
	}
	return map[string]any{
		"metadata": map[string]any{"namespace": a.http.Namespace, "labels": labels}, "spec": spec,
	}, nil
}

// otherNodes returns an affinity that prefers nodes other than the given ones.
func otherNodes(nodes []string) map[string]any {
	var names []any
	for _, name := range nodes {
		names = append(names, name)
	}
	return map[string]any{"nodeAffinity": map[string]any{
		"preferredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{
			"weight": int64(100),
			"preference": map[string]any{"matchExpressions": []any{map[string]any{
				"key": corev1.LabelHostname, "operator": "NotIn", "values": names,
			}}},
		}},
	}}
}

// tolerations returns tolerations for all taints that users set, because the check does not test scheduling. The
// tolerations do not cover the node controller's taints, which mark nodes that cannot run pods.
func tolerations(nodes []corev1.Node) []any {
	var keys []string
	for i := range nodes {
		for _, taint := range nodes[i].Spec.Taints {
			if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
				keys = append(keys, taint.Key)
			}
		}
	}
	slices.Sort(keys)
	all := []any{}
	for _, key := range slices.Compact(keys) {
		all = append(all, map[string]any{"key": key, "operator": "Exists"})
	}
	return all
}

// clients returns commands that request a URL, in order of preference: wget from BusyBox and GNU, older versions that
// do not print the status, and the program that the images in some test clusters contain instead.
func clients(url string, timeout time.Duration) [][]string {
	seconds := strconv.Itoa(max(int((timeout+time.Second-1)/time.Second), 1))
	return [][]string{
		{"wget", "-q", "-S", "-T", seconds, "-O", "-", url},
		{"wget", "-q", "-T", seconds, "-O", "-", url},
		{"get", "-S", "-T", seconds, url},
		{"get", url},
	}
}

// ask sends a request with the first client program that the image contains.
func (a *asker) ask(ctx context.Context) (view, error) {
	timeout := httpTimeout(a.http)
	programs := clients(a.http.URL, timeout)
	for ; a.client < len(programs); a.client++ {
		said, err := a.runIn(ctx, a.running, "", programs[a.client], timeout+spare)
		switch {
		case errors.Is(err, errNotInTime) && ctx.Err() == nil:
			// Either the URL or the pod does not respond.
			if _, lost := a.runIn(ctx, a.running, "", []string{"true"}, spare); lost != nil {
				return view{}, lost
			}
			return answer(0, "", fmt.Sprintf("no response within %s", timeout)), nil
		case missing(said, err):
			continue
		case err != nil:
			return view{}, err
		}
		return heard(said), nil
	}
	a.client = 0
	return view{}, fmt.Errorf("image %s does not contain wget: specify an image that does",
		a.running.Spec.Containers[0].Image)
}

// missing reports whether a program does not exist, does not support its options, or crashes. Such a failure is not
// related to the URL. (Debian's static BusyBox crashes in the resolver.)
func missing(s said, err error) bool {
	if err != nil {
		return strings.Contains(err.Error(), "executable file not found") ||
			strings.Contains(err.Error(), "no such file or directory")
	}
	if s.code == 126 || s.code == 127 || s.code >= 128 {
		return true
	}
	usage := strings.Contains(s.stderr, "Usage: ") || strings.Contains(s.stderr, "invalid option") ||
		strings.Contains(s.stderr, "unrecognized option")
	return s.code != 0 && (usage || strings.Contains(s.stderr, "unsupported protocol scheme"))
}

// statusLine matches the start of a response; all programs print it, once for each redirect.
var statusLine = regexp.MustCompile(`HTTP/[0-9.]+ ([0-9]{3})`)

// heard returns the response in a program's output.
func heard(s said) view {
	if all := statusLine.FindAllStringSubmatch(s.stderr, -1); len(all) > 0 {
		status, err := strconv.ParseInt(all[len(all)-1][1], 10, 64)
		if err == nil {
			return answer(status, s.stdout, "")
		}
	}
	if s.code == 0 {
		return answer(200, s.stdout, "")
	}
	return answer(0, "", lastLine(s.stderr, fmt.Sprintf("exit code %d", s.code)))
}
