package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The annotations for the name of an image in an archive: containerd's annotation contains the full name (see
// pkg/images/annotations.go in containerd), and the OCI annotation contains the tag.
const (
	annotationContainerd = "io.containerd.image.name"
	annotationOCI        = "org.opencontainers.image.ref.name"
)

// WriteOCI writes an archive for all platforms, as accepted by `ctr images import`, `kind load image-archive`, skopeo
// and podman. The archive names the image by tag and by digest, because a pod may use either.
func (i *Image) WriteOCI(w io.Writer, tag name.Tag) error {
	dir, err := os.MkdirTemp("", "gpu-fault-image-")
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := i.WriteLayout(dir, CRIName(tag), CRIName(tag.Digest(i.Digest.String()))); err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		short, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		// Omit times and owners, so that the same image always produces the same archive.
		header := tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(short), Mode: 0o644, Size: int64(len(data))}
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return archive.Close()
}

// WriteLayout writes an OCI layout with the given image names to a directory. names may be empty.
func (i *Image) WriteLayout(dir string, names ...string) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the image's layout: %w", err)
	}
	var options [][]layout.Option
	for _, n := range names {
		short := n[strings.LastIndexAny(n, ":@")+1:]
		options = append(options,
			[]layout.Option{layout.WithAnnotations(map[string]string{annotationContainerd: n, annotationOCI: short})})
	}
	if len(names) == 0 {
		options = append(options, nil)
	}
	for _, o := range options {
		if err := path.AppendIndex(i.Index, o...); err != nil {
			return fmt.Errorf("write the image's layout: %w", err)
		}
	}
	return nil
}

// WriteDocker writes an archive for one platform, as accepted by `docker load`. The archive contains no digest, so the
// image is identified only by its tag.
func (p Platform) WriteDocker(w io.Writer, tag name.Tag) error {
	if err := tarball.Write(tag, p.Image, w); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// Platform returns the platform with the given name.
func (i *Image) Platform(name string) (Platform, error) {
	var all []string
	for _, p := range i.Platforms {
		if p.Name == name {
			return p, nil
		}
		all = append(all, p.Name)
	}
	return Platform{}, fmt.Errorf("invalid platform %q: supported values: %s", name, strings.Join(all, ", "))
}

// CRIName formats a reference in the form used by container runtimes, in which Docker's registry is docker.io.
func CRIName(ref name.Reference) string {
	full := ref.Name()
	if rest, is := strings.CutPrefix(full, name.DefaultRegistry+"/"); is {
		return "docker.io/" + rest
	}
	return full
}
