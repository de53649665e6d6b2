package baseline

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

const (
	// part is the maximum number of bytes of a baseline in one Secret: etcd limits an object to 1.5 MiB, and base64
	// adds a third.
	part = 700 << 10
	// most is the maximum size of an uncompressed baseline, which is enough for several hundred thousand objects.
	most   = 512 << 20
	format = 1
)

// stored is the serialized form of a baseline.
type stored struct {
	Format  int            `json:"format"`
	Taken   time.Time      `json:"taken"`
	Missing []string       `json:"missing,omitempty"`
	Kinds   []storedKind   `json:"kinds"`
	Objects []storedObject `json:"objects"`

	Nodes       map[string]map[string]string `json:"nodes,omitempty"`
	NodeClients []string                     `json:"nodeClients,omitempty"`
}

type storedKind struct {
	Group   string `json:"group,omitempty"`
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

type storedObject struct {
	Kind      int               `json:"k"` // index in Kinds
	Namespace string            `json:"ns,omitempty"`
	Name      string            `json:"n"`
	Body      map[string]any    `json:"b"`
	Hashes    map[string]string `json:"h,omitempty"`
	Note      string            `json:"w,omitempty"`
}

// Encode returns the compressed baseline, in parts that each fit into a Secret.
func (b *Baseline) Encode() ([][]byte, error) {
	out := stored{
		Format: format, Taken: b.Taken, Missing: b.Missing, Kinds: []storedKind{}, Objects: []storedObject{},
		Nodes: b.Nodes, NodeClients: b.nodeClients,
	}
	index := map[schema.GroupKind]int{}
	for kind, version := range b.kinds {
		index[kind] = len(out.Kinds)
		out.Kinds = append(out.Kinds, storedKind{kind.Group, kind.Kind, version})
	}
	for k, o := range b.objects {
		i, listed := index[k.kind]
		if listed { // the kind may have been removed during listing
			out.Objects = append(out.Objects, storedObject{i, k.namespace, k.name, o.body, o.hashes, o.note})
		}
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if err := json.NewEncoder(zip).Encode(out); err != nil {
		return nil, fmt.Errorf("encode the baseline: %w", err)
	}
	if err := zip.Close(); err != nil {
		return nil, fmt.Errorf("encode the baseline: %w", err)
	}
	return slices.Collect(slices.Chunk(packed.Bytes(), part)), nil
}

// Decode reads the output of Encode.
func Decode(parts [][]byte) (*Baseline, error) {
	unpacked, err := unpack(bytes.Join(parts, nil))
	if err != nil {
		return nil, fmt.Errorf("read the baseline: %w; parts of it may be missing", err)
	}
	var in stored
	if err := json.Unmarshal(unpacked, &in); err != nil {
		return nil, fmt.Errorf("read the baseline: %w", err)
	}
	if in.Format != format {
		return nil, fmt.Errorf(
			"read the baseline: unsupported format %d (this version supports %d): use the version that started the exercise",
			in.Format, format,
		)
	}
	b := &Baseline{
		Taken: in.Taken, Missing: in.Missing, Nodes: in.Nodes, nodeClients: in.NodeClients,
		kinds: map[schema.GroupKind]string{}, objects: map[key]*object{},
	}
	for _, k := range in.Kinds {
		b.kinds[schema.GroupKind{Group: k.Group, Kind: k.Kind}] = k.Version
	}
	for _, o := range in.Objects {
		if o.Kind < 0 || o.Kind >= len(in.Kinds) || o.Body == nil {
			return nil, fmt.Errorf("read the baseline: object %q has no kind", o.Name)
		}
		k := in.Kinds[o.Kind]
		b.objects[key{schema.GroupKind{Group: k.Group, Kind: k.Kind}, o.Namespace, o.Name}] = &object{
			k.Version, o.Body, o.Hashes, o.Note,
		}
	}
	return b, nil
}

func unpack(packed []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	unpacked, err := io.ReadAll(io.LimitReader(zip, most+1))
	if err == nil && len(unpacked) > most {
		err = errors.New("too large")
	}
	return unpacked, err
}
