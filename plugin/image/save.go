package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// saving is the flags of `image save`.
type saving struct {
	streams                genericiooptions.IOStreams
	file, format, platform string
	force                  bool
}

func newSaveCommand(streams genericiooptions.IOStreams) *cobra.Command {
	s := &saving{streams: streams, format: "oci"}
	cmd := &cobra.Command{
		Use:   "save REPOSITORY[:TAG] -f FILE",
		Short: "Save the image to a file, to be loaded on nodes without a registry",
		Long: `Make the image and save it to a file, for nodes that reach no registry. Printed is what --image takes once the file is loaded.

An OCI archive has all platforms, and is taken by ctr images import, kind load image-archive, podman load and skopeo. A docker
archive has one platform, and keeps no digest, so that it must have the image's own tag.`,
		Example: `  # Load it into the nodes of a kind cluster
  kubectl gpu-fault image save gpu-fault-node -f image.tar && kind load image-archive image.tar

  # Load it on a node that has containerd
  kubectl gpu-fault image save gpu-fault-node -f - | ssh node-1 sudo ctr -n k8s.io images import -

  # For docker load
  kubectl gpu-fault image save gpu-fault-node -f image.tar --format docker --platform linux/amd64`,
		Args: usage.ExactArgs(1, "one name", "kubectl gpu-fault image save gpu-fault-node -f image.tar"),
		RunE: func(_ *cobra.Command, args []string) error { return s.run(args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&s.file, "file", "f", "", "File to write, or - for standard output")
	flags.StringVar(&s.format, "format", s.format, "Format of the archive: oci or docker")
	flags.StringVar(&s.platform, "platform", "", "Platform of a docker archive, such as linux/amd64")
	flags.BoolVar(&s.force, "force", false, "Replace the file if it is there")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"oci", "docker"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("platform",
		cobra.FixedCompletions([]string{"linux/amd64", "linux/arm64"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (s *saving) run(text string) error {
	if err := s.check(); err != nil {
		return err
	}
	img, err := newImage()
	if err != nil {
		return err
	}
	tag, err := img.ParseTag(text, false)
	if err != nil {
		return err
	}
	write := func(w io.Writer) error { return img.WriteOCI(w, tag) }
	use := image.CRIName(tag)
	switch {
	case s.format == "docker" && tag.TagStr() != img.Tag:
		return fmt.Errorf("a docker archive keeps no digest, so that the plugin would not know %s as its own: leave the tag off, for %s",
			tag.TagStr(), img.Tag)
	case s.format == "docker":
		p, err := img.Platform(s.platform)
		if err != nil {
			return fmt.Errorf("--platform: %w", err)
		}
		write = func(w io.Writer) error { return p.WriteDocker(w, tag) }
	case tag.TagStr() != img.Tag:
		use = image.CRIName(tag.Digest(img.Digest.String()))
	}
	if s.file == "-" {
		if err := buffered(printer.Raw(s.streams.Out), write); err != nil {
			return err
		}
		s.say(tag, use)
		return nil
	}
	if err := s.replace(write); err != nil {
		return err
	}
	s.say(tag, use)
	_, err = fmt.Fprintln(s.streams.Out, use)
	return err
}

// check refuses what cannot be, before anything is made.
func (s *saving) check() error {
	switch {
	case s.file == "":
		return errors.New("no file: specify -f FILE, or -f - for standard output")
	case s.format != "oci" && s.format != "docker":
		return fmt.Errorf("--format=%s: choose oci or docker", s.format)
	case s.format == "docker" && s.platform == "":
		return errors.New("a docker archive has one platform: say which, with --platform linux/amd64 or linux/arm64")
	case s.format == "oci" && s.platform != "":
		return errors.New(
			"an OCI archive has all platforms, so that its digest stays the same: leave --platform off, or choose --format docker",
		)
	}
	if s.file == "-" {
		if out, is := printer.Raw(s.streams.Out).(*os.File); is && term.IsTerminal(int(out.Fd())) {
			return errors.New(
				"standard output is a terminal, and the archive is binary: redirect standard output, or specify -f FILE",
			)
		}
		return nil
	}
	info, err := os.Stat(s.file)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a folder: name a file in it", s.file)
	case err == nil && !s.force:
		return fmt.Errorf("%s exists: give --force to replace it, or choose another", s.file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("save to %s: %w", s.file, err)
	}
	return nil
}

// replace writes beside the file first: a half archive never has its name.
func (s *saving) replace(write func(io.Writer) error) (err error) {
	part, err := os.CreateTemp(filepath.Dir(s.file), ".gpu-fault-image-*")
	if err != nil {
		return fmt.Errorf("save to %s: %w", s.file, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	err = errors.Join(buffered(part, write), part.Chmod(0o644), part.Close())
	if err != nil {
		return fmt.Errorf("save to %s: %w", s.file, err)
	}
	return os.Rename(part.Name(), s.file)
}

func buffered(w io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<20)
	return errors.Join(write(b), b.Flush())
}

// say tells what to do with it.
func (s *saving) say(tag name.Tag, use string) {
	printer.Talk(s.streams.ErrOut,
		"saved %s; load it on every node (ctr -n k8s.io images import FILE, kind load image-archive FILE), "+
			"then use --image %s", image.CRIName(tag), use)
}
