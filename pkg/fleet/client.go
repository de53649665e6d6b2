package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Client starts, follows and stops fleets. The number of requests that it sends does not depend on the number of nodes,
// except when it reads the records at the end.
type Client struct {
	Kube      kubernetes.Interface
	Namespace string // namespace of the ledger
	// Every is the interval at which the Job is read. 0 means one second.
	Every time.Duration
	// Slow is the time after which a message is shown for a pod that is not running. 0 means five seconds.
	Slow time.Duration
}

// Permissions returns the permissions that a fleet needs, in addition to those of its fault.
func Permissions(namespace string) []fault.Permission {
	var all []fault.Permission
	for _, verb := range []string{"create", "get", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Group: "batch", Resource: "jobs", Namespace: namespace})
	}
	for _, verb := range []string{"create", "list"} {
		all = append(all, fault.Permission{Verb: verb, Resource: "pods", Namespace: namespace})
	}
	return all
}

// AccountError means that the service account for fleets does not exist.
type AccountError struct{ Namespace, Command string }

func (e *AccountError) Error() string {
	return fmt.Sprintf("service account %q not found in namespace %q: the pods of a fleet require it; an administrator can "+
		"create it with: %s | kubectl apply -f -", ledger.FleetAccount, e.Namespace, e.Command)
}

// DryRun checks whether the API server admits the Job and its pods. grant is the command that creates the service
// account.
func (c *Client) DryRun(ctx context.Context, job *batchv1.Job, grant string) error {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	made, err := c.Kube.BatchV1().Jobs(c.Namespace).Create(ctx, job, dry)
	switch {
	case apierrors.IsNotFound(err): // the namespace does not exist, so the account does not either
		return &AccountError{c.Namespace, grant}
	case err != nil:
		return fmt.Errorf("the Job would not be admitted: %w", err)
	case made.Spec.BackoffLimitPerIndex == nil || made.Spec.PodFailurePolicy == nil:
		return errors.New("--in-cluster requires Kubernetes 1.29 or later: this cluster does not support the field " +
			"backoffLimitPerIndex of Jobs")
	}
	pod := &corev1.Pod{ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
	pod.Name = job.Name
	_, err = c.Kube.CoreV1().Pods(c.Namespace).Create(ctx, pod, dry)
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account"):
		return &AccountError{c.Namespace, grant}
	}
	return fmt.Errorf("the Job's pods would not be admitted: %w", err)
}

// Start creates the Job and its plan. The plan is created second because the Job owns it. Until the plan exists, no pod
// starts.
func (c *Client) Start(ctx context.Context, job *batchv1.Job, plan *corev1.ConfigMap) (*batchv1.Job, error) {
	created, err := c.Kube.BatchV1().Jobs(c.Namespace).Create(ctx, job, metav1.CreateOptions{})
	if err != nil {
		err = fmt.Errorf("create the Job of fleet %s: %w", job.Name, err)
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		return nil, errors.Join(err, c.Stop(ctx, job.Name)) // the response may have been lost
	}
	plan = plan.DeepCopy()
	plan.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: created.Name, UID: created.UID},
	}
	if _, err := c.Kube.CoreV1().ConfigMaps(c.Namespace).Create(ctx, plan, metav1.CreateOptions{}); err != nil {
		err = fmt.Errorf("create the plan of fleet %s: %w", job.Name, err)
		return nil, errors.Join(err, c.Stop(ctx, job.Name))
	}
	return created, nil
}

// stopTimeout is the maximum time that Stop waits, in addition to the grace period of the pods.
const stopTimeout = 30 * time.Second

// requestTimeout limits each request that is retried if it fails.
const requestTimeout = 15 * time.Second

// Stop deletes the Job of a fleet and waits until its pods have terminated. Before the pods terminate, they undo their
// changes. Stop does nothing if the Job does not exist, or is not the Job of this fleet. It works even after ctx has
// ended, and retries requests that fail, because otherwise the Job would continue.
func (c *Client) Stop(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	job, err := c.delete(ctx, id)
	for until := time.Now().Add(stopTimeout); err != nil; job, err = c.delete(ctx, id) {
		if apierrors.IsForbidden(err) || time.Now().After(until) {
			return fmt.Errorf("delete the Job of fleet %s: %w", id, err)
		}
		time.Sleep(c.every())
	}
	if job == nil {
		return nil
	}
	patience := stopTimeout
	if grace := job.Spec.Template.Spec.TerminationGracePeriodSeconds; grace != nil && !finished(job) {
		patience += time.Duration(*grace) * time.Second
	}
	for until := time.Now().Add(patience); ; {
		now, err := c.job(ctx, id)
		if err == nil && (now == nil || now.UID != job.UID) {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("the pods of fleet %s have not terminated within %s; see: kubectl get pods -n %s -l %s=%s", id,
				patience, c.Namespace, ledger.LabelFleet, id)
		}
		time.Sleep(min(c.every(), time.Until(until)))
	}
}

// delete deletes the Job of a fleet. It returns the Job, or nil if there is none.
func (c *Client) delete(ctx context.Context, id string) (*batchv1.Job, error) {
	job, err := c.job(ctx, id)
	if err != nil || job == nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	foreground := metav1.DeletePropagationForeground // the Job remains until its pods have terminated
	err = c.Kube.BatchV1().Jobs(c.Namespace).Delete(ctx, id, metav1.DeleteOptions{
		PropagationPolicy: &foreground, Preconditions: metav1.NewUIDPreconditions(string(job.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return job, err
}

// job returns the Job of a fleet, or nil if it does not exist. A Job with the same name that does not belong to the
// fleet counts as missing: records are untrusted, so their names must not select other users' Jobs.
func (c *Client) job(ctx context.Context, id string) (*batchv1.Job, error) {
	if !ledger.IsFleet(id) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	job, err := c.Kube.BatchV1().Jobs(c.Namespace).Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the Job of fleet %s: %w", id, err)
	case job.Labels[ledger.LabelFleet] != id || job.Labels[ledger.LabelManagedBy] != ledger.ManagedBy:
		return nil, nil
	}
	return job, nil
}

// Exists reports whether the Job of a fleet exists.
func (c *Client) Exists(ctx context.Context, id string) (bool, error) {
	job, err := c.job(ctx, id)
	return job != nil, err
}

// Find returns the fleets whose plans exist, even if no pod has created a record yet.
func (c *Client) Find(ctx context.Context) ([]string, error) {
	plans, err := c.Kube.CoreV1().ConfigMaps(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=%s,%s,!%s", ledger.LabelManagedBy, ledger.ManagedBy, ledger.LabelFleet,
			ledger.LabelFault),
	})
	if err != nil {
		return nil, fmt.Errorf("list the fleets in namespace %s: %w", c.Namespace, err)
	}
	var ids []string
	for _, plan := range plans.Items {
		if id := plan.Labels[ledger.LabelFleet]; ledger.IsFleet(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (c *Client) every() time.Duration {
	if c.Every > 0 {
		return c.Every
	}
	return time.Second
}
