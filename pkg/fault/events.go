package fault

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// The reasons of the Events on targets. The Events show operators that a failure is intentional.
const (
	ReasonInjected = "GPUFaultInjected"
	ReasonReverted = "GPUFaultReverted"
	// A persistent fault can be armed and disarmed several times during a run.
	ReasonArmed    = "GPUFaultArmed"
	ReasonDisarmed = "GPUFaultDisarmed"
)

const (
	kindNode = "Node"
	// nodeEvents is the namespace that the API server requires for Events on cluster-scoped objects.
	nodeEvents = "default"
	// eventTimeout is short because Events are best effort.
	eventTimeout = 5 * time.Second
	// maxEventMessage is the API server's limit, in bytes.
	maxEventMessage = 1024
)

// injected writes an Event on the target of a step that was applied. failure is the reason why the change could not be
// verified, or nil.
func (s *Session) injected(ctx context.Context, run ledger.Run, id string, failure error) {
	step := *run.Step(id)
	message := fmt.Sprintf("%s: %s, by kubectl gpu-fault run %s%s", run.Summary, step.Action, run.ID, of(run.By))
	if failure != nil {
		message += "; the fault could not be verified: " + failure.Error()
	}
	s.event(ctx, run, step, ReasonInjected, corev1.EventTypeWarning, message)
}

// reverted writes an Event on the target of a step that was undone.
func (s *Session) reverted(ctx context.Context, run ledger.Run, step ledger.Step, by string) {
	message := fmt.Sprintf("%s: %s, by kubectl gpu-fault run %s%s", run.Summary, step.State, run.ID, of(run.By))
	if by != "" && by != run.By {
		message += ", reverted by " + by
	}
	// The other lines may contain parts of files, and many users can read Events.
	if first, _, _ := strings.Cut(step.Message, "\n"); first != "" {
		message += ": " + first
	}
	s.event(ctx, run, step, ReasonReverted, corev1.EventTypeNormal, message)
}

// Announce writes an Event on the target of a step when its fault is armed or disarmed.
func (s *Session) Announce(ctx context.Context, run ledger.Run, id, reason string) {
	step := run.Step(id)
	if step == nil {
		return
	}
	kind := corev1.EventTypeWarning
	if reason == ReasonDisarmed {
		kind = corev1.EventTypeNormal
	}
	s.event(ctx, run, *step, reason, kind,
		fmt.Sprintf("%s: by kubectl gpu-fault run %s%s", run.Summary, run.ID, of(s.Whoami(ctx))))
}

// event writes an Event unless the run is quiet. `kubectl describe` selects Events by the kind, name, namespace, and
// UID of the object. For nodes, it searches both by UID, which controllers set, and by name, which the kubelet sets as
// the UID. The UID works with all versions and excludes the Events of an earlier node with the same name.
func (s *Session) event(ctx context.Context, run ledger.Run, step ledger.Step, reason, kind, message string) {
	if run.Quiet {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventTimeout)
	defer cancel()
	namespace := step.Target.Namespace
	if namespace == "" {
		namespace = nodeEvents
	}
	now := metav1.NewTime(s.Ledger.Now())
	_, err := s.Client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      eventName(run, step, reason, now.Time),
			Namespace: namespace,
			Labels:    map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: run.ID},
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: step.Target.Kind, Namespace: step.Target.Namespace, Name: step.Target.Name,
			UID:        types.UID(step.Target.UID),
			APIVersion: apiVersion(step.Target.Kind),
		},
		Reason: reason, Type: kind, Message: shorten(message, maxEventMessage), Count: 1, FirstTimestamp: now,
		LastTimestamp:       now,
		Source:              corev1.EventSource{Component: ledger.ManagedBy, Host: run.From},
		ReportingController: "gpufault.dev/" + ledger.ManagedBy, ReportingInstance: run.ID,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.warn("no Event on %s: %v", step.Target, err)
	}
}

func apiVersion(kind string) string {
	switch kind {
	case kindNode, "Pod", "ConfigMap", "Namespace":
		return "v1"
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet":
		return "apps/v1"
	}
	return ""
}

// eventName returns the same name for the same event, so that repeating a revert does not create a second Event. The
// names of arm and disarm Events contain the time because these events recur.
func eventName(run ledger.Run, step ledger.Step, reason string, now time.Time) string {
	what := ""
	switch reason {
	case ReasonInjected:
		what = "injected"
	case ReasonReverted:
		what = "reverted"
	case ReasonArmed:
		what = fmt.Sprintf("armed-%x", now.UnixMilli())
	case ReasonDisarmed:
		what = fmt.Sprintf("disarmed-%x", now.UnixMilli())
	}
	return fmt.Sprintf("%s.%s.%s", run.ID, step.ID, what)
}
