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

// saving holds the flags of `image save`.
type saving struct {
	streams                genericiooptions.IOStreams
	file, format, platform string
	force                  bool
	content                content
}

func newSaveCommand(streams genericiooptions.IOStreams) *cobra.Command {
	s := &saving{streams: streams, format: "oci"}
	cmd := &cobra.Command{
		Use:   "save REPOSITORY[:TAG] -f FILE",
		Short: "Save the image to a file, for nodes that cannot reach a registry",
		Long: `Build the image and save it to a file, for nodes without access to a registry. The command prints the value to use for --image once the
file is loaded.

An OCI archive contains all platforms and works with ctr images import, kind load image-archive, podman load and skopeo. A docker archive contains
one platform and no digest, so the image must keep its default tag.`,
		Example: `  # Load the image into the nodes of a kind cluster
  kubectl gpu-fault image save gpu-fault-node -f image.tar && kind load image-archive image.tar

  # Load the image on a node with containerd
  kubectl gpu-fault image save gpu-fault-node -f - | ssh node-1 sudo ctr -n k8s.io images import -

  # Save the image for docker load
  kubectl gpu-fault image save gpu-fault-node -f image.tar --format docker --platform linux/amd64`,
		Args: usage.ExactArgs(1, "one name", "kubectl gpu-fault image save gpu-fault-node -f image.tar"),
		RunE: func(_ *cobra.Command, args []string) error { return s.run(args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&s.file, "file", "f", "", "File to write, or - for standard output")
	flags.StringVar(&s.format, "format", s.format, "Format of the archive: oci or docker")
	flags.StringVar(&s.platform, "platform", "", "Platform of a docker archive, such as linux/amd64")
	s.content.addFlag(flags)
	flags.BoolVar(&s.force, "force", false, "Overwrite an existing file")
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
	img, err := s.content.build()
	if err != nil {
		return err
	}
	tag, err := img.ParseTag(text, false)
	if err != nil {
		return err
	}
	if err := s.content.checkTag(img, tag.TagStr()); err != nil {
		return err
	}
	write := func(w io.Writer) error { return img.WriteOCI(w, tag) }
	use := image.CRIName(tag)
	switch {
	case s.format == "docker" && tag.TagStr() != img.Tag:
		return fmt.Errorf("a docker archive has no digest, so the plugin would not recognize the image by tag %s: omit the tag to use %s",
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

// check validates the flags before the image is built.
func (s *saving) check() error {
	switch {
	case s.file == "":
		return errors.New("no file: specify -f FILE, or -f - for standard output")
	case s.format != "oci" && s.format != "docker":
		return fmt.Errorf("invalid value %q for --format: supported values: oci, docker", s.format)
	case s.format == "docker" && s.platform == "":
		return errors.New("--format docker requires --platform linux/amd64 or linux/arm64")
	case s.format == "oci" && s.platform != "":
		return errors.New(
			"--platform requires --format docker: an OCI archive always contains all platforms",
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
		return fmt.Errorf("%s is a directory: specify a file in it", s.file)
	case err == nil && !s.force:
		return fmt.Errorf("%s already exists: pass --force to overwrite it, or specify another file", s.file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("save to %s: %w", s.file, err)
	}
	return nil
}

// replace writes to a temporary file and renames it, so that the file is never incomplete.
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

// say prints instructions for loading and using the image.
func (s *saving) say(tag name.Tag, use string) {
	printer.Talk(s.streams.ErrOut,
		"saved %s; load it on every node (ctr -n k8s.io images import FILE, kind load image-archive FILE), "+
			"then use --image %s", image.CRIName(tag), use)
}
