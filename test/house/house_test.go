// Package house holds the rules of the house: who may import whom, and what only the outermost layer may do.
package house

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/gpu-fault/kubectl-gpu-fault"

// rule forbids packages below one of `from` to import, directly or not, packages below one of `never`.
type rule struct {
	why         string
	from, never []string
}

var rules = []rule{
	{
		why:   "imports point downwards: a library must serve without the command line",
		from:  []string{"pkg", "debugpod"},
		never: []string{module + "/plugin", module + "/cmd", "github.com/spf13/cobra", "github.com/spf13/pflag"},
	},
	{
		why:  "the engine does not know the faults: they are plans that it carries out",
		from: []string{"pkg/fault"}, never: []string{module + "/pkg/faults"},
	},
	{
		why:   "doctor examines a snapshot, from wherever it comes: it neither reads a cluster nor changes one",
		from:  []string{"pkg/doctor", "pkg/snapshot"},
		never: []string{module + "/pkg/fault", module + "/pkg/faults", module + "/pkg/collect", "k8s.io/client-go"},
	},
	{
		why:  "the command line is put together in cmd only",
		from: []string{"plugin"}, never: []string{module + "/cmd"},
	},
	{
		why: "leaves are pure: the helper and the line parser must build without Kubernetes",
		from: []string{
			"pkg/xid", "pkg/build", "pkg/patch", "pkg/tsv", "pkg/suggest", "pkg/containerd", "debugpod/cri",
			"debugpod/rpc", "debugpod/api",
			"debugpod/deadman", "debugpod/node", "debugpod/helper", "cmd/gpu-fault-node", "cudafault",
			"kmod",
		}, never: []string{"k8s.io", "sigs.k8s.io"},
	},
	{
		why: "what crosses the wire is in debugpod/api; what the helper does with it is the node's business only",
		from: []string{
			"pkg", "plugin", "cmd/kubectl-gpu_fault", "debugpod/api", "debugpod/helper", "debugpod/image",
		}, never: []string{
			module + "/debugpod/node", "github.com/google/nftables", "github.com/mdlayher/netlink",
		},
	},
	{
		why:  "what runs in production must not need the test cluster",
		from: []string{"pkg", "debugpod", "plugin", "cmd", "kmod"}, never: []string{module + "/test"},
	},
	{
		why:  "tables look the same everywhere: only plugin/printer knows tablewriter",
		from: []string{"pkg", "debugpod"}, never: []string{"github.com/olekukonko/tablewriter"},
	},
	{
		why:  "templates call methods by their names, for which Go's linker keeps every exported method of every package: the plugin had 65 MB instead of 46 (plugin/markup writes HTML)",
		from: []string{"pkg", "debugpod", "plugin", "cmd"}, never: []string{"html/template", "text/template"},
	},
}

// indirectAllowed: cli-runtime and client-go bring pflag along for config flags, and cobra and cli-runtime bring
// text/template, which the linker drops as long as nobody calls it; ours is the direct import.
var indirectAllowed = map[string]bool{
	"github.com/spf13/pflag": true, "github.com/spf13/cobra": true, "text/template": true,
}

type listed struct {
	ImportPath, Dir string
	Imports, Deps   []string
	GoFiles         []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,Deps,GoFiles", "./...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list's output: %v", err)
		}
		all = append(all, p)
	}
}

// below reports whether path is dir or lies under it.
func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func TestImportsPointDownwards(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		direct := map[string]bool{}
		for _, i := range p.Imports {
			direct[i] = true
		}
		for _, r := range rules {
			if !anyBelow(rel, r.from) {
				continue
			}
			for _, dep := range p.Deps {
				for _, never := range r.never {
					if below(dep, "sigs.k8s.io/yaml") {
						continue // needs nothing of Kubernetes, and is the YAML that all of it understands
					}
					if below(dep, never) && (direct[dep] || !indirectAllowed[never]) {
						t.Errorf("%s imports %s: %s", rel, dep, r.why)
					}
				}
			}
		}
	}
}

// TestFaultsAreSiblings verifies that no way to change a cluster needs another: what two of them share belongs to the
// engine, pkg/fault.
func TestFaultsAreSiblings(t *testing.T) {
	t.Parallel()
	const faults = module + "/pkg/faults"
	siblings := 0
	for _, p := range packages(t) {
		if !below(p.ImportPath, faults) {
			continue
		}
		siblings++
		for _, dep := range p.Deps {
			if below(dep, faults) {
				t.Errorf("%s imports its sibling %s", p.ImportPath, dep)
			}
		}
	}
	if siblings < 6 {
		t.Errorf("only %d packages below pkg/faults", siblings)
	}
}

// TestJobsAreSiblings verifies that no job of the helper needs another. What they share is in packages that are no job,
// and what one needs of another is handed to it by debugpod/node.
func TestJobsAreSiblings(t *testing.T) {
	t.Parallel()
	const node = module + "/debugpod/node"
	shared := []string{
		node + "/checkpoint", node + "/driver",
		node + "/hostexec", node + "/hostfs", node + "/kmsg", node + "/nodetest", node + "/pci",
		node + "/process",
	}
	jobs := 0
	for _, p := range packages(t) {
		if !below(p.ImportPath, node) || p.ImportPath == node {
			continue
		}
		if !anyBelow(p.ImportPath, shared) {
			jobs++
		}
		for _, dep := range p.Deps {
			if below(dep, node) && !anyBelow(dep, shared) {
				t.Errorf("%s imports the job %s", p.ImportPath, dep)
			}
		}
	}
	if jobs < 5 {
		t.Errorf("only %d jobs below debugpod/node", jobs)
	}
}

// TestLayersOfDoctorAreSiblings verifies that no layer of checks needs another: what two of them share belongs to the
// facts, which know no layer.
func TestLayersOfDoctorAreSiblings(t *testing.T) {
	t.Parallel()
	const doctor = module + "/pkg/doctor"
	const checks = doctor + "/checks"
	siblings := 0
	for _, p := range packages(t) {
		if !below(p.ImportPath, doctor) || p.ImportPath == doctor {
			continue
		}
		isLayer := below(p.ImportPath, checks)
		if isLayer {
			siblings++
		}
		for _, dep := range p.Deps {
			switch {
			case dep == doctor:
				t.Errorf("%s imports doctor itself", p.ImportPath)
			case isLayer && below(dep, checks):
				t.Errorf("%s imports its sibling %s", p.ImportPath, dep)
			case below(dep, checks):
				t.Errorf("%s imports the layer %s", p.ImportPath, dep)
			}
		}
	}
	if siblings < 13 {
		t.Errorf("only %d layers below pkg/doctor/checks", siblings)
	}
}

func anyBelow(path string, dirs []string) bool {
	for _, d := range dirs {
		if below(path, d) {
			return true
		}
	}
	return false
}

// TestOnlyMainTouchesTheProcess holds that everything but the mains takes its streams and reports errors as values, and
// that every package says what it is for.
func TestOnlyMainTouchesTheProcess(t *testing.T) {
	t.Parallel()
	forbidden := map[string]string{
		"os.Exit": "return an error", "os.Stdout": "take an io.Writer", "os.Stderr": "take an io.Writer",
		"log.Fatal": "return an error", "log.Fatalf": "return an error",
	}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		isMain := below(rel, "cmd") || below(rel, "hack") || below(rel, "test")
		documented := false
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if tree.Doc != nil {
				documented = true
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Name.Name == "init" && n.Recv == nil {
						t.Errorf("%s: func init: build values where they are used", set.Position(n.Pos()))
					}
				case *ast.SelectorExpr:
					x, ok := n.X.(*ast.Ident)
					if !ok || isMain {
						return true
					}
					if instead, bad := forbidden[x.Name+"."+n.Sel.Name]; bad {
						t.Errorf("%s: %s.%s outside of a main: %s", set.Position(n.Pos()), x.Name, n.Sel.Name, instead)
					}
				case *ast.CallExpr:
					if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "panic" && !isMain {
						t.Errorf("%s: panic: return an error", set.Position(n.Pos()))
					}
				}
				return true
			})
		}
		if !documented && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment", rel)
		}
	}
}
