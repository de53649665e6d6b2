package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// open reads the only image of an OCI archive, as `clusterkit image` writes it: an uncompressed layer, a config, a
// manifest.
func open(path string) (v1.Image, error) {
	files, err := unpack(path)
	if err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) == 0 {
		return nil, fmt.Errorf("no index of images in it: %v", err)
	}
	blob := func(h v1.Hash) []byte { return files["blobs/"+h.Algorithm+"/"+h.Hex] }
	raw := blob(index.Manifests[0].Digest)
	manifest, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&archive{raw: raw, manifest: manifest, blob: blob})
}

func unpack(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[strings.TrimPrefix(h.Name, "./")], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// archive is an image whose blobs are in memory.
type archive struct {
	raw      []byte
	manifest *v1.Manifest
	blob     func(v1.Hash) []byte
}

func (a *archive) RawManifest() ([]byte, error)        { return a.raw, nil }
func (a *archive) RawConfigFile() ([]byte, error)      { return a.blob(a.manifest.Config.Digest), nil }
func (a *archive) MediaType() (types.MediaType, error) { return a.manifest.MediaType, nil }
func (a *archive) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range append(a.manifest.Layers, a.manifest.Config) {
		if d.Digest == h {
			return &layer{d, a.blob(h)}, nil
		}
	}
	return nil, fmt.Errorf("no layer %s", h)
}

// layer is a blob as it lies in the registry.
type layer struct {
	about v1.Descriptor
	data  []byte
}

func (l *layer) Digest() (v1.Hash, error)            { return l.about.Digest, nil }
func (l *layer) Size() (int64, error)                { return l.about.Size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.about.MediaType, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}
