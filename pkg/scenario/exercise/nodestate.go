package exercise

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// mostCompared is the maximum number of nodes in a cluster for all of them to be compared. In a larger cluster, only
// the exercise's own nodes are compared.
const mostCompared = 8

// addNodes adds the state of the nodes to a snapshot if the candidate can become root there.
func (l *Lab) addNodes(ctx context.Context, r *scenario.Resolved, snapshot *baseline.Baseline) error {
	if !r.Public.Access.NodeShell || l.Faults == nil {
		return nil
	}
	nodes, _, err := l.comparedNodes(ctx, r)
	if err != nil {
		return err
	}
	state, unread := l.nodeStates(ctx, nodes)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	own := nodesOf(r)
	for _, node := range nodes {
		if state[node] == nil && slices.Contains(own, node) {
			return fmt.Errorf("the state of the nodes cannot be recorded: %s",
				strings.Join(unreadTexts(unread), "; "))
		}
	}
	for _, text := range unreadTexts(unread) {
		l.say("not compared later: %s", text)
	}
	snapshot.Nodes = state
	return nil
}

// comparedNodes returns the nodes whose state is compared, and the number of other nodes.
func (l *Lab) comparedNodes(ctx context.Context, r *scenario.Resolved) (nodes []string, others int, err error) {
	list, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, 0, fmt.Errorf("list nodes: %w", err)
	}
	own := nodesOf(r)
	for _, node := range list.Items {
		switch {
		case node.Status.NodeInfo.OperatingSystem == "windows", !isReady(node):
		case len(list.Items) > mostCompared && !slices.Contains(own, node.Name):
			others++
		default:
			nodes = append(nodes, node.Name)
		}
	}
	return nodes, others, nil
}

func isReady(node corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// nodeStates returns the state of nodes, and, by node, what could not be read.
func (l *Lab) nodeStates(
	ctx context.Context, nodes []string,
) (found map[string]map[string]string, unread map[string][]string) {
	found, unread = map[string]map[string]string{}, map[string][]string{}
	var wg sync.WaitGroup
	var lock sync.Mutex
	for _, node := range nodes {
		wg.Go(func() {
			state, warnings, err := l.Faults.NodeState(ctx, node)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				unread[node] = []string{err.Error()}
				return
			}
			found[node] = state
			if len(warnings) > 0 {
				unread[node] = warnings
			}
		})
	}
	wg.Wait()
	return found, unread
}

// unreadTexts describes what could not be read.
func unreadTexts(unread map[string][]string) (all []string) {
	for _, node := range slices.Sorted(maps.Keys(unread)) {
		for _, text := range unread[node] {
			all = append(all, "node "+node+": "+text)
		}
	}
	return all
}

// nodeChanges reads the nodes of a snapshot again. It returns their state, the differences outside the allowed paths,
// and what could not be read. An item that is missing may be one that could not be read.
func (l *Lab) nodeChanges(
	ctx context.Context, before *baseline.Baseline, allowed []string,
) (now map[string]map[string]string, changes []baseline.NodeChange, texts []string) {
	if len(before.Nodes) == 0 || l.Faults == nil {
		return nil, nil, nil
	}
	now, unread := l.nodeStates(ctx, slices.Sorted(maps.Keys(before.Nodes)))
	changes = slices.DeleteFunc(baseline.NodeChanges(before, &baseline.Baseline{Nodes: now}, allowed),
		func(c baseline.NodeChange) bool { return c.Kind == baseline.Deleted && unread[c.Node] != nil })
	return now, changes, unreadTexts(unread)
}

// onNodes returns what the candidate changed on nodes, in addition to what the scenario allows.
func (g *grading) onNodes(ctx context.Context, begin *baseline.Baseline) (damage []baseline.Difference, _ error) {
	_, changes, unread := g.lab.nodeChanges(ctx, begin, g.r.Sealed.Grade.Collateral.Nodes)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g.report.NotCompared = append(g.report.NotCompared, unread...)
	for _, change := range changes {
		damage = append(damage, change.Difference())
	}
	return damage, nil
}

// addedFiles returns the digests, by node and path, of the files that the candidate added at the paths where the
// scenario allows this, such as a containerd drop-in file.
func (l *Lab) addedFiles(
	ctx context.Context, r *scenario.Resolved, before *baseline.Baseline,
) map[string]map[string]string {
	allowed := r.Sealed.Grade.Collateral.Nodes
	if len(allowed) == 0 {
		return nil
	}
	now, changes, _ := l.nodeChanges(ctx, before, nil) // leftOnNodes reports what could not be read
	digests := map[string]map[string]string{}
	for _, change := range changes {
		path, is := strings.CutPrefix(change.Item, api.StateFile+" ")
		if is && change.Kind == baseline.Created && baseline.AllowedOnNodes(change.Item, allowed) {
			if digests[change.Node] == nil {
				digests[change.Node] = map[string]string{}
			}
			digests[change.Node][path] = now[change.Node][change.Item]
		}
	}
	return digests
}

// removes returns a description of the removal of a file from a node.
func removes(node, path string) Restored {
	change := baseline.NodeChange{Node: node, Item: api.StateFile + " " + path, Kind: baseline.Created}
	return Restored{Difference: change.Difference(), How: "remove it"}
}

// removeAdded removes the files that the candidate added where the scenario allows this. It runs before the revert, so
// that services that the revert restarts no longer read these files.
func (l *Lab) removeAdded(ctx context.Context, r *scenario.Resolved, before *baseline.Baseline, ending *Ending) {
	digests := l.addedFiles(ctx, r, before)
	for _, node := range slices.Sorted(maps.Keys(digests)) {
		removed, err := l.Faults.RemoveFiles(ctx, node, digests[node])
		if err != nil {
			l.say("node %s: the candidate's files could not be removed: %v", node, err)
			continue
		}
		for _, path := range slices.Sorted(maps.Keys(removed.Kept)) {
			l.say("node %s: %s could not be removed: %s", node, path, removed.Kept[path])
		}
		for _, path := range removed.Removed {
			ending.Restored = append(ending.Restored, removes(node, path))
		}
	}
}

// leftOnNodes adds what differs on nodes from the state before the exercise.
func (l *Lab) leftOnNodes(ctx context.Context, r *scenario.Resolved, before *baseline.Baseline, ending *Ending) {
	if !r.Public.Access.NodeShell || l.Faults == nil {
		return
	}
	ready, others, err := l.comparedNodes(ctx, r)
	if err != nil {
		ending.NotCompared = append(ending.NotCompared, err.Error())
	}
	for _, node := range ready {
		if before.Nodes[node] == nil && len(before.Nodes) > 0 {
			ending.NotCompared = append(ending.NotCompared, "node "+node+", whose state before the exercise is unknown")
		}
	}
	if others > 0 {
		ending.NotCompared = append(ending.NotCompared, count.Of(others, "node")+" that the exercise did not use")
	}
	if len(before.Nodes) == 0 {
		ending.NotCompared = append(ending.NotCompared, "everything, because the state before the exercise is unknown")
		return
	}
	_, changes, unread := l.nodeChanges(ctx, before, nil)
	ending.NotCompared = append(ending.NotCompared, unread...)
	for _, change := range changes {
		ending.Left = append(ending.Left, Left{
			Difference: change.Difference(), Why: change.String() + "; " + errWhose.Error(), ByHand: onNode(change),
		})
	}
}

// onNode returns a command that removes what was added on a node, or "" if it is not known how to restore the previous
// state.
func onNode(change baseline.NodeChange) string {
	if change.Kind != baseline.Created {
		return ""
	}
	for kind, command := range map[string]string{
		api.StateFile: "rm", api.StateMount: "umount", api.StateTable: "nft delete table",
		api.StateRoute: "ip route del",
	} {
		name, ok := strings.CutPrefix(change.Item, kind+" ")
		if !ok {
			continue
		}
		words := []string{name}
		if kind == api.StateTable || kind == api.StateRoute {
			words = strings.SplitN(name, " ", 2)
		}
		for i := range words {
			words[i] = shell.ShellQuote(words[i])
		}
		return fmt.Sprintf("kubectl debug node/%s -it --profile=sysadmin --image=busybox -- chroot /host %s %s",
			change.Node, command, strings.Join(words, " "))
	}
	return ""
}
