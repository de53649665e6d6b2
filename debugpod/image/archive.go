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

// Annotations that say how an image in an archive is called: containerd's (pkg/images/annotations.go there), which
// takes the whole name, and OCI's, which is the tag.
const (
	annotationContainerd = "io.containerd.image.name"
	annotationOCI        = "org.opencontainers.image.ref.name"
)

// WriteOCI writes an archive for all platforms, as `ctr images import`, `kind load image-archive`, skopeo and podman
// take it. The image is in it under its tag, and under its digest, as a pod may ask for it by either.
func (i *Image) WriteOCI(w io.Writer, tag name.Tag) error {
	dir, err := os.MkdirTemp("", "gpu-fault-image-")
	if err != nil {
		return fmt.Errorf("make a temporary folder: %w", err)
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
		// No times, no owners: the same image is the same archive.
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

// WriteLayout writes an OCI layout into a folder, in which the image has these names; without names it has none.
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

// WriteDocker writes an archive of one platform as `docker load` takes it. It keeps no digest: the image is known by
// its tag only.
func (p Platform) WriteDocker(w io.Writer, tag name.Tag) error {
	if err := tarball.Write(tag, p.Image, w); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// Platform returns the one of that name.
func (i *Image) Platform(name string) (Platform, error) {
	var all []string
	for _, p := range i.Platforms {
		if p.Name == name {
			return p, nil
		}
		all = append(all, p.Name)
	}
	return Platform{}, fmt.Errorf("the image is not made for platform %q; there are: %s", name, strings.Join(all, ", "))
}

// CRIName returns a reference as container runtimes store it: they call Docker's registry docker.io.
func CRIName(ref name.Reference) string {
	full := ref.Name()
	if rest, is := strings.CutPrefix(full, name.DefaultRegistry+"/"); is {
		return "docker.io/" + rest
	}
	return full
}
