//go:build linux

package guard

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// LeaveCgroups moves this process from its pod's cgroups to the cgroups of PID 1, in every hierarchy. Otherwise, the
// process would be killed with the pod. LeaveCgroups returns an error if any cgroup still differs.
func LeaveCgroups(proc string) error {
	want, err := cgroupsOf(filepath.Join(proc, "1/cgroup"))
	if err != nil {
		return err
	}
	has, err := cgroupsOf(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return err
	}
	var failed []error
	for hierarchy, group := range want {
		if has[hierarchy] == group {
			continue
		}
		dir, ok := cgroupDir(string(raw), hierarchy, group)
		if !ok {
			failed = append(failed, fmt.Errorf("hierarchy %q is not mounted at a path where %s is "+
				"visible", hierarchy, group))
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			failed = append(failed, err)
		}
	}
	if has, err = cgroupsOf(filepath.Join(proc, "self/cgroup")); err != nil {
		return err
	}
	for hierarchy, group := range want {
		if has[hierarchy] != group {
			return errors.Join(append(failed,
				fmt.Errorf("the process is still in %s in hierarchy %q, but PID 1 is in %s", has[hierarchy], hierarchy, group))...)
		}
	}
	return nil
}

// cgroupsOf parses a /proc/PID/cgroup file. It returns the cgroup paths, keyed by the controllers of each path's
// hierarchy. The key is empty for cgroup v2.
func cgroupsOf(file string) (map[string]string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 {
			all[parts[1]] = parts[2]
		}
	}
	return all, nil
}

// cgroupDir returns the directory of a cgroup according to the content of /proc/self/mountinfo (see
// proc_pid_mountinfo(5)).
func cgroupDir(mountinfo, hierarchy, group string) (string, bool) {
	for line := range strings.Lines(mountinfo) {
		left, right, found := strings.Cut(strings.TrimSpace(line), " - ")
		mount, file := strings.Fields(left), strings.Fields(right)
		if !found || len(mount) < 5 || len(file) < 3 {
			continue
		}
		root, at := mount[3], mount[4]
		switch {
		case hierarchy == "" && file[0] != "cgroup2", hierarchy != "" && file[0] != "cgroup":
			continue
		case hierarchy != "" && !hasControllers(file[2], hierarchy):
			continue
		}
		if rest, ok := below(group, root); ok {
			return path.Join(at, rest), true
		}
	}
	return "", false
}

func hasControllers(options, hierarchy string) bool {
	for _, wanted := range strings.Split(hierarchy, ",") {
		found := false
		for _, option := range strings.Split(options, ",") {
			found = found || option == wanted
		}
		if !found {
			return false
		}
	}
	return true
}

func below(group, root string) (string, bool) {
	if root == "/" {
		return group, !strings.HasPrefix(group, "/..")
	}
	rest, found := strings.CutPrefix(group, root)
	return rest, found && (rest == "" || rest[0] == '/')
}
