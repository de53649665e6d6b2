package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
)

// tainting holds the arguments and flags of `device taint`.
type tainting struct {
	nodefault.Flags
	driver  string
	devices []string
	text    string // of --taint
	taint   resourcev1.DeviceTaint
}

// defaultTaint, like the taints of NVIDIA's DRA driver, does not evict pods.
const defaultTaint = "gpufault.dev/unhealthy=true:NoSchedule"

func newTaintCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	t := &tainting{Flags: nodefault.New()}
	t.NoPods = true
	cmd := &cobra.Command{
		Use:   "taint (NODE... | -l SELECTOR | --pod POD) [--device NAME]",
		Short: "Taint dynamic resource allocation (DRA) devices until the run is reverted",
		Long: `Taint devices that a DRA driver has published for a node, as the driver itself does if they are unhealthy, and verify that Kubernetes applies the taint.

With the effect NoSchedule, the scheduler does not allocate the devices to new pods. With NoExecute, Kubernetes also deletes the pods that use
them, unless their ResourceClaims tolerate the taint. Nothing is changed on the node, and no pod is started there.

Each device gets a DeviceTaintRule that selects only this device. Kubernetes does not delete the rules when the TTL expires: revert does, for
example with revert --expired. The cluster must serve DeviceTaintRules (feature gate DRADeviceTaintRules, Kubernetes 1.35 or later).`,
		Example: `  # Keep the scheduler from allocating device gpu-1 on node worker-3
  kubectl gpu-fault device taint worker-3 --device gpu-1

  # Evict a pod that uses a device, as when a GPU is lost
  kubectl gpu-fault device taint --pod trainer-0 -n research --taint gpu.nvidia.com/xid=79:NoExecute`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.Nodes.Names = args
			connection.SwapFeature("device", "taint") // the roles for tainting do not require root on nodes
			if err := t.validate(); err != nil {
				return err
			}
			return t.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completion.Nodes(connection),
	}
	t.AddFlags(cmd)
	flags := cmd.Flags()
	flags.Lookup("ttl").Usage = "Time after which revert --expired reverts the run, 10s to 24h; 0 for no end, which requires --reason"
	flags.StringVar(&t.Nodes.Pod, "pod", "", "Select the node and the devices of this pod, in the namespace set with -n")
	flags.StringSliceVar(&t.devices, "device", nil,
		"Name of a device in the node's ResourceSlices; may be repeated")
	flags.StringVar(&t.driver, "driver", "", "DRA driver of the devices (default: the only driver on the node)")
	flags.StringVar(
		&t.text,
		"taint",
		defaultTaint,
		"Taint: KEY=VALUE:EFFECT or KEY:EFFECT; effects: NoSchedule, NoExecute",
	)
	_ = cmd.RegisterFlagCompletionFunc("pod", completion.Pods(connection))
	return cmd
}

// validate checks everything that does not require a cluster.
func (t *tainting) validate() (err error) {
	switch {
	case len(t.devices) == 0 && t.Nodes.Pod == "":
		return errors.New(
			"no device is selected: specify --device or --pod (`kubectl get resourceslices -o yaml` lists the devices)",
		)
	case slices.ContainsFunc(t.devices, func(name string) bool { return strings.TrimSpace(name) == "" }):
		return errors.New("--device contains an empty name: is a variable unset?")
	}
	if t.taint, err = parseTaint(t.text); err != nil {
		return err
	}
	return t.Validate()
}

// parseTaint parses KEY=VALUE:EFFECT, as in kubectl taint. The API server validates the key and the value.
func parseTaint(text string) (resourcev1.DeviceTaint, error) {
	rest, effect, found := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	taint := resourcev1.DeviceTaint{Key: key, Value: value, Effect: resourcev1.DeviceTaintEffect(effect)}
	switch {
	case !found || key == "":
		return taint, fmt.Errorf("invalid value %q for --taint: must be KEY=VALUE:EFFECT or KEY:EFFECT, such as %s",
			text, defaultTaint)
	case taint.Effect != resourcev1.DeviceTaintEffectNoSchedule &&
		taint.Effect != resourcev1.DeviceTaintEffectNoExecute:
		return taint, fmt.Errorf("invalid value %q for --taint: supported effects: NoSchedule, NoExecute", text)
	}
	return taint, nil
}

func (t *tainting) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	var evicted []dra.Pod
	return t.Run(ctx, connection, streams, nodefault.Fault{
		Name: "device", Summary: "Tainted: " + t.String(), Result: "tainted", Question: "Taint " + t.String() + " on",
		Describe: func(say func(string, ...any)) { t.describe(say, evicted) },
		Needs:    TaintPermissions(),
		Changes: func(
			ctx context.Context, cluster *kube.Cluster, nodes []string, pod *corev1.Pod,
		) (changes []fault.Change, _ error) {
			client, err := dynamic.NewForConfig(cluster.Config)
			if err != nil {
				return nil, err
			}
			mapper, err := connection.ToRESTMapper()
			if err != nil {
				return nil, kube.Explain(err)
			}
			version, err := ruleVersion(mapper)
			if err != nil {
				return nil, err
			}
			for _, name := range nodes {
				published, err := dra.DevicesOn(ctx, cluster.Client, name)
				if err != nil {
					return nil, kube.Explain(err)
				}
				chosen, err := t.choose(published, pod)
				if err != nil {
					return nil, fmt.Errorf("node %q: %w", name, err)
				}
				rules := dra.Rules{Client: client, Devices: chosen, Taint: t.taint, Version: version}
				creation := &objects.Creation{
					Dynamic: client, Mapper: mapper, Objects: rules.Manifests(name),
					Target: ledger.Target{Kind: "Node", Name: name}, LedgerNamespace: connection.LedgerNamespace,
					MarksOnly: true,
				}
				// Ignore missing permissions here, because the preflight reports all of them at once.
				if err := creation.Check(ctx); err != nil && !apierrors.IsForbidden(err) {
					return nil, kube.Explain(err)
				}
				changes = append(changes, rules.Verified(creation.Change("taint "+t.String())))
				evicted = append(evicted, rules.Evicted()...)
			}
			return changes, nil
		},
	})
}

// ruleVersion returns the API version of DeviceTaintRules in the cluster.
func ruleVersion(mapper meta.RESTMapper) (string, error) {
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: resourcev1.GroupName, Kind: dra.RuleKind})
	if meta.IsNoMatchError(err) {
		return "", errors.New("the cluster does not serve DeviceTaintRules of resource.k8s.io: enable the " +
			"DRADeviceTaintRules feature gate (Kubernetes 1.35 or later) and the API version in kube-apiserver " +
			"(--runtime-config)")
	}
	if err != nil {
		return "", kube.Explain(err)
	}
	return mapping.GroupVersionKind.Version, nil
}

// choose returns the selected devices from those that are published for a node.
func (t *tainting) choose(published []dra.Device, pod *corev1.Pod) (chosen []dra.Device, _ error) {
	var drivers, names []string
	for _, d := range published {
		if !slices.Contains(drivers, d.Driver) {
			drivers = append(drivers, d.Driver)
		}
	}
	switch {
	case len(published) == 0:
		return nil, errors.New(
			"no DRA driver has published devices (ResourceSlices); for device plugins, use kubectl gpu-fault device unhealthy",
		)
	case t.driver != "" && !slices.Contains(drivers, t.driver):
		return nil, fmt.Errorf("driver %q has published no devices; the drivers are: %s", t.driver, list(drivers))
	case t.driver == "" && len(drivers) > 1 && pod == nil:
		return nil, fmt.Errorf("several drivers have published devices: specify --driver %s",
			strings.Join(drivers, ", or --driver "))
	}
	for _, d := range published {
		held := pod == nil || slices.ContainsFunc(d.Pods, func(p dra.Pod) bool { return p.UID == pod.UID })
		if (t.driver != "" && d.Driver != t.driver) || !held {
			continue
		}
		names = append(names, d.Name)
		if len(t.devices) == 0 || slices.Contains(t.devices, d.Name) {
			chosen = append(chosen, d)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the pod holds no device from a ResourceClaim")
	}
	for _, name := range t.devices {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("device %q not found; the devices are: %s", name, list(names))
		}
	}
	return chosen, nil
}

// TaintPermissions returns the permissions for tainting devices, in addition to those for every fault.
func TaintPermissions() []fault.Permission {
	all := []fault.Permission{
		{Verb: "list", Group: resourcev1.GroupName, Resource: "resourceslices"},
		{Verb: "list", Group: resourcev1.GroupName, Resource: "resourceclaims"},
		{Verb: "get", Resource: "pods"},
	}
	for _, verb := range []string{"create", "get", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Group: resourcev1.GroupName, Resource: dra.RuleResource})
	}
	return all
}

// String returns a description of the devices and the taint.
func (t *tainting) String() string {
	text := "the devices of pod " + t.Nodes.Pod
	if len(t.devices) > 0 {
		text = "device " + strings.Join(t.devices, ", ")
	}
	return text + " (" + t.text + ")"
}

// describe describes the planned change and how it ends.
func (t *tainting) describe(say func(string, ...any), evicted []dra.Pod) {
	switch {
	case t.taint.Effect == resourcev1.DeviceTaintEffectNoSchedule:
		say("What: the scheduler does not allocate the devices to new pods. Pods that hold them keep running.")
	case len(evicted) == 0:
		say("What: the scheduler does not allocate the devices to new pods. No pod is evicted.")
	default:
		var names []string
		for _, p := range evicted {
			names = append(names, p.String())
		}
		say("What: Kubernetes deletes the pods that hold the devices: %s. New pods do not get the devices.",
			strings.Join(names, ", "))
	}
	say("How: a DeviceTaintRule for each device. Nothing on the node is changed.")
	say("Duration: until you revert the run with `kubectl gpu-fault revert RUN`, or with `revert --expired` after " +
		"the TTL has expired.")
}
