package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

const (
	// leastPatience is the minimum time to watch a pod that is created when the check's time has almost expired.
	leastPatience = 10 * time.Second
	// settlingFor is the maximum time for which a new namespace may reject pods.
	settlingFor = 10 * time.Second
)

// probe creates a pod and observes the result. The pod can be evaluated when it has terminated, is running, cannot be
// scheduled or cannot start, or when the wait has timed out. If the result is not as expected and time is left, the
// probe creates another pod.
type probe struct {
	*Checker
	probe    scenario.Probe
	deadline time.Time
	patience time.Duration
	began    time.Time

	peer *ownPod
	// address is the address of the peer; empty until the peer is ready.
	address string

	pod *ownPod
	// until is the deadline for the pod.
	until time.Time
	// over is set if the pod has terminated and was evaluated. The field before contains the evidence from that pod.
	over   bool
	before string
}

func newProbe(c *Checker, check scenario.Check) *probe {
	p := &probe{Checker: c, probe: *check.Probe, patience: within(check), began: time.Now()}
	p.deadline = p.began.Add(p.patience)
	return p
}

func (p *probe) close(ctx context.Context) error {
	return errors.Join(p.pod.remove(ctx), p.peer.remove(ctx))
}

func (p *probe) look(ctx context.Context) (view, error) {
	if p.probe.Peer != nil && p.address == "" {
		return p.meet(ctx)
	}
	if p.over {
		if err := p.pod.remove(ctx); err != nil {
			return view{}, err
		}
		p.over = false
	}
	if p.pod == nil || p.pod.made.IsZero() {
		if seen, err := p.make(ctx); err != nil || seen.vars != nil || seen.early {
			return seen, err
		}
	}
	object, pod, err := p.pod.read(ctx)
	if errors.Is(err, errGone) {
		return view{}, errors.Join(err, p.pod.remove(ctx))
	}
	if err != nil {
		return view{}, err
	}
	verdict := judge(pod)
	seen, err := p.see(ctx, object, pod)
	if err != nil {
		return view{}, err
	}
	seen.early = verdict == pending && time.Now().Before(p.until)
	switch {
	case verdict == ended:
		p.over, p.before = true, seen.evidence
	case p.before != "":
		seen.evidence += "; previous pod: " + p.before
	}
	return seen, nil
}

// meet starts the peer and waits until it is ready. The check's time starts then.
func (p *probe) meet(ctx context.Context) (view, error) {
	if p.peer == nil || p.peer.made.IsZero() {
		own, o, err := p.newPod(p.probe.Peer)
		if err != nil {
			return view{}, err
		}
		p.peer = own
		if err := own.create(ctx, o); err != nil {
			return view{}, fmt.Errorf("start the peer: %w", err)
		}
	}
	_, pod, err := p.peer.read(ctx)
	if errors.Is(err, errGone) {
		return view{}, errors.Join(err, p.peer.remove(ctx))
	}
	if err != nil {
		return view{}, err
	}
	verdict := judge(pod)
	switch {
	case verdict == running && podutils.IsPodReady(pod) && pod.Status.PodIP != "":
		p.address, p.deadline = pod.Status.PodIP, time.Now().Add(p.patience)
		return view{early: true, starts: true, evidence: "the peer is ready"}, nil
	case verdict == stuck, verdict == ended, time.Since(p.began) > startFor:
		return view{}, fmt.Errorf("the peer is not running: %s", podState(pod))
	}
	return view{early: true, evidence: "the peer is not running yet: " + podState(pod)}, nil
}

// make creates the pod. A rejection by the API server is also a result: o is null, and text is the reason.
func (p *probe) make(ctx context.Context) (view, error) {
	own, o, err := p.newPod(p.probe.Pod)
	if err != nil {
		return view{}, err
	}
	p.pod = own
	if p.address != "" {
		introduce(o.Object, p.address)
	}
	err = own.create(ctx, o)
	switch {
	case err == nil:
		p.until = own.made.Add(max(min(p.patience, p.deadline.Sub(own.made)), min(p.patience, leastPatience)))
		return view{}, nil
	case settling(err) && time.Since(p.began) < settlingFor:
		return view{early: true, evidence: "its namespace is new"}, nil
	case apierrors.IsForbidden(err):
		return view{vars: expr.Vars{"o": nil, "text": err.Error(), "list": []any{}}, evidence: err.Error()}, nil
	}
	return view{}, err
}

// introduce sets PEER in the environment of a pod's containers.
func introduce(pod map[string]any, address string) {
	spec := inner(pod, "spec")
	for _, container := range append(mapsOf(spec["initContainers"]), mapsOf(spec["containers"])...) {
		env, _ := container["env"].([]any)
		container["env"] = append(env, map[string]any{"name": "PEER", "value": address})
	}
}

// see reads the pod's log and events.
func (p *probe) see(ctx context.Context, object map[string]any, pod *corev1.Pod) (view, error) {
	text := ""
	for _, one := range loggable([]corev1.Pod{*pod}, scenario.Logs{}) {
		part, err := p.log(ctx, one, scenario.Logs{}, maxText/4)
		if err != nil {
			return view{}, err
		}
		if text != "" && part != "" {
			text += "\n"
		}
		text += part
	}
	list, err := p.eventsAbout(ctx, scenario.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		string(pod.UID))
	if err != nil {
		return view{}, fmt.Errorf("list events of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	evidence := podState(pod)
	switch last := lastLine(text, ""); {
	case last != "":
		evidence += ": " + last
	case pod.Status.Phase == corev1.PodPending && trouble(pod) != "" && len(list) > 0:
		evidence += "; " + lastEvent(list)
	}
	return view{vars: expr.Vars{"o": object, "text": text, "list": list}, evidence: evidence}, nil
}

// verdict is the progress of a pod.
type verdict int

const (
	pending verdict = iota // starting
	stuck                  // the scheduler or the kubelet reports that it cannot continue
	running
	ended
)

// judge returns the verdict according to the pod's status.
func judge(pod *corev1.Pod) verdict {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		return ended
	case corev1.PodRunning:
		return running
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse &&
			condition.Reason == corev1.PodReasonUnschedulable {
			return stuck
		}
	}
	for _, s := range statuses(pod) {
		if s.State.Waiting != nil && hopeless(s.State.Waiting.Reason) {
			return stuck
		}
	}
	return pending
}

// hopeless reports whether a waiting reason that the kubelet reports is unlikely to be resolved within seconds.
func hopeless(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed", "ImageInspectError",
		"InvalidImageName", "ErrImageNeverPull",
		"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "CrashLoopBackOff":
		return true
	}
	return false
}
