package main

import (
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// After Ctrl-C client-go logs an error for each request that was under way; nobody wants to read that what was stopped
// has stopped.
func TestInterruptedRequestsAreNotLogged(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	written := func() string {
		klog.ErrorS(nil, "Unexpected error when reading response body")
		klog.Flush()
		raw, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	before := written()
	if !strings.Contains(before, "Unexpected error") {
		t.Fatalf("without an interruption errors of libraries are to be seen, and there is %q", before)
	}
	hushLibraries()
	if after := written(); after != before {
		t.Errorf("an error of a library is still written: %q", after[len(before):])
	}
}

// TestABugKeepsItsLine: a panic may hold what a node or a record says.
func TestABugKeepsItsLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	reportBug(&out, "index of \x1b[2J\nerror: all is well")
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Contains(text, "\nerror") ||
		!strings.Contains(text, "all is well") {
		t.Errorf("%q", text)
	}
}
