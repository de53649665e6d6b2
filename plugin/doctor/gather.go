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

// source fills snapshots from a cluster, without privileges.
type source interface {
	// API reads the objects, and what hangs on them: logs, Helm's releases, what registries say. What it could not see
	// is in Missing.
	API(ctx context.Context) (*snapshot.Snapshot, error)
	// Suspicious are the GPU nodes that look wrong by what the API says.
	Suspicious(s *snapshot.Snapshot) []string
}

// reader reads nodes by pods.
type reader interface {
	// Admitted asks whether such a pod may be made on the node; the error says why not. It makes none.
	Admitted(ctx context.Context, nodeName string) error
	// Prepare makes the namespace of the pods if it is not there, and reports whether it did.
	Prepare(ctx context.Context) (created bool, err error)
	// Read reads a node by a pod, and deletes it in any case.
	Read(ctx context.Context, nodeName string, progress func(text string)) (*api.Diagnosis, error)
}

// gathering is the collection of evidence.
type gathering struct {
	*options
	source    source
	reader    reader
	show      *progress.Reporter
	namespace string // of the pods
}

// gather returns all evidence that can be had. The error is for what leaves nothing to conclude from, and for being
// stopped.
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
		g.show.Note("a dry run starts no pod: no node is read, and what only nodes tell is not known")
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

// choose picks the nodes to read, and notes of the other GPU nodes why they were not.
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
		why = engine.NotAsked + ": it has not the labels of -l"
		if names, err = selected(s, g.selector); err != nil {
			return nil, err
		}
	case g.allGPUNodes:
	case !g.needsNodes():
		return nil, nil
	default:
		why = engine.NotAsked +
			": it looks healthy by what the API says, or like others that were read (--all-gpu-nodes reads it too)"
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

// namespaceExists refuses a namespace that is not there, where it is known which are: nothing would be found in it.
func namespaceExists(s *snapshot.Snapshot, name string) error {
	var all []string
	for _, n := range s.Namespaces {
		all = append(all, n.Name)
	}
	if name == "" || len(all) == 0 || slices.Contains(all, name) {
		return nil
	}
	if like := nearest(name, all); like != "" {
		return fmt.Errorf("-n: there is no namespace %q; did you mean %s? (kubectl get namespaces lists them)", name,
			like)
	}
	return fmt.Errorf("-n: there is no namespace %q: see kubectl get namespaces", name)
}

// exist refuses names of nodes that are not there.
func exist(s *snapshot.Snapshot, names []string) error {
	var all []string
	for _, n := range s.Nodes {
		all = append(all, n.Name)
	}
	for _, name := range names {
		if len(all) > 0 && !slices.Contains(all, name) {
			err := fault.NodeNotFound(name, all)
			if subcommand := suggest.Nearest(name, []string{"explain", "checks"}); subcommand != "" {
				return fmt.Errorf("%w, or the subcommand %s", err, subcommand)
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
		return nil, fmt.Errorf("no node has the labels %q: see `kubectl get nodes --show-labels`", selector)
	}
	return names, nil
}

// reachable leaves out nodes on which no pod of ours would start, so that nobody waits for it.
func (g *gathering) reachable(s *snapshot.Snapshot, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		i := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == name })
		if i < 0 { // the nodes could not be listed, and this one was named
			return false
		}
		why := ""
		if os := s.Nodes[i].Labels[corev1.LabelOSStable]; os != "" && os != "linux" {
			why = "not read: it runs " + os
		}
		for _, c := range s.Nodes[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				why = "not read: the node is not Ready, and no pod starts on it"
			}
		}
		if why != "" {
			missing(s, name, why)
		}
		return why != ""
	})
}

// read reads nodes by pods, several at a time. A node that cannot be read is missing, and stops no other.
func (g *gathering) read(ctx context.Context, s *snapshot.Snapshot, names []string) {
	if err := g.reader.Admitted(ctx, names[0]); err != nil && ctx.Err() == nil {
		g.show.Note(fmt.Sprintf("no node is read, since no privileged pod may be made in namespace %s: %s", g.namespace,
			reason(err)))
		g.show.Note("what only a node can tell is reported as unknown; --api-only leaves this out")
		for _, name := range names {
			missing(s, name, "not read: no privileged pod may be made: "+reason(err))
		}
		return
	}
	g.show.Note(g.pods.Announcement(g.namespace, names))
	created, err := g.reader.Prepare(ctx)
	if ctx.Err() != nil {
		return // who stopped it knows why
	}
	if err != nil {
		g.show.Note(fmt.Sprintf("no node is read: %s", reason(err)))
		for _, name := range names {
			missing(s, name, "not read: "+reason(err))
		}
		return
	}
	if created {
		g.show.Note(fmt.Sprintf(
			"namespace %s was created for it; it stays for the next time (kubectl delete namespace %s removes it)",
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
				g.show.Step(name, "not read: "+reason(failed[i]))
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is in failed, by node
	for i, name := range names {
		if found[i] != nil {
			if s.Hosts == nil {
				s.Hosts = map[string]*api.Diagnosis{}
			}
			s.Hosts[name] = snapshot.RedactHost(found[i]) // before anything of it is shown
		} else {
			missing(s, name, "not read: "+reason(failed[i]))
			s.Missing[len(s.Missing)-1].NotStarted = notStarted(failed[i])
		}
	}
}

// notStarted returns what kubelet and runtime said of a pod of ours that did not start, when that is the node's doing
// and not the image's, nor a policy's; else empty.
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

// reason returns an error in one line, without what a report has no use for.
func reason(err error) string {
	if err == nil {
		return "nobody knows why"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "not done in time (--timeout)"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
