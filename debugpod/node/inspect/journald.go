package inspect

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// journald is a Journald in the making.
type journald api.Journald

// readJournald finds how journald is configured, by the precedence of systemd.unit(5) and journald.conf(5).
func readJournald(root, proc fs.FS) api.Journald {
	j := journald{
		Running: slices.ContainsFunc(process.PIDs(proc), func(pid string) bool {
			return hostfs.Trimmed(proc, pid+"/comm") == "systemd-journal" // the kernel keeps 15 bytes
		}),
		// What journald does when nothing is configured. Since systemd 257 a distribution may have another default for
		// Storage, persistent; it shows below, as /var/log/journal is then made.
		ReadKMsg: "yes", ForwardKMsg: "no", Storage: "auto",
	}
	for _, text := range journaldFiles(root) {
		j.apply(text)
	}
	j.applyCommandLine(hostfs.Trimmed(proc, "cmdline"))
	_, err := fs.Stat(root, "var/log/journal")
	j.IsPersistent = j.Storage == "persistent" || j.Storage == "auto" && err == nil
	return api.Journald(j)
}

// journaldFiles returns the configuration files' texts in the order in which they are read.
func journaldFiles(root fs.FS) []string {
	directories := []string{"etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"}
	var texts []string
	for _, dir := range directories { // the main file: the first that is there
		raw, err := fs.ReadFile(root, dir+"/journald.conf")
		if err == nil {
			texts = append(texts, string(raw))
			break
		}
	}
	// Drop-ins: sorted by name wherever they lie; of equal names, the one in the first directory. An empty file, or a
	// link to /dev/null, so masks those of its name.
	chosen := map[string]string{}
	for _, dir := range directories {
		entries, err := fs.ReadDir(root, dir+"/journald.conf.d")
		if err != nil {
			continue
		}
		for _, e := range entries {
			name := e.Name()
			if _, taken := chosen[name]; !taken && path.Ext(name) == ".conf" {
				chosen[name] = dir + "/journald.conf.d/" + name
			}
		}
	}
	names := make([]string, 0, len(chosen))
	for name := range chosen {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if raw, err := fs.ReadFile(root, chosen[name]); err == nil || errors.Is(err, fs.ErrNotExist) {
			texts = append(texts, string(raw))
		}
	}
	return texts
}

// apply reads one configuration file. As in systemd, a value that is not understood changes nothing.
func (j *journald) apply(text string) {
	section := ""
	text = strings.ReplaceAll(text, "\\\n", " ") // a line goes on after a backslash
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			section = line
			continue
		}
		key, value, found := strings.Cut(line, "=")
		if !found || section != "[Journal]" {
			continue
		}
		j.set(strings.TrimSpace(key), strings.TrimSpace(value))
	}
}

func (j *journald) set(key, value string) {
	switch key {
	case "ReadKMsg":
		setBoolean(&j.ReadKMsg, value)
	case "ForwardToKMsg":
		setBoolean(&j.ForwardKMsg, value)
	case "Storage":
		if slices.Contains([]string{"volatile", "persistent", "auto", "none"}, value) {
			j.Storage = value
		}
	}
}

// applyCommandLine reads the one of our settings that the kernel's command line can have; it overrides the files.
func (j *journald) applyCommandLine(line string) {
	for word := range strings.FieldsSeq(line) {
		key, value, found := strings.Cut(word, "=")
		if strings.ReplaceAll(key, "-", "_") != "systemd.journald.forward_to_kmsg" {
			continue
		}
		if !found {
			value = "yes"
		}
		setBoolean(&j.ForwardKMsg, value)
	}
}

// setBoolean follows systemd's parse_boolean.
func setBoolean(to *string, value string) {
	switch strings.ToLower(value) {
	case "1", "yes", "y", "true", "t", "on":
		*to = "yes"
	case "0", "no", "n", "false", "f", "off":
		*to = "no"
	}
}
