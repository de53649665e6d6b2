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

// journald is a Journald while it is being filled in.
type journald api.Journald

// readJournald reads the configuration of journald, with the precedence rules of systemd.unit(5) and journald.conf(5).
func readJournald(root, proc fs.FS) api.Journald {
	j := journald{
		Running: slices.ContainsFunc(process.PIDs(proc), func(pid string) bool {
			return hostfs.Trimmed(proc, pid+"/comm") == "systemd-journal" // the kernel truncates names to 15 bytes
		}),
		// These are journald's defaults. Since systemd 257, distributions may set the default of Storage to persistent.
		// journald then creates /var/log/journal, which is checked below.
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

// journaldFiles returns the contents of the configuration files in the order in which journald reads them.
func journaldFiles(root fs.FS) []string {
	directories := []string{"etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"}
	var texts []string
	for _, dir := range directories { // the main file is the first one that exists
		raw, err := fs.ReadFile(root, dir+"/journald.conf")
		if err == nil {
			texts = append(texts, string(raw))
			break
		}
	}
	// Drop-ins are sorted by name, regardless of directory. If several have the same name, the one in the first
	// directory is used. An empty file or a link to /dev/null masks files with the same name.
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

// apply applies one configuration file. Like systemd, it ignores invalid values.
func (j *journald) apply(text string) {
	section := ""
	text = strings.ReplaceAll(text, "\\\n", " ") // a backslash continues a line
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

// applyCommandLine applies the relevant setting of the kernel command line, which overrides the files.
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

// setBoolean parses a value in the same way as systemd's parse_boolean.
func setBoolean(to *string, value string) {
	switch strings.ToLower(value) {
	case "1", "yes", "y", "true", "t", "on":
		*to = "yes"
	case "0", "no", "n", "false", "f", "off":
		*to = "no"
	}
}
