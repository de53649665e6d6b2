package cudashim

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Pin restricts the pods of the changed templates to nodes.
type Pin struct {
	Nodes []string // names
	// Hard means that the nodes are required, so that pods stay Pending if the nodes have no room. Otherwise, the nodes
	// are preferred.
	Hard bool
}

// Paths of the node affinity in a pod spec.
func requiredTerms(spec kubeedit.Path) kubeedit.Path {
	return spec.Then(
		kubeedit.Fields("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
			"nodeSelectorTerms")...,
	)
}

func preferredTerms(spec kubeedit.Path) kubeedit.Path {
	return spec.Then(kubeedit.Fields("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")...)
}

// expression returns the requirement that selects the nodes by their hostname labels, which may differ from the node
// names.
func (p *Pin) expression(ctx context.Context, c *Cluster) (map[string]any, error) {
	if len(p.Nodes) == 0 {
		return nil, errors.New("no nodes were specified for the pods to run on")
	}
	values := make([]any, len(p.Nodes))
	for i, name := range p.Nodes {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fault.NodeNotFound(name, nil)
		case err != nil:
			return nil, fmt.Errorf("get node %q: %w", name, err)
		case node.Labels[corev1.LabelHostname] == "":
			return nil, fmt.Errorf("node %q does not have the label %s, which is required for running the pods on it", name, corev1.LabelHostname)
		}
		values[i] = node.Labels[corev1.LabelHostname]
	}
	return map[string]any{"key": corev1.LabelHostname, "operator": "In", "values": values}, nil
}

// pin restricts a template to nodes. Because terms are alternatives, it adds the requirement to each of the user's
// terms and removes none.
func (a additions) pin(object map[string]any, t Template) ([]kubeedit.Edit, error) {
	if name := kubeedit.Text(object, t.spec.Then(kubeedit.Field("nodeName"))); name != "" {
		return nil, fmt.Errorf("template %q sets nodeName %q, so its pods cannot run on another node",
			t.label(), name)
	}
	term := map[string]any{"matchExpressions": []any{a.expr}}
	if !a.hard {
		edit, err := kubeedit.Append(object, preferredTerms(t.spec),
			map[string]any{"weight": int64(100), "preference": term})
		return []kubeedit.Edit{edit}, err
	}
	at := requiredTerms(t.spec)
	terms, changed := pinned(kubeedit.List(object, at), a.expr)
	if !changed {
		return nil, nil
	}
	edit, err := kubeedit.Put(object, at, terms)
	return []kubeedit.Edit{edit}, err
}

// pinned returns the terms with the requirement added to each.
func pinned(terms []any, expr any) (result []any, changed bool) {
	if len(terms) == 0 {
		return []any{map[string]any{"matchExpressions": []any{expr}}}, true
	}
	result = make([]any, len(terms))
	for i, e := range terms {
		users, _ := e.(map[string]any)
		expressions, _ := users["matchExpressions"].([]any)
		fields, _ := users["matchFields"].([]any)
		result[i] = e
		// A term without requirements matches no node, and must still match no node.
		if len(expressions)+len(fields) == 0 || indexOf(expressions, kubeedit.Encode(expr)) >= 0 {
			continue
		}
		both := map[string]any{}
		for name, value := range users {
			both[name] = value
		}
		both["matchExpressions"] = append(append(make([]any, 0, len(expressions)+1), expressions...), expr)
		result[i], changed = both, true
	}
	return result, changed
}

// unpin removes the requirement from terms that another client has changed. It returns the remaining terms, and whether
// one of them contained the requirement. A term that contains nothing else belongs to the injection and is removed,
// because without requirements it would match no node.
func unpin(terms []any, expr any) (left []any, found bool) {
	for _, e := range terms {
		term, ok := e.(map[string]any)
		expressions, _ := term["matchExpressions"].([]any)
		i := indexOf(expressions, kubeedit.Encode(expr))
		if !ok || i < 0 {
			left = append(left, e)
			continue
		}
		found = true
		without := map[string]any{}
		for name, value := range term {
			without[name] = value
		}
		delete(without, "matchExpressions")
		if rest := append(
			append(make([]any, 0, len(expressions)), expressions[:i]...), expressions[i+1:]...,
		); len(rest) > 0 {
			without["matchExpressions"] = rest
		}
		if len(without) > 0 {
			left = append(left, without)
		}
	}
	return left, found
}

// indexOf returns the index of a value in a list, or -1.
func indexOf(list []any, value []byte) int {
	for i, e := range list {
		if kubeedit.Same(e, value) {
			return i
		}
	}
	return -1
}
