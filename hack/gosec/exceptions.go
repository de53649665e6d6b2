package main

// notForUs are rules that say nothing here, with the reason.
var notForUs = map[string]string{
	"G304": "a variable names a file to read: what this tool is for, on nodes and for --bundle, -f and --ko; it is no server that others send names to",
}

// exception excuses the findings of a rule in a file or below a folder.
type exception struct{ rule, path, why string }

var exceptions = []exception{
	{"G104", "cudafault/layout.go", "a hash's Write never fails (package hash says so)"},
	{"G104", "cudafault/nodes.go", "a hash's Write never fails (package hash says so)"},
	{"G204", "debugpod/deadman/guard/host.go", "systemctl and the like, for units that Validate has checked; no shell"},
	{"G204", "debugpod/node/diagnose_linux.go", "the node's own nvidia-smi and journalctl, with fixed arguments; no shell"},
	{"G204", "debugpod/node/module_build.go", "the node's own make and compiler, in a folder of ours; no shell"},
	{"G204", "pkg/scenario/exercise/agent.go", "the command that the user gave for the agent that plays the candidate: a shell is wanted"},
	{"G301", "debugpod/deadman/guard/prepare.go", "/var/lib/gpu-fault says to everybody which runs there are; what is in them is for root only"},
	{"G301", "debugpod/deadman/guard/script.go", "folders of systemd's units, as systemd has them"},
	{"G301", "debugpod/node/module_build.go", "a source tree that the compiler reads as another user"},
	{"G306", "debugpod/node/module_build.go", "a source tree that the compiler reads as another user"},
	{"G301", "pkg/scenario/terraform", "a module for the candidate to read; it holds no secret"},
	{"G306", "pkg/scenario/terraform", "a module for the candidate to read; it holds no secret"},
	{"G302", "debugpod/deadman/guard/prepare.go", "a file of a service, made where there was none: the service reads it as its own user"},
	{"G302", "plugin/scenario/export.go", "a scenario to give away; it holds no secret"},
	{"G404", "pkg/xid/template.go", "the same seed gives the same numbers in XID lines; nothing depends on their being secret"},
	{"G404", "plugin/scenario/start.go", "a seed that is told to the user"},
}
