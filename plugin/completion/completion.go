// Package completion completes node names, XIDs and run IDs, and sets up shell completion.
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

// linkName is the command that kubectl runs to complete `kubectl gpu-fault`; see KEP-2379. krew cannot install it.
const linkName = "kubectl_complete-gpu_fault"

// NewCommand returns `completion`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var install bool
	cmd := &cobra.Command{
		Use:   "completion [bash|zsh|fish|powershell]",
		Short: "Set up shell completion",
		Long: `Set up shell completion.

With --install, the command creates a link named ` + linkName + ` next to the plugin. kubectl uses this link to complete the plugin's arguments.
With the name of a shell, it prints a completion script for running kubectl-gpu_fault without kubectl.`,
		Example: `  # Enable completion for kubectl gpu-fault
  kubectl gpu-fault completion --install

  # Enable completion for kubectl-gpu_fault, called without kubectl
  source <(kubectl gpu-fault completion bash)`,
		Args: cobra.MatchAll(usage.MaxArgs(1, "one shell", "kubectl gpu-fault completion bash"),
			usage.Known("completion")),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if install {
				return installLink(streams)
			}
			if len(args) == 0 {
				return errors.New("specify --install or a shell: bash, zsh, fish, powershell")
			}
			root := cmd.Root()
			// The scripts complete kubectl-gpu_fault. kubectl itself completes `kubectl gpu-fault`.
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
	cmd.Flags().BoolVar(&install, "install", false, "Create the link that kubectl's completion uses")
	return cmd
}

// installLink creates the link in the directory in PATH that contains the program (with krew, krew's bin directory).
// The link points to the program's path there, not to the file that this path resolves to, because krew removes that
// file on the next upgrade.
func installLink(streams genericiooptions.IOStreams) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the plugin's executable: %w", err)
	}
	name := programName(runtime.GOOS)
	dir, err := pathDir(program, name)
	if err != nil {
		return err
	}
	link := filepath.Join(dir, linkName+filepath.Ext(name))
	old, err := os.Readlink(link)
	switch {
	case err == nil && old == name:
		printer.Talk(streams.ErrOut, "%s already exists", link)
		return nil
	case err == nil:
		if err := os.Remove(link); err != nil {
			return fmt.Errorf("replace the link: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s exists and is not a link: remove it first", link)
	}
	if err := os.Symlink(name, link); err != nil {
		return fmt.Errorf("create the link: %w; alternatively, copy %s to that path after each upgrade", err,
			filepath.Join(dir, name))
	}
	printer.Talk(streams.ErrOut, "%s created; kubectl now completes gpu-fault. "+
		"Remove this link before you uninstall the plugin, because krew does not remove it.", link)
	return nil
}

// programName returns the plugin's file name on the operating system goos, which is a GOOS value.
func programName(goos string) string {
	if goos == "windows" {
		return "kubectl-gpu_fault.exe"
	}
	return "kubectl-gpu_fault"
}

// pathDir returns the directory in PATH in which kubectl finds this program.
func pathDir(program, name string) (string, error) {
	want, err := os.Stat(program)
	if err != nil {
		return "", fmt.Errorf("find the plugin's executable: %w", err)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		got, err := os.Stat(filepath.Join(dir, name))
		if err == nil && os.SameFile(got, want) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is not in a directory in PATH, so kubectl cannot find it: move it to such a directory, "+
		"or, with krew, add ~/.krew/bin ($KREW_ROOT/bin if set) to PATH; then try again", name)
}
