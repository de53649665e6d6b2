package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/collect"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// clusterSource is a source that reads a real cluster.
type clusterSource struct {
	*options
	cluster   *kube.Cluster
	namespace string // namespace of the ledger
	show      *progress.Reporter
}

// API implements source.
func (c *clusterSource) API(ctx context.Context) (*snapshot.Snapshot, error) {
	from, err := collect.Connect(c.cluster.Config, c.namespace)
	if err != nil {
		return nil, err
	}
	s, err := collect.Collect(ctx, from, collect.Options{
		Client: build.Get().Version, Context: c.cluster.Context, APIOnly: c.apiOnly, NoImages: c.noImages,
	}, func(text string) { c.show.Step("cluster", text) })
	if err != nil {
		return nil, err
	}
	c.show.Step("cluster", fmt.Sprintf("read (nodes: %d, pods: %d)", len(s.Nodes), s.Meta.PodsSeen))
	return s, nil
}

// Limits on the nodes that are read without being requested. A few of the nodes with the same findings are sufficient.
const (
	mostSuspicious = 20
	mostAlike      = 3
)

// Suspicious implements source.
func (c *clusterSource) Suspicious(s *snapshot.Snapshot) []string {
	return suspicious(doctor.Examine(s, doctor.Options{}))
}

// suspicious returns the GPU nodes with findings, but only a few of those with the same findings. If no finding is
// about a GPU node, it returns the first few.
func suspicious(r doctor.Report) []string {
	looks := map[string][]string{} // the IDs of the findings, by node
	wrong := false
	for _, f := range r.Items {
		if f.Root && f.Severity == finding.Info {
			continue
		}
		wrong = true
		for _, name := range f.Nodes {
			looks[name] = append(looks[name], f.ID)
		}
	}
	var named, others []string
	for _, n := range r.Nodes {
		if len(looks[n.Node]) > 0 {
			named = append(named, n.Node)
		} else {
			others = append(others, n.Node)
		}
	}
	if len(named) == 0 && wrong {
		return others[:min(mostAlike, len(others))]
	}
	// Start with the nodes that have the most findings.
	sorting.StableFunc(named, func(a, b string) int { return cmp.Compare(len(looks[b]), len(looks[a])) })
	alike := map[string]int{}
	var chosen []string
	for _, name := range named {
		look := strings.Join(looks[name], " ")
		if alike[look]++; alike[look] <= mostAlike && len(chosen) < mostSuspicious {
			chosen = append(chosen, name)
		}
	}
	return chosen
}
