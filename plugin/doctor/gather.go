package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// source collects snapshots from a cluster without privileged pods.
type source interface {
	// API reads the objects and related data: logs, Helm releases, and image information from registries. Missing lists
	// what could not be read.
	API(ctx context.Context) (*snapshot.Snapshot, error)
	// Suspicious returns the GPU nodes that look unhealthy according to the API.
	Suspicious(s *snapshot.Snapshot) []string
}

// reader reads nodes through pods.
type reader interface {
	// Admitted returns an error if a pod that reads the node would not be admitted. It creates no pod.
	Admitted(ctx context.Context, nodeName string) error
	// Prepare creates the namespace for the pods if it does not exist, and reports whether it did.
	Prepare(ctx context.Context) (created bool, err error)
	// Read reads a node through a pod, which it always deletes.
	Read(ctx context.Context, nodeName string, progress func(text string)) (*api.Diagnosis, error)
}

// gathering collects the evidence.
type gathering struct {
	*options
	source    source
	reader    reader
	show      *progress.Reporter
	namespace string // namespace of the pods
}

// gather returns all evidence that it can get. It fails only if there is no evidence at all, or if ctx is canceled.
func (g *gathering) gather(ctx context.Context) (*snapshot.Snapshot, error) {
	s, err := g.source.API(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := namespaceExists(s, g.options.namespace); err != nil {
		return nil, err
	}
	s.Meta.APIOnly = g.startsNoPod()
	if g.startsNoPod() && !g.apiOnly {
		g.show.Note("a dry run starts no pods, so no nodes are inspected; checks that need nodes report unknown")
	}
	names, err := g.choose(s)
	if err != nil {
		return nil, err
	}
	names = g.reachable(s, names)
	if len(names) > 0 {
		g.read(ctx, s, names)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.Missing = snapshot.RedactMissing(s.Missing)
	return s, nil
}

// choose returns the nodes to read, and records for the other GPU nodes why they are not read.
func (g *gathering) choose(s *snapshot.Snapshot) ([]string, error) {
	if g.startsNoPod() {
		return nil, nil
	}
	var gpuNodes []string
	for _, n := range facts.New(s).GPUNodes {
		gpuNodes = append(gpuNodes, n.Name)
	}
	names, why := gpuNodes, ""
	switch {
	case len(g.nodes) > 0:
		why = engine.NotAsked + ": other nodes were named"
		names = nil
		for _, name := range g.nodes {
			names = append(names, strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/"))
		}
		if err := exist(s, names); err != nil {
			return nil, err
		}
	case g.selector != "":
		var err error
		why = engine.NotAsked + ": it does not match -l"
		if names, err = selected(s, g.selector); err != nil {
			return nil, err
		}
	case g.allGPUNodes:
	case !g.needsNodes():
		return nil, nil
	default:
		why = engine.NotAsked +
			": according to the API, it looks healthy or is similar to nodes that were inspected (to include it, use " +
			"--all-gpu-nodes)"
		names = g.source.Suspicious(s)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(g.nodes) > 0 || g.selector != "" {
		s.Meta.Asked = names
	}
	for _, name := range gpuNodes {
		if !slices.Contains(names, name) {
			missing(s, name, why)
		}
	}
	return names, nil
}

// namespaceExists returns an error if the namespace does not exist. It returns nil if the namespaces could not be
// listed.
func namespaceExists(s *snapshot.Snapshot, name string) error {
	var all []string
	for _, n := range s.Namespaces {
		all = append(all, n.Name)
	}
	if name == "" || len(all) == 0 || slices.Contains(all, name) {
		return nil
	}
	if like := nearest(name, all); like != "" {
		return fmt.Errorf("-n: namespace %q not found; did you mean %s? See: kubectl get namespaces", name,
			like)
	}
	return fmt.Errorf("-n: namespace %q not found; see: kubectl get namespaces", name)
}

// exist returns an error if a named node does not exist.
func exist(s *snapshot.Snapshot, names []string) error {
	var all []string
	for _, n := range s.Nodes {
		all = append(all, n.Name)
	}
	for _, name := range names {
		if len(all) > 0 && !slices.Contains(all, name) {
			err := fault.NodeNotFound(name, all)
			if subcommand := suggest.Nearest(name, []string{"explain", "checks", "signatures"}); subcommand != "" {
				return fmt.Errorf("%w, or the %s subcommand", err, subcommand)
			}
			return err
		}
	}
	return nil
}

func selected(s *snapshot.Snapshot, selector string) ([]string, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("-l %s: %w", selector, err)
	}
	var names []string
	for _, n := range s.Nodes {
		if parsed.Matches(labels.Set(n.Labels)) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no node matches the selector %q; see: kubectl get nodes --show-labels", selector)
	}
	return names, nil
}

// reachable returns the named nodes except those on which doctor's pods would not start, so that doctor does not wait
// for these pods.
func (g *gathering) reachable(s *snapshot.Snapshot, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		i := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == name })
		if i < 0 { // the nodes could not be listed, and this one was named
			return false
		}
		why := ""
		if os := s.Nodes[i].Labels[corev1.LabelOSStable]; os != "" && os != "linux" {
			why = "not inspected: the node runs " + os
		}
		for _, c := range s.Nodes[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				why = "not inspected: the node is not Ready, so no pod would start on it"
			}
		}
		if why != "" {
			missing(s, name, why)
		}
		return why != ""
	})
}

// read reads several nodes at a time through pods. A node that cannot be read is recorded in Missing and does not
// affect the others.
func (g *gathering) read(ctx context.Context, s *snapshot.Snapshot, names []string) {
	if err := g.reader.Admitted(ctx, names[0]); err != nil && ctx.Err() == nil {
		g.show.Note(fmt.Sprintf("no node is inspected, because privileged pods are not allowed in namespace %q: %s",
			g.namespace,
			reason(err)))
		g.show.Note("checks that need nodes report unknown; use --api-only to skip them")
		for _, name := range names {
			missing(s, name, "not inspected: privileged pods are not allowed: "+reason(err))
		}
		return
	}
	g.show.Note(g.pods.Announcement(g.namespace, names))
	created, err := g.reader.Prepare(ctx)
	if ctx.Err() != nil {
		return // canceled, so no message is needed
	}
	if err != nil {
		g.show.Note(fmt.Sprintf("no node is inspected: %s", reason(err)))
		for _, name := range names {
			missing(s, name, "not inspected: "+reason(err))
		}
		return
	}
	if created {
		g.show.Note(fmt.Sprintf(
			"namespace %q was created for the pods and is kept for the next run (kubectl delete namespace %s removes it)",
			g.namespace, g.namespace,
		))
	}
	found, failed := make([]*api.Diagnosis, len(names)), make([]error, len(names))
	var group errgroup.Group
	group.SetLimit(g.parallel)
	for i, name := range names {
		group.Go(func() error {
			if ctx.Err() != nil {
				failed[i] = context.Cause(ctx)
				return nil
			}
			found[i], failed[i] = g.reader.Read(ctx, name, func(text string) { g.show.Step(name, text) })
			if failed[i] != nil && ctx.Err() == nil {
				g.show.Step(name, "not inspected: "+reason(failed[i]))
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in failed, by node
	for i, name := range names {
		if found[i] != nil {
			s.AddHost(name, found[i])
		} else {
			missing(s, name, "not inspected: "+reason(failed[i]))
			s.Missing[len(s.Missing)-1].NotStarted = notStarted(failed[i])
		}
	}
}

// notStarted returns the message of the kubelet or the runtime for a pod that did not start because of the node. If the
// cause is the image or a policy, it returns "".
func notStarted(err error) string {
	var failure *debugpod.StartError
	if !errors.As(err, &failure) || failure.Pulls {
		return ""
	}
	switch failure.Reason {
	case debugpod.ReasonTimeout, debugpod.ReasonNodeNotReady, "CreateContainerError", "RunContainerError",
		"PreStartHookError":
		return failure.Message
	}
	return ""
}

func missing(s *snapshot.Snapshot, name, why string) {
	s.Missing = append(s.Missing, snapshot.Missing{What: "nodes/" + name, Why: why})
}

// reason returns an error as one line, without details that are irrelevant in a report.
func reason(err error) string {
	if err == nil {
		return "unknown error"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timed out (--timeout)"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
