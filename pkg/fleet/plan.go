// Package fleet injects a fault into many nodes from inside the cluster: an Indexed Job runs the plugin near the API
// server, with one pod for each shard of the nodes. Kubernetes schedules and limits the pods. Each pod creates an
// ordinary run, with its own record, verification and undo.
package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Plan describes what each pod of the Job does.
type Plan struct {
	Header
	Shards [][]string // nodes of each shard
}

// Header is the part of a plan that all shards share.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	ID         string `json:"id"` // ID of the fleet
	// Client is the build of the client. The program in the image must be the same.
	Client string `json:"client"`
	By     string `json:"by,omitempty"`   // user name according to the API server
	From   string `json:"from,omitempty"` // client's host name
	Shards int    `json:"shards"`
}

// Shard is the part of a plan that one pod reads.
type Shard struct {
	Header
	Index int
	Nodes []string
}

// Run returns the ID of the shard's run.
func (s Shard) Run() string { return ledger.FleetRun(s.ID, s.Index) }

const (
	kindPlan   = "FleetPlan"
	headerFile = "fleet.json"
)

func shardFile(index int) string { return fmt.Sprintf("shard-%d", index) }

// NewPlan returns a plan with shards of at most size nodes.
func NewPlan(header Header, nodes []string, size int) Plan {
	header.APIVersion, header.Kind = ledger.APIVersion, kindPlan
	plan := Plan{Header: header, Shards: slices.Collect(slices.Chunk(nodes, size))}
	plan.Header.Shards = len(plan.Shards)
	return plan
}

// Nodes returns the number of nodes.
func (p Plan) Nodes() int {
	n := 0
	for _, shard := range p.Shards {
		n += len(shard)
	}
	return n
}

// Check returns an error if the plan does not fit into a ConfigMap.
func (p Plan) Check() error {
	size := 0
	for _, shard := range p.Shards {
		for _, node := range shard {
			size += len(node) + 1
		}
	}
	if most := ledger.MaxStored - 64<<10; size > most {
		return fmt.Errorf("the names of %s are %d KiB, but at most %d KiB fit into the plan of a fleet: select "+
			"fewer nodes", count.Of(p.Nodes(), "node"), size>>10, most>>10)
	}
	return nil
}

// configMap returns the ConfigMap that the pods mount. The Job owns it, so both are deleted together.
func (p Plan) configMap(namespace string) (*corev1.ConfigMap, error) {
	header, err := json.Marshal(p.Header)
	if err != nil {
		return nil, fmt.Errorf("encode the plan of fleet %s: %w", p.ID, err)
	}
	data := map[string]string{headerFile: string(header)}
	for i, shard := range p.Shards {
		data[shardFile(i)] = strings.Join(shard, "\n")
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: p.ID, Namespace: namespace, Labels: labels(p.ID)},
		Immutable:  new(true),
		Data:       data,
	}, nil
}

func labels(id string) map[string]string {
	return map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelFleet: id}
}

// LoadShard reads a shard from the directory in which a pod mounts the plan. Only a program from the same build as the
// client accepts it, because the flags of another build may have a different meaning.
func LoadShard(directory string, index int, client string) (Shard, error) {
	data, err := read(directory, headerFile)
	if err != nil {
		return Shard{}, err
	}
	header, err := parseHeader(data)
	switch {
	case err != nil:
		return Shard{}, fmt.Errorf("read the fleet's plan: %w", err)
	case header.Client != client:
		return Shard{}, fmt.Errorf("the image contains a different build of kubectl gpu-fault (%s) than the client (%s): build the "+
			"image with the client: kubectl gpu-fault image push REPOSITORY --with-plugin", client, header.Client)
	case index < 0 || index >= header.Shards:
		return Shard{}, fmt.Errorf("fleet %s has no shard %d", header.ID, index)
	}
	if data, err = read(directory, shardFile(index)); err != nil {
		return Shard{}, err
	}
	nodes, err := parseNodes(data)
	if err != nil {
		return Shard{}, fmt.Errorf("read shard %d of fleet %s: %w", index, header.ID, err)
	}
	return Shard{Header: header, Index: index, Nodes: nodes}, nil
}

// read reads a file of a plan. The file must not be larger than a ConfigMap.
func read(directory, name string) ([]byte, error) {
	file, err := os.Open(filepath.Join(directory, name))
	if err != nil {
		return nil, fmt.Errorf("read the fleet's plan: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, ledger.MaxStored+1))
	if err == nil && len(data) > ledger.MaxStored {
		err = errors.New("too long")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s in the fleet's plan: %w", name, err)
	}
	return data, nil
}

func parseHeader(data []byte) (Header, error) {
	var header Header
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&header); err != nil {
		return Header{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Header{}, errors.New("unexpected data after the plan")
	}
	switch {
	case header.APIVersion != ledger.APIVersion || header.Kind != kindPlan:
		return Header{}, fmt.Errorf("unexpected kind %q with apiVersion %q", header.Kind, header.APIVersion)
	case !ledger.IsFleet(header.ID):
		return Header{}, fmt.Errorf("invalid ID %q", header.ID)
	}
	return header, nil
}

func parseNodes(data []byte) ([]string, error) {
	nodes := strings.Split(string(data), "\n")
	for _, node := range nodes {
		if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
			return nil, fmt.Errorf("invalid node name %q: %s", node, problems[0])
		}
	}
	return nodes, nil
}
