// Package completion completes node names, XIDs and run IDs, and sets kubectl up to ask for them.
package completion

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// linkName is what kubectl runs to complete `kubectl gpu-fault`; see KEP-2379. krew cannot install a second name for a
// plugin.
const linkName = "kubectl_complete-gpu_fault"

// NewCommand returns `completion`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var install bool
	cmd := &cobra.Command{
		Use:   "completion [bash|zsh|fish|powershell]",
		Short: "Set up shell completion",
		Long: `Set up shell completion.

With --install, a link named ` + linkName + ` is made beside this program; kubectl's own completion then asks it.
With a shell's name, a script is printed for those who call kubectl-gpu_fault without kubectl.`,
		Example: `  # Let kubectl complete this plugin
  kubectl gpu-fault completion --install

  # For this shell, where the program is called without kubectl
  source <(kubectl gpu-fault completion bash)`,
		Args: cobra.MatchAll(usage.MaxArgs(1, "one shell", "kubectl gpu-fault completion bash"),
			usage.Known("completion")),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if install {
				return installLink(streams)
			}
			if len(args) == 0 {
				return errors.New("give --install, or a shell: bash, zsh, fish or powershell")
			}
			root := cmd.Root()
			// The file that these scripts are for; as kubectl gpu-fault it is completed by kubectl
			root.Use = "kubectl-gpu_fault"
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(streams.Out, true)
			case "zsh":
				return root.GenZshCompletion(streams.Out)
			case "fish":
				return root.GenFishCompletion(streams.Out, true)
			default:
				return root.GenPowerShellCompletionWithDesc(streams.Out)
			}
		},
	}
	cmd.Flags().BoolVar(&install, "install", false, "Make the link that kubectl's completion looks for")
	return cmd
}

// installLink makes the link beside the name that the user's shell finds, which with krew is a link in krew's bin
// folder. It goes to that name, not to the file behind it: krew's next upgrade removes that one.
func installLink(streams genericiooptions.IOStreams) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's file: %w", err)
	}
	name := programName(runtime.GOOS)
	dir, err := pathFolder(program, name)
	if err != nil {
		return err
	}
	link := filepath.Join(dir, linkName+filepath.Ext(name))
	old, err := os.Readlink(link)
	switch {
	case err == nil && old == name:
		printer.Talk(streams.ErrOut, "%s is there already", link)
		return nil
	case err == nil:
		if err := os.Remove(link); err != nil {
			return fmt.Errorf("replace the link: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s exists and is not a link: remove it first", link)
	}
	if err := os.Symlink(name, link); err != nil {
		return fmt.Errorf("make the link: %w; a copy of %s by that name does as well, until the next upgrade", err,
			filepath.Join(dir, name))
	}
	printer.Talk(streams.ErrOut, "%s made; kubectl's completion now knows gpu-fault. "+
		"Remove this link before you uninstall the plugin: krew does not.", link)
	return nil
}

// programName returns what kubectl looks for on an operating system, as Go calls it.
func programName(goos string) string {
	if goos == "windows" {
		return "kubectl-gpu_fault.exe"
	}
	return "kubectl-gpu_fault"
}

// pathFolder returns the folder of PATH in which kubectl finds this program by its name.
func pathFolder(program, name string) (string, error) {
	want, err := os.Stat(program)
	if err != nil {
		return "", fmt.Errorf("find this program's file: %w", err)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		got, err := os.Stat(filepath.Join(dir, name))
		if err == nil && os.SameFile(got, want) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is in no folder of PATH, so that kubectl does not find it: put it into one, "+
		"or with krew add ~/.krew/bin ($KREW_ROOT/bin where that is set) to PATH; then try again", name)
}
