package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// candidate makes attempts with the candidate's own credentials.
type candidate struct {
	lab     *Lab
	e       *Exercise
	r       *scenario.Resolved
	begin   *baseline.Baseline
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

// as returns the candidate for an exercise, with the candidate's kubeconfig.
func (l *Lab) as(ctx context.Context, e *Exercise, r *scenario.Resolved) (*candidate, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("invalid kubeconfig for the candidate: %w", err)
	}
	// The timeout is possible because the client does not watch, and necessary because a server that does not respond
	// must not block the attempt.
	config.QPS, config.Burst, config.Timeout = 100, 200, time.Minute
	c := &candidate{lab: l, e: e, r: r, config: config}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	c.begin, err = l.snapshot(ctx, e, snapBegin)
	return c, err
}

// attempt runs the steps in order and returns how many succeeded. The error names the step that failed.
func (c *candidate) attempt(ctx context.Context, steps []scenario.Step) (made int, err error) {
	for i, step := range steps {
		c.lab.say("candidate: %s", nameOf(step))
		if err := c.step(ctx, step); err != nil {
			return i, fmt.Errorf("step %d (%s): %w", i+1, nameOf(step), c.explain(err))
		}
	}
	return len(steps), nil
}

// explain adds the expiry of the token to an error about a rejected token.
func (c *candidate) explain(err error) error {
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the candidate's token, which expires at %s, was rejected: %w",
			c.e.Account.Until.Format(time.RFC3339), err)
	}
	return err
}

func (c *candidate) step(ctx context.Context, step scenario.Step) error {
	switch {
	case step.Create != nil:
		return c.create(ctx, step.Create.Objects)
	case step.Patch != nil:
		return c.patch(ctx, *step.Patch)
	case step.Delete != nil:
		reach, err := c.reach(*step.Delete)
		if err != nil {
			return err
		}
		return c.remove(ctx, reach, step.Delete.Name, true)
	case len(step.Replace) > 0:
		return c.replace(ctx, step.Replace)
	case step.NodeShell != nil:
		return c.nodeShell(ctx, *step.NodeShell)
	case step.InPods != nil:
		return c.inPods(ctx, *step.InPods)
	case len(step.Wait) > 0:
		results, err := c.lab.check(ctx, sight{r: c.r, was: c.begin, probe: c.e.Probe},
			patient(step.Wait, attemptPatience))
		if err != nil {
			return err
		}
		for _, result := range results {
			if !result.OK {
				return &CheckError{"timed out waiting for the checks", results}
			}
		}
		return nil
	}
	return errors.New("action not supported in attempts")
}

// attemptPatience is the minimum timeout for the steps of an attempt to take effect. The time needed depends on the
// cluster, and is not graded: pods that have crashed wait for minutes before they are restarted.
const attemptPatience = scenario.Duration(4 * time.Minute)

func (c *candidate) reach(ref scenario.Ref) (dynamic.ResourceInterface, error) {
	return resource(c.dynamic, c.lab.Mapper, ref)
}

func (c *candidate) create(ctx context.Context, list []scenario.Object) error {
	for _, one := range list {
		object := (&unstructured.Unstructured{Object: one}).DeepCopy()
		reach, err := c.reach(refOf(object))
		if err != nil {
			return err
		}
		options := metav1.CreateOptions{
			FieldManager: objects.ManagerCreate, FieldValidation: metav1.FieldValidationStrict,
		}
		if _, err := reach.Create(ctx, object, options); err != nil {
			return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func (c *candidate) patch(ctx context.Context, patch scenario.Patch) error {
	reach, err := c.reach(patch.Object)
	if err != nil {
		return err
	}
	kind, content := types.MergePatchType, any(patch.Merge)
	if len(patch.JSON) > 0 {
		kind, content = types.JSONPatchType, patch.JSON
	}
	body, err := json.Marshal(content)
	if err != nil {
		return err
	}
	_, err = reach.Patch(ctx, patch.Object.Name, kind, body, metav1.PatchOptions{FieldManager: objects.ManagerPatch})
	return err
}

// remove deletes an object and waits until it no longer exists. If must is set, a missing object is an error.
func (c *candidate) remove(ctx context.Context, reach dynamic.ResourceInterface, name string, must bool) error {
	if must {
		if _, err := reach.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return remove(ctx, reach, name)
}

func (c *candidate) replace(ctx context.Context, list []scenario.Object) error {
	for _, one := range list {
		ref := refOf(&unstructured.Unstructured{Object: one})
		reach, err := c.reach(ref)
		if err != nil {
			return err
		}
		if err := c.remove(ctx, reach, ref.Name, false); err != nil {
			return err
		}
		if err := c.create(ctx, []scenario.Object{one}); err != nil {
			return err
		}
	}
	return nil
}

// nodeShellTimeout is the timeout of a script on a node.
const nodeShellTimeout = 90 * time.Second

// whenTold waits for a file before it executes the script in $0. Otherwise, a script might restart containerd before
// the kubelet knows that the container has started, and the kubelet would start the container again.
const whenTold = `until [ -e /go ]; do sleep 0.1; done; exec nsenter -t 1 -m -u -n -i -p -- sh -c "$0"`

// nodeShell runs a script as root on a node, as a user who may create privileged pods can do.
func (c *candidate) nodeShell(ctx context.Context, shell scenario.NodeShell) error {
	said, ok, err := c.onNode(ctx, shell)
	if err == nil && !ok {
		err = fmt.Errorf("the script failed: %s", said)
	}
	return err
}

// onNode runs a script as root on a node. It returns the last lines of its output, and whether it succeeded.
func (c *candidate) onNode(ctx context.Context, shell scenario.NodeShell) (said string, ok bool, err error) {
	pods := c.client.CoreV1().Pods(c.r.Public.Access.Namespaces[0])
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-shell-"},
		Spec: corev1.PodSpec{
			ActiveDeadlineSeconds: new(int64(nodeShellTimeout / time.Second)),
			NodeName:              shell.Node, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "shell", Image: c.lab.probeImage(), ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         []string{"sh", "-c", whenTold, shell.Script},
				SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
			}},
		},
	}
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", false, err
	}
	defer func() {
		clean, cancel := outlive(ctx)
		defer cancel()
		left := pods.Delete(clean, created.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if left != nil && !apierrors.IsNotFound(left) {
			err = errors.Join(err, left)
		}
	}()
	var now *corev1.Pod
	told := false
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, nodeShellTimeout, true,
		func(ctx context.Context) (bool, error) {
			seen, err := pods.Get(ctx, created.Name, metav1.GetOptions{})
			if err != nil {
				return false, final(err)
			}
			now = seen
			if seen.Status.Phase == corev1.PodRunning && !told {
				streams := debugpod.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
				// The response may be lost in the restart, but creating the file twice is harmless.
				limited, cancel := context.WithTimeout(ctx, 10*time.Second)
				told = debugpod.NewExecer(c.config).Exec(limited, seen, "shell", []string{"touch", "/go"},
					streams) == nil
				cancel()
			}
			return seen.Status.Phase == corev1.PodSucceeded || seen.Status.Phase == corev1.PodFailed, nil
		})
	if err != nil {
		return "", false, fmt.Errorf("timed out waiting for the script: %w", err)
	}
	log, _ := pods.GetLogs(created.Name, &corev1.PodLogOptions{TailLines: new(int64(5))}).DoRaw(ctx)
	return strings.TrimSpace(string(log)), now.Status.Phase == corev1.PodSucceeded, nil
}
