package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Preflight returns everything that prevents an exercise: missing requirements and how to meet them, other users of the
// namespaces, and the permissions that the trainer lacks. It does not change the cluster.
func (l *Lab) Preflight(ctx context.Context, r *scenario.Resolved) error {
	s, err := l.begin(ctx, r, StartOptions{})
	if err != nil {
		return err
	}
	return s.session.Preflight(ctx, s.plan)
}

// checks returns the exercise's own part of the preflight.
func (s *start) checks() []func(context.Context) error {
	return []func(context.Context) error{
		s.busy,
		s.fresh,
		func(context.Context) error { return enoughGPUs(s.r.Requires, s.r.Facts) },
		s.networkPolicies,
		s.nodeAccess,
		s.images,
	}
}

// fresh returns an error if a namespace that the scenario creates already exists, because its contents belong to
// another user or are leftovers.
func (s *start) fresh(ctx context.Context) error {
	var problems []error
	for _, object := range made(s.r) {
		if !isNamespace(refOf(object)) {
			continue
		}
		found, err := s.lab.Client.CoreV1().Namespaces().Get(ctx, object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			problems = append(problems, fmt.Errorf("get namespace %q: %w", object.GetName(), err))
		case found.DeletionTimestamp != nil:
			problems = append(problems, fmt.Errorf(
				"namespace %q is still being deleted: wait, or use another --seed for another name", found.Name,
			))
		default:
			problems = append(problems,
				fmt.Errorf("namespace %[1]q, which the exercise would create, already exists (created %[2]s): use another --seed for another name, "+
					"or, if the namespace is not needed, run: kubectl delete namespace %[1]s", found.Name,
					found.CreationTimestamp.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(problems...)
}

// enoughGPUs compares the scenario's requirements with the current facts.
func enoughGPUs(needs scenario.Requires, facts scenario.Facts) error {
	if needs.Nodes == 0 && needs.GPUs == 0 {
		return nil
	}
	nodes, gpus := max(needs.Nodes, 1), max(needs.GPUs, 1)
	enough, free, with := 0, 0, 0
	for _, node := range facts.Nodes {
		if node.GPUs > 0 {
			with++
		}
		if node.GPUs >= gpus {
			enough++
			if node.FreeGPUs >= gpus {
				free++
			}
		}
	}
	wants := fmt.Sprintf("the scenario requires %d Ready, schedulable nodes with %d %s each", nodes, gpus,
		scenario.GPUResource)
	switch {
	case with == 0:
		return fmt.Errorf(
			"%s, but no node has GPUs: install NVIDIA's GPU Operator or device plugin, or simulate GPUs with --simulate-gpus %d",
			wants, max(gpus, mostNodes),
		)
	case enough < nodes:
		return fmt.Errorf(
			"%s, but found only %d (nodes with GPUs: %d): add nodes, or uncordon and untaint the existing ones",
			wants, enough, with,
		)
	case free < nodes:
		return fmt.Errorf("%s that are free, but found only %d: other pods use the rest; to list these pods, run: "+
			"kubectl get pods -A -o custom-columns=NS:.metadata.namespace,POD:.metadata.name,"+
			"GPUS:.spec.containers[*].resources.limits.nvidia\\.com/gpu", wants, free)
	}
	return nil
}

// nodeAccess verifies that the ledger's namespace admits privileged pods, which node faults need.
func (s *start) nodeAccess(ctx context.Context) error {
	if !s.r.Requires.NodeAccess {
		return nil
	}
	pod := s.lab.bare("node-access")
	pod.Spec.HostPID = true
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	_, err := s.lab.Client.CoreV1().Pods(s.lab.LedgerNamespace).Create(ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsNotFound(err) { // it will be created so that it admits privileged pods
		return nil
	}
	if err != nil {
		return fmt.Errorf("the scenario needs privileged pods in namespace %s, but the namespace does not admit them: %w; to allow privileged pods, run: "+
			"kubectl label namespace %[1]s pod-security.kubernetes.io/enforce=privileged --overwrite",
			s.lab.LedgerNamespace, err)
	}
	return nil
}

// images verifies that the nodes list the scenario's images. Kubelets list only 50 images, so images tries to pull an
// image if no node lists it.
func (s *start) images(ctx context.Context) error {
	if len(s.r.Requires.Images) == 0 {
		return nil
	}
	nodes, err := s.lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("search for the scenario's images: %w", err)
	}
	listed := map[string]bool{}
	for _, node := range nodes.Items {
		for _, image := range node.Status.Images {
			for _, name := range image.Names {
				listed[familiar(name)] = true
			}
		}
	}
	var problems []error
	for _, image := range s.r.Requires.Images {
		if listed[familiar(image)] {
			continue
		}
		if err := s.lab.pull(ctx, image); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// familiar returns the short form of an image name, which kubelets report in full.
func familiar(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "docker.io/"), "library/")
	if at := strings.LastIndex(name, "/"); !strings.Contains(name, "@") && !strings.Contains(name[at+1:], ":") {
		name += ":latest"
	}
	return name
}

// pullTimeout is the maximum time for pulling an image on a node in a preflight.
const pullTimeout = 45 * time.Second

// pull makes a node pull an image, with a pod that does not need to start, and returns an error if the node cannot pull
// it.
func (l *Lab) pull(ctx context.Context, image string) error {
	l.say("no node lists image %s: pulling it on one node", image)
	pod := l.bare("image")
	pod.Spec.Containers[0].Image = image
	pod.Spec.Containers[0].Command = []string{"true"}
	why := "not pulled within " + pullTimeout.String()
	err := l.withPod(ctx, pod, pullTimeout, func(pod *corev1.Pod) (bool, error) {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
			pod.Status.Phase == corev1.PodRunning {
			return true, nil
		}
		for _, status := range pod.Status.ContainerStatuses {
			waiting := status.State.Waiting
			switch {
			case waiting == nil:
			case slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"},
				waiting.Reason):
				why = waiting.Reason + ": " + waiting.Message
				return false, errors.New(why)
			case waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing":
				return true, nil // the image was pulled, even if the container cannot start
			}
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("the scenario requires image %s, but a node could not pull it (%s): load the image on the nodes, or make its registry reachable",
			image, why)
	}
	return nil
}

// bare returns a pod that does nothing, for observing how the cluster handles it.
func (l *Lab) bare(what string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "probe-" + what + "-", Namespace: l.LedgerNamespace,
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
			TerminationGracePeriodSeconds: new(int64(0)),
			EnableServiceLinks:            new(false), ActiveDeadlineSeconds: new(int64(120)),
			Containers: []corev1.Container{
				{Name: "probe", Image: l.probeImage(), ImagePullPolicy: corev1.PullIfNotPresent},
			},
		},
	}
}
