package image

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
)

// content is the value of --with-plugin, which determines the contents of the image.
type content struct{ plugin string }

// thisProgram is the value of --with-plugin if no file is specified.
const thisProgram = "this"

func (c *content) addFlag(flags *pflag.FlagSet) {
	flags.StringVar(&c.plugin, "with-plugin", "",
		"Also include the plugin, for --in-cluster: this executable if it is for Linux, otherwise FILE from the "+
			"Linux archive of a release")
	flags.Lookup("with-plugin").NoOptDefVal = thisProgram
}

// build builds the image.
func (c *content) build() (*image.Image, error) {
	architectures := helper.Architectures()
	if len(architectures) == 0 { // For's error describes what to do
		_, err := helper.For("amd64")
		return nil, err
	}
	if c.plugin == "" {
		return image.New(helper.For, architectures)
	}
	file, err := c.file(runtime.GOOS)
	if err != nil {
		return nil, err
	}
	program, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("--with-plugin: %w", err)
	}
	plugin, err := image.ParsePlugin(program)
	if err != nil {
		return nil, fmt.Errorf("--with-plugin: %s is %w", file, err)
	}
	return image.NewWithPlugin(helper.For, architectures, plugin)
}

// file returns the path of the plugin to include. goos is the client's operating system.
func (c *content) file(goos string) (string, error) {
	if c.plugin != thisProgram {
		return c.plugin, nil
	}
	if goos != "linux" {
		return "", fmt.Errorf("this program is for %s: specify --with-plugin=FILE with the kubectl-gpu_fault "+
			"executable from the Linux archive of the same release", goos)
	}
	return os.Executable()
}

// checkTag returns an error if the image would not be recognized by its tag.
func (c *content) checkTag(img *image.Image, tag string) error {
	if c.plugin == "" || tag == img.Tag {
		return nil
	}
	return fmt.Errorf("with --with-plugin, the image is recognized only by its tag: omit :%s to use :%s", tag, img.Tag)
}

// mostBytes is a size limit that is far larger than any program of this tool.
const mostBytes = 256 << 20

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, mostBytes+1))
	if err == nil && len(data) > mostBytes {
		err = fmt.Errorf("%s is larger than %d MiB", path, mostBytes>>20)
	}
	return data, err
}
