package dra

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Kind and resource of DeviceTaintRules.
const (
	RuleKind     = "DeviceTaintRule"
	RuleResource = "devicetaintrules"
)

// verifyTimeout limits the time that Kubernetes may take to apply a taint. It usually takes less than a second.
const verifyTimeout = time.Minute

// Rules are DeviceTaintRules, one for each device.
type Rules struct {
	Client  dynamic.Interface
	Devices []Device
	Taint   resourcev1.DeviceTaint
	Version string // API version in the cluster, such as v1
}

// Manifests returns the rules. Each selects exactly one device: an empty selector would select all devices in the
// cluster.
func (r Rules) Manifests(node string) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for _, d := range r.Devices {
		taint, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(&r.Taint) // cannot fail for a struct of strings
		delete(taint, "timeAdded")
		all = append(all, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": resourcev1.GroupName + "/" + r.Version, "kind": RuleKind,
			"metadata": map[string]any{"name": ruleName(node, d)},
			"spec": map[string]any{
				"deviceSelector": map[string]any{"driver": d.Driver, "pool": d.Pool, "device": d.Name},
				"taint":          taint,
			},
		}})
	}
	return all
}

// ruleName returns the name of the rule for a device. The name is unique, although pools may contain devices with the
// same names.
func ruleName(node string, d Device) string {
	sum := sha256.Sum256([]byte(d.Driver + " " + d.Pool + " " + d.Name))
	return fmt.Sprintf("%.100s-%s-%s", node, d.Name, hex.EncodeToString(sum[:4]))
}

// Evicted returns the pods that Kubernetes evicts because of the taint.
func (r Rules) Evicted() (pods []Pod) {
	if r.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return nil
	}
	for _, d := range r.Devices {
		for _, p := range d.Pods {
			tolerates := slices.ContainsFunc(p.Tolerations, r.tolerated)
			counted := slices.ContainsFunc(pods, func(other Pod) bool { return other.UID == p.UID })
			if !p.Extended && !tolerates && !counted {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// tolerated reports whether a toleration matches the taint.
func (r Rules) tolerated(t resourcev1.DeviceToleration) bool {
	return (t.Effect == "" || t.Effect == r.Taint.Effect) && (t.Key == "" || t.Key == r.Taint.Key) &&
		(t.Operator == resourcev1.DeviceTolerationOpExists || t.Value == r.Taint.Value)
}

// Verified returns a change that creates the rules and also waits until Kubernetes has applied them.
func (r Rules) Verified(creation fault.Change) fault.Change {
	create := creation.Apply
	creation.Apply = func(ctx context.Context, recorder fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := create(ctx, recorder)
		if err != nil {
			return evidence, err
		}
		recorder.Progress("waiting for the taint to take effect")
		for _, manifest := range r.Manifests(creation.Target.Name) {
			proof, err := r.applied(ctx, manifest.GetName())
			if err != nil {
				return evidence, err
			}
			evidence = append(evidence, proof)
		}
		for _, p := range r.Evicted() {
			recorder.Progress("waiting for the eviction of pod " + p.String())
			proof, err := r.evicted(ctx, p)
			if err != nil {
				return evidence, err
			}
			evidence = append(evidence, proof)
		}
		return evidence, nil
	}
	return creation
}

// evicted waits until a pod is being deleted.
func (r Rules) evicted(ctx context.Context, p Pod) (ledger.Evidence, error) {
	pods := r.Client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(p.Namespace)
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, verifyTimeout, true,
		func(ctx context.Context) (bool, error) {
			live, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
			last = err
			if err != nil {
				return apierrors.IsNotFound(err), nil
			}
			return live.GetUID() != p.UID || live.GetDeletionTimestamp() != nil, nil
		})
	if err != nil {
		return ledger.Evidence{}, fmt.Errorf(
			"pod %s has not been evicted after %s: %w",
			p,
			verifyTimeout,
			errors.Join(last, err),
		)
	}
	return ledger.Evidence{Source: "Pod " + p.String(), Time: time.Now().UTC(), Text: "evicted"}, nil
}

// applied waits until the controller that evicts pods has reported on a rule.
func (r Rules) applied(ctx context.Context, name string) (ledger.Evidence, error) {
	rules := r.Client.Resource(schema.GroupVersionResource{
		Group: resourcev1.GroupName, Version: r.Version, Resource: RuleResource,
	})
	var last string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, verifyTimeout, true,
		func(ctx context.Context) (bool, error) {
			rule, err := rules.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("get %s %s: %w", RuleKind, name, err)
			}
			last = report(rule)
			return last != "", nil
		})
	switch {
	case err == nil:
		return ledger.Evidence{
			Source: RuleKind + " " + name, Time: time.Now().UTC(), Text: fmt.Sprintf("%s; %s", r.taint(), last),
		}, nil
	case ctx.Err() == nil && wait.Interrupted(err):
		err = fmt.Errorf(
			"kube-controller-manager has not reported on %s %s after %s: is the DRADeviceTaintRules feature gate "+
				"enabled there?",
			RuleKind,
			name,
			verifyTimeout,
		)
	}
	return ledger.Evidence{}, err
}

// report returns the controller's report about the current generation of a rule, or "" if there is none.
func report(rule *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(rule.Object, "status", "conditions")
	for _, each := range conditions {
		var c metav1.Condition
		fields, ok := each.(map[string]any)
		if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c) != nil ||
			c.Type != resourcev1.DeviceTaintConditionEvictionInProgress ||
			c.ObservedGeneration != rule.GetGeneration() {
			continue
		}
		text := fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			text += ": " + strings.TrimSpace(c.Message)
		}
		return text
	}
	return ""
}

func (r Rules) taint() string { return "taint " + TaintText(r.Taint) }

// TaintText returns KEY=VALUE:EFFECT.
func TaintText(t resourcev1.DeviceTaint) string {
	value := ""
	if t.Value != "" {
		value = "=" + t.Value
	}
	return fmt.Sprintf("%s%s:%s", t.Key, value, t.Effect)
}
