// Package image builds the debug pod's image, which contains only the node helper for each architecture. The build is
// reproducible: the same build of the client always produces the same bytes, and therefore the same digest. A client
// recognizes its own image by the digest or by the tag derived from it, and then does not upload the helper to the
// node.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Image is the image for all architectures, which is an OCI index.
type Image struct {
	Index  v1.ImageIndex
	Digest v1.Hash // digest of the index
	// Tag is gpu-fault- followed by the first twelve digits of the digest.
	Tag string
	// Platforms are in the order of the index.
	Platforms []Platform
}

// Platform is the image for one platform.
type Platform struct {
	Name   string `json:"platform"` // such as linux/amd64
	Digest string `json:"digest"`
	Size   int64  `json:"bytes"` // number of bytes that a node pulls

	Image v1.Image `json:"-"`
}

// New builds the image. The helper function returns the helper for an architecture, as helper.For does.
func New(helper func(arch string) ([]byte, error), architectures []string) (*Image, error) {
	return build(helper, architectures, Plugin{})
}

func build(helper func(arch string) ([]byte, error), architectures []string, plugin Plugin) (*Image, error) {
	images := make([]v1.Image, len(architectures))
	var making errgroup.Group
	for i, arch := range architectures {
		making.Go(func() (err error) {
			program, err := helper(arch)
			if err == nil {
				images[i], err = single(plugin.files(arch, program), arch)
			}
			if err != nil {
				return fmt.Errorf("build the image for linux/%s: %w", arch, err)
			}
			return nil
		})
	}
	if err := making.Wait(); err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	made := &Image{}
	for i, arch := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: images[i], Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
		p, err := describe(images[i], arch)
		if err != nil {
			return nil, err
		}
		made.Platforms = append(made.Platforms, p)
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	made.Index, made.Digest, made.Tag = index, digest, tagOf(digest)
	return made, nil
}

func describe(img v1.Image, arch string) (Platform, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return Platform{}, err
	}
	digest, err := img.Digest()
	if err != nil {
		return Platform{}, err
	}
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return Platform{Name: "linux/" + arch, Digest: digest.String(), Size: size, Image: img}, nil
}

// single returns the image for one architecture. layers contains the programs of each layer, by path. The image has no
// timestamp and no version, so the same programs always produce the same image.
func single(layers []map[string][]byte, arch string) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: arch,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{api.Program},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "gpu-fault-node",
				"org.opencontainers.image.source":   "https://github.com/gpu-fault/kubectl-gpu-fault",
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	for i, programs := range layers {
		layer, err := layerOf(programs, i == 0)
		if err != nil {
			return nil, err
		}
		base, err = mutate.Append(base,
			mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "kubectl gpu-fault image"}})
		if err != nil {
			return nil, err
		}
	}
	return base, nil
}

func layerOf(programs map[string][]byte, withTemporary bool) (v1.Layer, error) {
	files, err := archive(programs, withTemporary)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	},
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed),
		tarball.WithCompressedCaching)
}

// archive returns a tar archive of programs and, if withTemporary is set, a directory for temporary files.
func archive(programs map[string][]byte, withTemporary bool) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(programs)) {
		header := tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o755, Size: int64(len(programs[path]))}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(programs[path]); err != nil {
			return nil, err
		}
	}
	if withTemporary {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
