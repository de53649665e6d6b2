package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	program     = "kubectl-gpu_fault"
	version     = "v0.0.0-test" // what `make test-krew` released into dist
	nextVersion = "v0.0.1-test"
	krewVersion = "v0.5.0"
	// completionLink is what kubectl runs to complete the plugin's command line.
	completionLink = "kubectl_complete-gpu_fault"
	dist           = "dist"
)

// world is all that the steps share: a folder of its own, with a home, a krew root and a PATH on which there is nothing
// but kubectl, krew and git.
type world struct {
	ctx   context.Context
	repo  string // of this project
	dir   string // removed at the end
	page  *page
	next  string // folder with the archive of nextVersion, for this platform
	sizes strings.Builder
	// unpacked are the files of each platform's archive, by its name.
	unpacked map[string][]file
	commit   string
	date     string
}

func newWorld(ctx context.Context) (*world, error) {
	repo, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dist, "krew-manifest.yaml")); err != nil {
		return nil, fmt.Errorf("there is no release in %s: make test-krew builds one, then runs this (%w)", dist, err)
	}
	w := &world{ctx: ctx, repo: repo, unpacked: map[string][]file{}}
	if w.dir, err = os.MkdirTemp("", "test-krew"); err != nil {
		return nil, err
	}
	if err := w.prepare(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) prepare() error {
	var err error
	if w.commit, err = w.command("git", "rev-parse", "--short=12", "HEAD"); err != nil {
		return err
	}
	if w.date, err = w.command("git", "log", "-1", "--format=%cI"); err != nil {
		return err
	}
	for _, folder := range []string{w.home(), w.tools(), w.index()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	// krew of a release knows its version; from the module it does not.
	if _, err := w.command("go", "build", "-modfile=hack/tools/krew/go.mod",
		"-ldflags=-X sigs.k8s.io/krew/internal/version.gitTag="+krewVersion, "-o", "bin/krew/",
		"sigs.k8s.io/krew/cmd/krew", "sigs.k8s.io/krew/cmd/validate-krew-manifest"); err != nil {
		return err
	}
	if w.page, err = newPage(w.dir); err != nil {
		return err
	}
	w.page.publish(version, filepath.Join(w.repo, dist))
	return w.link()
}

// link puts the tools on the PATH. kubectl is a script, as validate-krew-manifest hands nothing of its environment but
// the PATH on.
func (w *world) link() error {
	git, err := exec.LookPath("git")
	if err != nil {
		return errors.New("git is not installed")
	}
	for name, target := range map[string]string{
		"kubectl-krew": filepath.Join(w.repo, "bin/krew/krew"), "git": git,
	} {
		if err := os.Symlink(target, filepath.Join(w.tools(), name)); err != nil {
			return err
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nexport KREW_NO_UPGRADE_CHECK=1 %s\nexec %s \"$@\"\n",
		strings.Join(w.page.environment(), " "), filepath.Join(w.repo, "bin/kubectl"))
	return os.WriteFile(filepath.Join(w.tools(), "kubectl"), []byte(script), 0o755)
}

func (w *world) close() {
	if w.page != nil {
		w.page.close()
	}
	os.RemoveAll(w.dir)
}

func (w *world) home() string  { return filepath.Join(w.dir, "home") }
func (w *world) tools() string { return filepath.Join(w.dir, "tools") }
func (w *world) index() string { return filepath.Join(w.dir, "index") }
func (w *world) root() string  { return filepath.Join(w.home(), ".krew") }

// bin returns a file of krew's folder on the PATH.
func (w *world) bin(name string) string { return filepath.Join(w.root(), "bin", name) }

// manifest returns that of the release, as it would be sent to krew's index.
func (w *world) manifest() (string, error) {
	raw, err := os.ReadFile(filepath.Join(dist, "krew-manifest.yaml"))
	return string(raw), err
}

// write writes a file of the world's folder and returns its path.
func (w *world) write(name, content string) (string, error) {
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(content), 0o644)
}

// archive returns the archive of this machine's platform.
func archive() string {
	return filepath.Join(dist, strings.Join([]string{program, version, runtime.GOOS, runtime.GOARCH}, "_")+".tar.gz")
}

// release builds one for this machine's platform alone from the tree in a folder.
func (w *world) release(tree, version, flags string) error {
	_, err := w.command("make", "--no-print-directory", "-C", tree, "release", "VERSION="+version,
		"RELEASE_FLAGS=-platforms "+runtime.GOOS+"/"+runtime.GOARCH+" "+flags)
	return err
}

// command runs a program in the repository, with this process's environment.
func (w *world) command(name string, args ...string) (string, error) {
	return w.start(exec.CommandContext(w.ctx, name, args...))
}

// user runs a program as somebody would who has just krew and kubectl; the environment may add to that, or replace
// parts.
func (w *world) user(environment []string, name string, args ...string) (string, error) {
	path, err := exec.LookPath(filepath.Join(w.tools(), name))
	if err != nil {
		path = name
	}
	cmd := exec.CommandContext(w.ctx, path, args...)
	cmd.Env = append([]string{
		"HOME=" + w.home(), "PATH=" + w.tools() + ":" + w.bin(""), "KREW_DEFAULT_INDEX_URI=file://" + w.index(),
		"GIT_CONFIG_NOSYSTEM=1", "TMPDIR=" + w.dir,
	}, w.page.environment()...)
	cmd.Env = append(cmd.Env, environment...)
	return w.start(cmd)
}

// kubectl runs `kubectl ARGS...` as a user.
func (w *world) kubectl(args ...string) (string, error) { return w.user(nil, "kubectl", args...) }

// start returns what the command wrote to both streams. Its standard input is empty: krew reads plugins' names from one
// that is not.
func (w *world) start(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return said, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said)
	}
	return said, nil
}

// has returns an error unless the text has all of the words.
func has(text string, words ...string) error {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return fmt.Errorf("it does not say %q but:\n%s", word, text)
		}
	}
	return nil
}

// refused returns an error unless the command failed with a message that has the words.
func refused(said string, err error, words ...string) error {
	if err == nil {
		return fmt.Errorf("it was not refused:\n%s", said)
	}
	return has(said, words...)
}
