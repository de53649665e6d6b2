package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// testFunc is one test function of the tree that needs a cluster.
type testFunc struct {
	pkg      string // ./test/e2e
	name     string
	file     string
	parallel bool // it calls t.Parallel first
}

// clusterTests finds the tests that are built with the tag e2e, also if the tag scenario is needed, in the tracked and
// new files of the tree.
func clusterTests(root string) ([]testFunc, error) {
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	var all []testFunc
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		found, err := testsIn(root, name)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func testsIn(root, name string) ([]testFunc, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil,
		parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if !needsCluster(tree) {
		return nil, nil
	}
	var all []testFunc
	for _, decl := range tree.Decls {
		f, isFunc := decl.(*ast.FuncDecl)
		if !isFunc || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
			continue
		}
		all = append(all,
			testFunc{pkg: "./" + filepath.Dir(name), name: f.Name.Name, file: name, parallel: startsParallel(f)})
	}
	return all, nil
}

// needsCluster reports whether a file is built with the tags of clusterTags, and not without.
func needsCluster(tree *ast.File) bool {
	for _, group := range tree.Comments {
		for _, c := range group.List {
			if c.Pos() > tree.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			ours := func(tag string) bool {
				return slices.Contains(strings.Split(clusterTags, ","), tag) || tag == "linux"
			}
			return err == nil && expr.Eval(ours) && !expr.Eval(func(tag string) bool { return tag == "linux" })
		}
	}
	return false
}

const clusterTags = "e2e,scenario"

// startsParallel reports whether one of the function's own statements is t.Parallel().
func startsParallel(f *ast.FuncDecl) bool {
	for _, s := range f.Body.List {
		if e, ok := s.(*ast.ExprStmt); ok {
			if call, ok := e.X.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Parallel" {
					return true
				}
			}
		}
	}
	return false
}

// raceBuild returns how all tests are built, so that they share the build cache. `make lint` vets them. Without
// symbols, and by Go's own linker in place of gcc's, they link in half the time.
func raceBuild() []string { return []string{"-race", "-vet=off", "-ldflags=-s -w -linkmode=internal"} }

// clusterTest runs tests of one package on the lane's cluster.
func clusterTest(pkg string, names []string) func(*bay) ([]result, error) {
	return func(b *bay) ([]result, error) {
		// test2json would run the program itself, but with SIGINT ignored, and so without an end to what tests
		// interrupt.
		cmd := b.command("bash", "-o", "pipefail", "-c", `"$@" 2>&1 | go tool test2json -t -p "$0"`, pkg,
			b.programs[pkg], "-test.v=test2json", "-test.timeout=30m",
			"-test.run=^("+strings.Join(names, "|")+")$")
		cmd.Dir = filepath.Join(b.root, pkg)
		cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0")
		results, err := testEvents(cmd, b.log)
		if err != nil {
			return results, err
		}
		for _, name := range names {
			if !slices.ContainsFunc(results, func(r result) bool { return r.name == pkg+" "+name }) {
				return results, fmt.Errorf("%s did not run", name)
			}
		}
		return results, nil
	}
}

// unitTests runs tests that need nothing but Go; the arguments are flags of go test and packages.
func unitTests(args ...string) func(*bay) ([]result, error) {
	return func(b *bay) ([]result, error) {
		cmd := b.command("go", slices.Concat([]string{"test", "-json"}, raceBuild(), args)...)
		// Or each program would sleep for a second
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1", "GORACE=atexit_sleep_ms=0")
		return testEvents(cmd, b.log)
	}
}

// testEvents runs a command that writes the events of go tool test2json. The log gets what the tests wrote.
func testEvents(cmd *exec.Cmd, log io.Writer) ([]result, error) {
	cmd.Stdout = nil
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	results, parseErr := readEvents(pipe, log)
	err = cmd.Wait()
	if slices.ContainsFunc(results, func(r result) bool { return r.failed }) {
		return results, nil // the results say what failed
	}
	return results, errors.Join(err, parseErr)
}

// event is one line of `go tool test2json`.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// readEvents reads events up to the end. A package that fails without a failed test, such as one that does not build or
// ends before its tests do, is a result too.
func readEvents(r io.Reader, log io.Writer) ([]result, error) {
	var results []result
	reasons, said := map[string]string{}, map[string]string{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return results, nil
		} else if err != nil && !errors.Is(err, io.EOF) {
			return results, err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			_, _ = log.Write(line) // of the go command itself
			continue
		}
		name := strings.TrimPrefix(e.Package, module)
		if e.Test != "" {
			name += " " + e.Test
		}
		switch e.Action {
		case "output", "build-output":
			_, _ = io.WriteString(log, e.Output)
			if e.Test != "" && skipReason.MatchString(e.Output) {
				reasons[name] = strings.TrimSpace(e.Output)
			}
			if !testFrame.MatchString(e.Output) {
				said[name] = string(tail([]byte(said[name]+e.Output), 1500))
			}
		case "pass", "fail", "skip":
			failedTest := func(r result) bool { return r.failed && strings.HasPrefix(r.name, name+" ") }
			switch {
			case e.Test == "" && (e.Action != "fail" || slices.ContainsFunc(results, failedTest)):
				continue
			case e.Action == "skip":
				results = append(results, result{name: name, skipped: reasons[name] + " "})
			default:
				results = append(results, result{name: name, seconds: e.Elapsed})
				if e.Action == "fail" {
					last := &results[len(results)-1]
					last.failed, last.why = true, said[name]
				}
			}
			delete(said, name)
		}
	}
}

const module = "github.com/gpu-fault/kubectl-gpu-fault/"

// skipReason matches the line that a test writes when it skips itself: "    file_test.go:12: needs ...".
var skipReason = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

// testFrame matches the lines that the testing package writes about a test, rather than the test itself.
var testFrame = regexp.MustCompile(`^\s*(=== |--- |FAIL\b|PASS\b|ok\b|exit status )`)

// lastLine returns the last line of what a command wrote to standard output.
func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}
