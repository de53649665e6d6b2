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

// expiryGrace is the delay between the end of a run and the deletion of its locks and debug pods. It gives the dead
// man's switches time to undo their changes.
const expiryGrace = 45 * time.Second

// Expire makes the cluster delete the run's locks and debug pods when the TTL of the run expires, even if no client is
// running.
//
// It creates a Job that owns these objects. The Job has `completions: 0`, so it is complete from the start and never
// has a pod (see pkg/apis/batch/validation). The TTL-after-finished controller deletes the Job after
// ttlSecondsAfterFinished, and the garbage collector then deletes the objects. This needs no component of this tool in
// the cluster, and no credentials that could leak.
func (s *Store) Expire(ctx context.Context, run Run) (*Owner, error) {
	after := lifetime(run, run.end())
	job, err := s.Client.BatchV1().Jobs(s.Namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:   run.ID,
			Labels: map[string]string{LabelManagedBy: ManagedBy, LabelRun: run.ID},
			Annotations: map[string]string{
				AnnotationSummary: "deletes the locks and debug pods of run " + run.ID +
					" when the run expires; runs nothing",
			},
		},
		Spec: batchv1.JobSpec{
			Completions: new(int32(0)), Parallelism: new(int32(0)), TTLSecondsAfterFinished: &after,
			Template: corev1.PodTemplateSpec{Spec: unusedPod()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create job %s, which deletes locks and debug pods when the run expires: %w", run.ID, err)
	}
	return &Owner{Name: job.Name, UID: string(job.UID)}, nil
}

// end returns the time by which both the fault's TTL and the client's deadline have passed.
func (r Run) end() time.Time {
	if r.Deadline.After(r.Until) { // the client may still be running
		return r.Deadline
	}
	return r.Until
}

// lifetime returns the ttlSecondsAfterFinished of a Job that is created, and therefore complete, when the run starts.
func lifetime(run Run, end time.Time) int32 {
	return int32(min(math.Ceil((end.Sub(run.Created) + expiryGrace).Seconds()), math.MaxInt32))
}

// ExpireOnTime is called after the run's client has finished. It shortens the Job's TTL so that the Job's TTL ends with
// the fault's TTL.
func (s *Store) ExpireOnTime(ctx context.Context, run Run) error {
	if run.Owner == nil || !run.Deadline.After(run.Until) {
		return nil
	}
	patch := fmt.Sprintf(`{"spec":{"ttlSecondsAfterFinished":%d}}`, lifetime(run, run.Until))
	_, err := s.Client.BatchV1().Jobs(s.Namespace).Patch(ctx, run.Owner.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("locks and debug pods of run %s will be deleted at %s instead of %s: %w", run.ID,
			run.Deadline.Format(time.TimeOnly), run.Until.Format(time.TimeOnly), err)
	}
	return nil
}

// unusedPod returns the pod template of a Job that never creates a pod. It satisfies strict Pod Security policies.
func unusedPod() corev1.PodSpec {
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

// EndExpiry deletes the Job that Expire created for a run that left nothing in place.
func (s *Store) EndExpiry(ctx context.Context, run Run) error {
	if run.Until.IsZero() {
		return nil
	}
	jobs := s.Client.BatchV1().Jobs(s.Namespace)
	job, err := jobs.Get(ctx, run.ID, metav1.GetOptions{})
	if err == nil {
		if job.Labels[LabelRun] != run.ID {
			return nil // the Job belongs to another run, although the record names it
		}
		background := metav1.DeletePropagationBackground // also deletes the remaining locks and pods
		err = jobs.Delete(ctx, run.ID, metav1.DeleteOptions{
			PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(job.UID)),
		})
	}
	if apierrors.IsForbidden(err) && run.Owner == nil {
		return nil // a fault without debug pods has no Job, and its user may lack permission to delete one
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete job %s, which is no longer needed: %w", run.ID, err)
	}
	return nil
}

// OwnerReference returns the owner reference for objects that belong to the run, or nil for a run without a TTL.
func (r Run) OwnerReference() *metav1.OwnerReference {
	if r.Owner == nil {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: r.Owner.Name, UID: types.UID(r.Owner.UID)}
}
