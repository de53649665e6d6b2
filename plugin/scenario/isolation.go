package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
)

// isolation contains the flags that limit what a program started by `scenario run` may access.
type isolation struct {
	off   bool
	dir   string
	env   []string
	hosts []string

	parsed sandbox.Hosts
}

func (i *isolation) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&i.dir, "agent-dir", "",
		"Directory with the agent's files; used as the agent's read-only working directory")
	flags.StringSliceVar(&i.env, "agent-env", nil, "Environment variables to pass to the agent, such as API keys")
	flags.StringSliceVar(&i.hosts, "agent-host", nil,
		"Hosts that the agent may connect to, as HOST or HOST:PORT, through the proxy in HTTPS_PROXY")
	flags.BoolVar(&i.off, "no-isolation", false,
		"Run the agent as your own user, with access to your files, credentials and network")
}

// complete checks the flags, and whether this machine can isolate a program.
func (i *isolation) complete(agent string, kubeconfigs []string) error {
	var err error
	if i.off {
		if i.dir != "" || len(i.env)+len(i.hosts) > 0 {
			return errors.New("--agent-dir, --agent-env and --agent-host require isolation: remove --no-isolation")
		}
		return nil
	}
	if i.parsed, err = sandbox.ParseHosts(i.hosts); err != nil {
		return fmt.Errorf("--agent-host: %w", err)
	}
	for _, name := range i.env {
		if _, is := os.LookupEnv(name); !is {
			return fmt.Errorf("--agent-env: the environment variable %q is not set", name)
		}
	}
	if i.dir != "" {
		if err := i.directory(); err != nil {
			return err
		}
		if err := sandbox.CheckRead(i.dir, kubeconfigs); err != nil {
			return fmt.Errorf("--agent-dir: %w", err)
		}
	}
	if err := i.sees(agent); err != nil {
		return err
	}
	trial, err := sandbox.New(0)
	if err != nil {
		return fmt.Errorf("%w; use a Linux machine that permits user namespaces, or run this command as root; "+
			"if the agent isolates itself, add --no-isolation", err)
	}
	return trial.Close()
}

// directory resolves --agent-dir. It rejects the home directory and its parents, which contain more than an agent's
// files.
func (i *isolation) directory() error {
	dir, err := filepath.Abs(i.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return fmt.Errorf("--agent-dir: %w", err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return errors.Join(fmt.Errorf("--agent-dir: %s is not a directory", dir), err)
	}
	home, err := os.UserHomeDir()
	if err == nil {
		home, err = filepath.EvalSymlinks(home)
	}
	if within, relErr := filepath.Rel(dir, home); err == nil && relErr == nil && filepath.IsLocal(within) {
		return fmt.Errorf("--agent-dir: %s contains your home directory: specify a directory with only the agent's files",
			dir)
	}
	i.dir = dir
	return nil
}

// sees returns an error if the command begins with the path of a program that the agent cannot access.
func (i *isolation) sees(command string) error {
	program, _, _ := strings.Cut(strings.TrimSpace(command), " ")
	if !strings.Contains(program, "/") || strings.ContainsAny(program, "$`'\"\\*?~;&|<>()\n") {
		return nil // found in PATH, or known only to the shell
	}
	path := program
	switch {
	case filepath.IsAbs(program):
	case i.dir == "":
		return fmt.Errorf("the agent cannot see %s: specify the directory that contains it with --agent-dir", program)
	default:
		path = filepath.Join(i.dir, program)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("--agent: %w", err)
	}
	if within, err := filepath.Rel(i.dir, path); i.dir != "" && err == nil && filepath.IsLocal(within) {
		return nil
	}
	if !slices.ContainsFunc(sandbox.System, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
		return fmt.Errorf("the agent cannot see %s: specify the directory that contains it with --agent-dir", program)
	}
	return nil
}

// isolation returns the settings from the flags. kubeconfigs are the trainer's kubeconfig files.
func (i *isolation) isolation(kubeconfigs []string) exercise.Isolation {
	return exercise.Isolation{Off: i.off, Dir: i.dir, Env: i.env, Hosts: i.parsed, Hidden: kubeconfigs}
}
