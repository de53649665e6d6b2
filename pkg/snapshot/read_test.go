package snapshot

import (
	"encoding/json"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func tree(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, content := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fsys
}

// A folder that somebody filled by hand, with kubectl and dmesg, is read as a bundle is.
func TestReadTakesWhatKubectlPrints(t *testing.T) {
	t.Parallel()
	s, err := Read(tree(map[string]string{
		"api/nodes.yaml": "# by hand\n---\nkind: Node\nmetadata: {name: b}\n---\nkind: Node\nmetadata: {name: a}\n",
		"api/pods.json": `{"kind":"List","apiVersion":"v1","items":[{"kind":"Pod","metadata":{"namespace":"x","name":"two"}},` +
			`{"kind":"Pod","metadata":{"namespace":"x","name":"one"}}]}`,
		"api/pods.yaml":            "kind: Pod\nmetadata: {namespace: x, name: one, uid: another}\n",
		"api/clusterpolicies.yaml": "metadata: {name: cp}\nspec: {count: 3}\n",
		"api/crds.json":            `["b","a","b"]`,
		"helm.json":                `[{"name":"gpu-operator","namespace":"g","values":{"n":3}}]`,
		"logs/g/p/c.log":           "now\n",
		"logs/g/p/c.previous.log":  "before\n",
		"nodes/a/runtime.json":     `{"instance":{"configPath":"/etc/c.toml","files":[{"path":"/etc/c.toml"},{"path":"/etc/empty"},{"path":"/gone"}]}}`,
		"nodes/a/files/etc/c.toml": "version = 2\n",
		"nodes/a/files/etc/empty":  "",
		"nodes/a/probe.json":       `{"time":"2026-01-01T00:00:10Z","uptime":10000000000}`,
		"nodes/a/kernel.log":       "[    2.500000] NVRM: hello\n",
		"nodes/a/journal/k.log":    "line\n",
		"nodes/a/nvidia-smi.xml":   "<x/>",
		"notes.txt":                "left alone",
		"api/unknown.json":         "{",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 2 || s.Nodes[0].Name != "a" || s.Nodes[0].Kind != "" {
		t.Errorf("nodes are not sorted, or keep their kind: %+v", s.Nodes)
	}
	if len(s.Pods) != 2 || s.Pods[0].Name != "one" || s.Pods[0].UID != "" {
		t.Errorf("of two pods with one name the first must stay: %+v", s.Pods)
	}
	if n := s.ClusterPolicies[0].Object["spec"].(map[string]any)["count"]; n != int64(3) {
		t.Errorf("a whole number became %T", n)
	}
	if n := s.HelmReleases[0].Values["n"]; n != int64(3) {
		t.Errorf("a whole number in Helm's values became %T", n)
	}
	if len(s.CRDs) != 2 || s.CRDs[0] != "a" {
		t.Errorf("CRDs are %q", s.CRDs)
	}
	if len(s.Logs) != 2 || s.Logs[0].Previous || !s.Logs[1].Previous || s.Logs[1].Container != "c" {
		t.Errorf("logs are %+v", s.Logs)
	}
	host := s.Hosts["a"]
	files := host.Runtime.Instance.Files
	if string(files[0].Data) != "version = 2\n" || files[1].Data == nil || files[2].Data != nil {
		t.Errorf("the runtime's files did not get their contents: %+v", files)
	}
	if want := time.Date(2026, 1, 1, 0, 0, 2, 5e8, time.UTC); len(host.KernelLog) != 1 ||
		!host.KernelLog[0].Time.Equal(want) {
		t.Errorf("the kernel log is %+v, wanted its time to be %s", host.KernelLog, want)
	}
	if host.Journals["k"] != "line\n" || host.SMI != "<x/>" {
		t.Errorf("journal or nvidia-smi are missing: %+v", host)
	}
}

// Nothing at all is a snapshot of nothing.
func TestReadOfNothing(t *testing.T) {
	t.Parallel()
	if s, err := Read(fstest.MapFS{}); err != nil || s == nil {
		t.Fatal(err)
	}
}

// Whoever edits a snapshot, or sends a damaged one, must learn which file to mend.
func TestReadNamesTheFileAtFault(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, content, want string }{
		"garbage":      {"api/pods.json", "{", `"api/pods.json" cannot be parsed`},
		"an item":      {"api/pods.json", `{"items":[{},{"metadata":3}]}`, "items[1]"},
		"another kind": {"api/pods.json", `{"kind":"Node"}`, `found kind "Node", expected Pod`},
		"no list":      {"api/pods.json", `{"items":{}}`, "items is not a list"},
		"YAML":         {"api/pods.yaml", "a: [", `"api/pods.yaml" cannot be parsed`},
		"a node":       {"nodes/a/probe.json", "[]", `"nodes/a/probe.json" cannot be parsed`},
		"two metas":    {"snapshot.json", "{}{}", "more than one document"},
		"newer": {
			"snapshot.json", `{"apiVersion":"gpufault.dev/v2","kind":"Snapshot"}`, "use a newer version of this tool",
		},
		"somebody else's": {
			"snapshot.json", `{"apiVersion":"example.com/v1","kind":"Snapshot"}`, "unsupported apiVersion",
		},
		"another kind's": {"snapshot.json", `{"kind":"Run"}`, `unsupported kind "Run"`},
		"many small things": {
			"api/pods.json", `{"items":[` + strings.Repeat("{},", maxObjects) + `{}]}`, "more than 4000000 objects",
		},
		"many small lists": {
			"api/clusterpolicies.json",
			`{"metadata":{"name":"x"},"spec":[` + strings.Repeat("[],", maxObjects) + `[]]}`,
			"more than 4000000 objects",
		},
		"many small values": {
			"helm.json", `[{"values":{"x":[` + strings.Repeat("0,", maxValues) + `0,0]}}]`, "more than 16000000 values",
		},
		"a kernel log":  {"nodes/a/kernel.log", strings.Repeat("a\n", maxText/2+1), "larger than 4 MiB"},
		"a log":         {"logs/x/y/c.log", strings.Repeat("a", maxText+1), "larger than 4 MiB"},
		"a journal":     {"nodes/a/journal/k.log", strings.Repeat("a", maxText+1), "larger than 4 MiB"},
		"a node's file": {"nodes/a/files/etc/c.json", strings.Repeat("a", maxText+1), "larger than 4 MiB"},
		"nvidia-smi":    {"nodes/a/nvidia-smi.xml", strings.Repeat("a", maxSMI+1), "larger than 8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Read(tree(map[string]string{test.file: test.content}))
			if err == nil || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(err.Error(), `"`+test.file+`"`) {
				t.Fatalf("%v, wanted it to begin with %s and to say %q", err, test.file, test.want)
			}
		})
	}
}

// A file of the layout that cannot be read must not pass for one that is not there, and a named pipe must not be waited
// for.
func TestANamedPipeIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Read(fstest.MapFS{"api/pods.json": {Mode: fs.ModeNamedPipe}})
	if err == nil || !strings.Contains(err.Error(), `"api/pods.json"`) ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}

// unreadable is a tree of which no file can be opened.
type unreadable struct{ fstest.MapFS }

func (u unreadable) Open(name string) (fs.File, error) {
	if f := u.MapFS[name]; f != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return u.MapFS.Open(name)
}

// TestMessagesQuoteNames: a member of a bundle has any name, and a message with it is one line that fits a terminal and
// speaks to none.
func TestMessagesQuoteNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a\nerror: all is well", "a\x1b[2J", "a\u202eb", strings.Repeat("long", 2500)} {
		large := tree(map[string]string{"nodes/a/files/" + name: strings.Repeat("a", maxText+1)})
		kind, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		damaged := tree(map[string]string{"api/pods.json": `{"kind":` + string(kind) + `}`})
		for what, fsys := range map[string]fs.FS{
			"too large": large, "unreadable": unreadable{large}, "of another kind": damaged,
		} {
			_, err := Read(fsys)
			if err == nil {
				t.Fatalf("%s: nothing is wrong with %q", what, name)
			}
			if text := err.Error(); strings.ContainsAny(text, "\n\x1b\u202e") || len(text) > 600 {
				t.Errorf("%s: the message is not fit to print: %.700q", what, text)
			}
		}
	}
}

// Names end up in commands that people paste: a stranger's snapshot must not bring commands of its own.
func TestReadLeavesOutImpossibleNames(t *testing.T) {
	t.Parallel()
	s, err := Read(tree(map[string]string{
		"api/pods.json":              `{"items":[{"metadata":{"namespace":"x","name":"a; rm -rf /"}},{"metadata":{"namespace":"$(id)","name":"b"}},{"metadata":{"namespace":"kube-system","name":"--all"}},{"metadata":{"namespace":"x","name":"fine.1"}}]}`,
		"api/clusterpolicies.json":   `{"metadata":{"name":"a b"}}`,
		"api/runtimeclasses.json":    `{"metadata":{"name":"system:node"}}`,
		"helm.json":                  `[{"name":"x'y","namespace":"z"},{"name":"ok","namespace":"z"}]`,
		"nodes/`id`/nvidia-smi.xml":  "x",
		"nodes/-x/nvidia-smi.xml":    "x",
		"logs/x/y/$(reboot).log":     "x",
		"logs/x/y/fine.previous.log": "x",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || len(s.ClusterPolicies) != 0 || len(s.RuntimeClasses) != 1 || len(s.HelmReleases) != 1 ||
		len(s.Hosts) != 0 || len(s.Logs) != 1 {
		t.Errorf("names that Kubernetes does not allow came through, or others did not: %+v", s)
	}
	if len(s.Missing) != 8 {
		t.Errorf("%d objects were left out and reported, wanted 8: %+v", len(s.Missing), s.Missing)
	}
}
