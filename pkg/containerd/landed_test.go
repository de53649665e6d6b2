package containerd

import (
	"strings"
	"testing"
)

// Landed must tell the broken configuration from the healthy one, and CRI's silence from both.
func TestLanded(t *testing.T) {
	t.Parallel()
	running := func(nvidia string) string {
		return `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2"}` +
			nvidia + `}}}`
	}
	handler := func(kind, options string) string {
		return running(`,"nvidia":{"runtimeType":"` + kind + `","options":{` + options + `}}`)
	}
	const runc, binary = "io.containerd.runc.v2", `"BinaryName":"/root"`
	healthy := handler(runc, binary+`,"SystemdCgroup":true`)
	for mode, broken := range map[Mode]string{
		ModeMissingHandler:   running(""),
		ModeWrongInstance:    running(""),
		ModeBinaryMissing:    handler(runc, `"BinaryName":"/root.gpu-fault-missing"`),
		ModeWrongRuntimeType: handler("io.containerd.gpu-fault-nosuch.v2", binary),
		ModeCgroupDriver:     handler(runc, binary+`,"SystemdCgroup":false`),
		ModeOptionMisplaced:  handler(runc, `"SystemdCgroup":true`),
		ModeDropinShadow:     "",
		ModeDefaultMissing:   "",
		ModeUnparsable:       "",
	} {
		b, err := config(old, grpcRoot).Break(Request{Mode: mode, Handler: "nvidia", Decoy: File{Path: "/decoy.toml"}})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if err := b.Landed([]byte(broken)); err != nil {
			t.Errorf("%s has landed, and Landed says %v", mode, err)
		}
		if b.Landed([]byte(healthy)) == nil {
			t.Errorf("%s has not landed, and Landed says nothing", mode)
		}
		if err := b.Landed(nil); (err == nil) != b.NodeLoss {
			t.Errorf("%s: node loss %t, and CRI's silence gives %v", mode, b.NodeLoss, err)
		}
	}
}

// The names of modes are a contract, and each mode is described.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, m := range Modes() {
		if got, err := ParseMode(string(m.Mode)); got != m.Mode || err != nil {
			t.Errorf("ParseMode(%s) = %s, %v", m.Mode, got, err)
		}
		if m.Summary == "" || m.Symptom == "" || !strings.HasPrefix(m.Root, "rt.") {
			t.Errorf("%+v is not described", m)
		}
	}
	if _, err := ParseMode("nosuch"); err == nil || !strings.Contains(
		err.Error(),
		"missing-handler, wrong-instance, binary-missing, wrong-runtime-type, cgroup-driver, option-misplaced, dropin-shadow, default-missing, unparsable",
	) {
		t.Errorf("the error does not list the modes: %v", err)
	}
}
