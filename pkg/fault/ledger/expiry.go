package ledger

import (
	"context"
	"fmt"
	"math"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// expiryGrace is how long after its end the locks and debug pods of a run are deleted: by then the dead men have put
// everything back.
const expiryGrace = 45 * time.Second

// Expire lets the cluster itself delete what belongs to a run when its time is up, though no client ever comes back.
//
// What belongs to the run is owned by a Job that wants no completions: it is complete from the start and never has a
// pod. The TTL-after-finished controller deletes it after ttlSecondsAfterFinished, and the garbage collector what it
// owns. So nothing of ours runs in the cluster, and nobody has credentials that could leak. (A Job may have
// `completions: 0`; pkg/apis/batch/validation.)
func (s *Store) Expire(ctx context.Context, run Run) (*Owner, error) {
	end := run.Until
	if run.Deadline.After(end) { // the client may still be at work
		end = run.Deadline
	}
	after := lifetime(run, end)
	job, err := s.Client.BatchV1().Jobs(s.Namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:   run.ID,
			Labels: map[string]string{LabelManagedBy: ManagedBy, LabelRun: run.ID},
			Annotations: map[string]string{
				AnnotationSummary: "deletes the locks and debug pods of run " + run.ID +
					" when its time is up; runs nothing",
			},
		},
		Spec: batchv1.JobSpec{
			Completions: new(int32(0)), Parallelism: new(int32(0)), TTLSecondsAfterFinished: &after,
			Template: corev1.PodTemplateSpec{Spec: nobody()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create job %s, which deletes locks and debug pods when the time is up: %w", run.ID, err)
	}
	return &Owner{Name: job.Name, UID: string(job.UID)}, nil
}

// lifetime is ttlSecondsAfterFinished for a Job that was made, and so was complete, at the beginning of the run.
func lifetime(run Run, end time.Time) int32 {
	return int32(min(math.Ceil((end.Sub(run.Created) + expiryGrace).Seconds()), math.MaxInt32))
}

// ExpireOnTime lets the Job end when the fault does, once the run's client has finished.
func (s *Store) ExpireOnTime(ctx context.Context, run Run) error {
	if run.Owner == nil || !run.Deadline.After(run.Until) {
		return nil
	}
	patch := fmt.Sprintf(`{"spec":{"ttlSecondsAfterFinished":%d}}`, lifetime(run, run.Until))
	_, err := s.Client.BatchV1().Jobs(s.Namespace).Patch(ctx, run.Owner.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("locks and debug pods of run %s go away at %s instead of %s: %w", run.ID,
			run.Deadline.Format(time.TimeOnly), run.Until.Format(time.TimeOnly), err)
	}
	return nil
}

// nobody returns the pod that the Job never has. It is a harmless one, since policies look at it.
func nobody() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(65534)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "none", Image: "registry.k8s.io/pause:3.10",
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// EndExpiry deletes the Job of Expire, for a run that left nothing.
func (s *Store) EndExpiry(ctx context.Context, run Run) error {
	if run.Until.IsZero() {
		return nil
	}
	jobs := s.Client.BatchV1().Jobs(s.Namespace)
	job, err := jobs.Get(ctx, run.ID, metav1.GetOptions{})
	if err == nil {
		if job.Labels[LabelRun] != run.ID {
			return nil // it belongs to another client, whatever name the record gives the run
		}
		background := metav1.DeletePropagationBackground // and the locks and pods that nobody else deleted
		err = jobs.Delete(ctx, run.ID, metav1.DeleteOptions{
			PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(job.UID)),
		})
	}
	if apierrors.IsForbidden(err) && run.Owner == nil {
		return nil // a fault without debug pods has no Job, and needs no right to delete one
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete job %s, which is of no use any more: %w", run.ID, err)
	}
	return nil
}

// OwnerReference is for what belongs to the run; nil for a run without an end.
func (r Run) OwnerReference() *metav1.OwnerReference {
	if r.Owner == nil {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: r.Owner.Name, UID: types.UID(r.Owner.UID)}
}
