package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/mod/semver"
)

// trial contains the suffixes of versions that are not for users.
var trial = []string{"-test", "-snapshot"}

func isTrial(version string) bool {
	for _, suffix := range trial {
		if strings.HasSuffix(version, suffix) {
			return true
		}
	}
	return false
}

// checkVersion returns an error if krew does not accept the version, which must consist of a v and three numbers, or if
// the version is not valid in a file name.
func checkVersion(version string) error {
	const example = "specify a version such as v1.2.3, v1.2.3-rc.1 or v0.0.0-test: make release VERSION=v1.2.3"
	switch {
	case version == "":
		return errors.New("no version specified: " + example)
	case semver.IsValid("v" + version):
		return fmt.Errorf("version %s must begin with v: %s", version, example)
	case !semver.IsValid(version) || semver.Canonical(version) != version:
		return fmt.Errorf("%q is not a semantic version with three numbers and without build metadata: %s", version,
			example)
	}
	return nil
}

// checkRepository returns an error unless the release is built from a clean commit, so that it can be reproduced. Trial
// versions may be built from any state.
func checkRepository(ctx context.Context, version string) error {
	if isTrial(version) {
		return nil
	}
	changed, err := git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("these files are not committed, so %s could not be reproduced:\n%s\n"+
			"commit or stash them, or use a trial version such as %s-test", version, changed, version)
	}
	head, err := git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	tagged, err := git(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+version+"^{commit}")
	if err == nil && tagged != head {
		return fmt.Errorf(
			"tag %s is on commit %.12s, but HEAD is %.12s: check out the tag, or use the next version", version,
			tagged, head,
		)
	}
	return nil
}

func git(ctx context.Context, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, "git", args...))
}

// output runs the command and returns its standard output without trailing white space. An error includes the command's
// standard error.
func output(cmd *exec.Cmd) (string, error) {
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(said.String()))
	}
	return strings.TrimRight(string(out), "\n"), nil
}
