package engine

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

// TestTheLineThatTellsMost verifies that an unknown failure has the most informative line as its headline, not a line
// that only reports that something failed, or an unrelated line about the node.
func TestTheLineThatTellsMost(t *testing.T) {
	t.Parallel()
	for want, log := range map[string][]string{
		"ValueError: 22.5 GiB KV cache is needed, which is larger than the available KV cache memory (17.39 GiB).": {
			"ValueError: 22.5 GiB KV cache is needed, which is larger than the available KV cache memory (17.39 GiB).",
			"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
		},
		"OSError: model not found": {"starting", "OSError: model not found", "worker 3 died, exit code 1"},
		"fatal: no space left on /models": {
			"error: retrying", "fatal: no space left on /models", "shutting down",
		},
		"ImportError: libcuda.so.1: cannot open shared object file: No such file or directory": {
			"ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
			"RuntimeError: Failed to infer device type",
		},
		"cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'": {
			"cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
			"make: *** [Makefile:82: modules] Error 2",
		},
		"worker-2:118:341 [0] ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error No such device": {
			"worker-2:118:341 [0] ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error No such device",
			"RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled system error, NCCL version 2.12.12",
		},
		"Evicted: The node was low on resource: ephemeral-storage.": {
			"Evicted: The node was low on resource: ephemeral-storage.",
			"ContainerStatusUnknown: The container could not be located when the pod was terminated",
		},
		"Failed to start the sandbox: \"a\" is not installed": {
			"Failed to start the sandbox: \"a\" is not installed", "node: kubelet.service: Main process exited, code=exited",
			"node: Failed to open /var/lib/other: No such file or directory",
		},
		"JaxRuntimeError: INTERNAL: the collective failed": {
			`File "/app/train.py", line 12, in main`, `raise ValueError(f"no such file, name mismatch: {path}")`,
			"JaxRuntimeError: INTERNAL: the collective failed",
		},
		"": {"step 1", "step 2"},
	} {
		var lines []signatures.Line
		for _, text := range log {
			line := signatures.Line{Place: signatures.Log, Evidence: finding.Evidence{Text: text}}
			if strings.HasPrefix(text, "node: ") {
				line.Place = signatures.Unit
			}
			lines = append(lines, line)
		}
		got := ""
		if told := telling(lines); len(told) > 0 {
			got = lines[told[0]].Evidence.Text
		}
		if got != want {
			t.Errorf("of %q the line %q is told, want %q", log, got, want)
		}
	}
}

// TestAMessageThatExplainsItself covers messages without a signature that describe the problem and its fix.
func TestAMessageThatExplainsItself(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		log        []string
		cause, fix string
	}{
		"an advice of its own sentence": {
			[]string{"ValueError: the cache is larger than the memory. Try increasing `gpu_memory_utilization`."},
			`one of them describes the problem: "ValueError: the cache is larger`,
			"The message suggests (verify this before you follow it): \"Try increasing `gpu_memory_utilization`\". Read the log.",
		},
		"an advice in the next line": {
			[]string{"error: the file /etc/a.conf is not supported", "Please upgrade to version 2", "try 1"},
			"The cause is unknown", `The message suggests (verify this before you follow it): "Please upgrade to version 2". Read the log.`,
		},
		"only a requirement": {
			[]string{"AssertionError: head_dim must be divisible by 8"}, "one of them describes the problem",
			"Read the log",
		},
		"neither": {[]string{"KeyError: 'rope'"}, "The cause is unknown", "Read the log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []signatures.Line
			for _, text := range test.log {
				lines = append(lines, signatures.Line{Place: signatures.Log, Evidence: finding.Evidence{Text: text}})
			}
			found := finding.Finding{Title: "it fails", Fix: finding.Fix{Text: "Read the log"}}
			quote(&found, lines)
			if found.Title != "it fails: "+test.log[0] {
				t.Errorf("the title is %q", found.Title)
			}
			if len(found.Evidence) == 0 || found.Evidence[0].Text != test.log[0] {
				t.Errorf("the evidence is %+v", found.Evidence)
			}
			if !strings.Contains(found.Cause, test.cause) || found.Fix.Text != test.fix {
				t.Errorf("the cause is %q, the fix %q", found.Cause, found.Fix.Text)
			}
		})
	}
}
