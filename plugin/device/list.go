package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/target"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// listing holds the flags of `device list NODE`.
type listing struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	pods       podflags.Flags
	format     printer.Format
}

func newListCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	l := &listing{connection: connection, streams: streams, pods: podflags.New()}
	cmd := &cobra.Command{
		Use:   "list NODE",
		Short: "List the devices of a node, their health, and the pods that use them",
		Long: `List the devices that device plugins have registered with the kubelet of a node, their health, and the pods that use them.

An unhealthy device that no pod uses is listed only if this tool made it unhealthy: otherwise, the kubelet does not keep track of it.

A privileged pod collects the data and is then deleted. Nothing is changed.`,
		Example: `  # List the devices of gpu-1
  kubectl gpu-fault device list gpu-1

  # Print the IDs of the unhealthy devices
  kubectl gpu-fault device list gpu-1 -o jsonpath='{.items[?(@.health=="Unhealthy")].id}'`,
		Args: usage.ExactArgs(1, "the name of a node", "kubectl gpu-fault device list gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes := target.Nodes{Names: args, NoPod: true}
			if err := errors.Join(nodes.Validate(), l.format.Validate(), l.pods.Validate()); err != nil {
				return err
			}
			return kube.Explain(l.run(cmd.Context(), nodes))
		},
		ValidArgsFunction: completion.OneNode(connection),
	}
	l.pods.AddFlags(cmd)
	l.format.AddFlags(cmd)
	return cmd
}

// deviceList is the output of `device list -o json`.
type deviceList struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Node       string   `json:"node"`
	Items      []device `json:"items"`
}

type device struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	// GPU is the index in nvidia-smi; nil if the device is not a GPU of the NVIDIA driver.
	GPU    *int   `json:"gpu,omitempty"`
	Health string `json:"health"` // Healthy or Unhealthy, as in the status of pods
	Pod    string `json:"pod,omitempty"`
	// Run is the run that made the device unhealthy.
	Run string `json:"run,omitempty"`
}

func (l *listing) run(ctx context.Context, nodes target.Nodes) error {
	cluster, err := l.connection.Cluster()
	if err != nil {
		return err
	}
	names, _, err := nodes.Resolve(ctx, cluster.Client, cluster.Namespace)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.pods.Timeout,
		fmt.Errorf("timed out after %s: increase --timeout", l.pods.Timeout))
	defer cancel()
	look := session.Look{
		Cluster: cluster, LedgerNamespace: l.connection.LedgerNamespace, Pods: l.pods, ErrOut: l.streams.ErrOut,
		Name: "devices", Reading: "reading the kubelet's devices",
	}
	var info *api.Info
	var found *api.Devices
	err = look.At(ctx, names[0], func(pod *debugpod.Session) (err error) {
		if found, err = pod.ListDevices(ctx); err == nil {
			info, err = pod.Inspect(ctx, api.Inspect{})
		}
		return err
	})
	if err != nil {
		return err
	}
	pods, err := podNames(ctx, cluster, names[0])
	if err != nil {
		found.Warnings = append(found.Warnings, "the pods on the node cannot be listed: "+kube.Explain(err).Error())
	}
	list := newDeviceList(names[0], *info, *found, pods)
	if !l.format.IsTable() {
		err = l.format.Object(l.streams.Out, list, "node/"+list.Node)
	} else {
		err = list.write(l.streams, l.format)
	}
	for _, r := range found.Resources {
		if r.Problem != "" {
			found.Warnings = append(found.Warnings, r.Name+": "+r.Problem)
		}
	}
	for _, warning := range found.Warnings {
		printer.Talk(l.streams.ErrOut, "Warning: %s", warning)
	}
	session.NoteRuns(ctx, cluster, l.connection.LedgerNamespace, list.Node, l.streams.ErrOut)
	return err
}

// podNames returns the pods on a node as NAMESPACE/NAME, by the UIDs that the kubelet uses.
func podNames(ctx context.Context, cluster *kube.Cluster, nodeName string) (map[string]string, error) {
	pods, err := cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName).String(),
	})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, pod := range pods.Items {
		uid := string(pod.UID)
		if static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
			uid = static
		}
		names[uid] = pod.Namespace + "/" + pod.Name
	}
	return names, nil
}

func newDeviceList(nodeName string, info api.Info, found api.Devices, pods map[string]string) deviceList {
	list := deviceList{APIVersion: ledger.APIVersion, Kind: "DeviceList", Node: nodeName, Items: []device{}}
	for _, r := range found.Resources {
		for _, id := range slices.Sorted(slices.Values(slices.Concat(r.Healthy, r.Unhealthy))) {
			d := device{Resource: r.Name, ID: id, Health: "Healthy", GPU: indexOf(id, info.GPUs), Pod: r.Pods[id]}
			if pods != nil { // the kubelet keeps deleted pods until it needs their devices
				d.Pod = pods[d.Pod]
			}
			if !slices.Contains(r.Healthy, id) {
				d.Health = "Unhealthy"
				d.Run = r.Failed[id]
			}
			list.Items = append(list.Items, d)
		}
	}
	sorting.StableFunc(list.Items, func(a, b device) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), cmp.Compare(order(a.GPU), order(b.GPU)))
	})
	return list
}

// order returns the sort key of a GPU index. Unknown GPUs sort last.
func order(index *int) int {
	if index == nil {
		return math.MaxInt
	}
	return *index
}

func (list deviceList) write(streams genericiooptions.IOStreams, format printer.Format) error {
	if len(list.Items) == 0 {
		printer.Talk(streams.ErrOut, "no device plugin has registered devices on node %s", list.Node)
		return nil
	}
	table := &printer.Table{Header: []string{"RESOURCE", "GPU", "DEVICE", "HEALTH", "POD"}, NoHeader: format.NoHeader}
	for _, d := range list.Items {
		index := ""
		if d.GPU != nil {
			index = strconv.Itoa(*d.GPU)
		}
		health := d.Health
		if d.Run != "" {
			health += " (" + d.Run + ")"
		}
		table.Add(d.Resource, index, d.ID, health, d.Pod)
	}
	return table.Write(streams.Out)
}
