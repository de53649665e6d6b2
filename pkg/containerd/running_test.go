package containerd

import "testing"

// The running configuration of 1.7 and of 2.x must be read alike: it is the proof that a fault landed.
func TestRunning(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"1.7": `{"containerd":{"snapshotter":"overlayfs","defaultRuntimeName":"runc","defaultRuntime":{"runtimeType":"","options":null},"runtimes":{"nvidia":{"runtimeType":"io.containerd.runc.v2",
			"runtimePath":"","runtimeEngine":"","PodAnnotations":[],"options":{"BinaryName":"/usr/bin/nvidia-container-runtime","SystemdCgroup":true},"sandboxMode":"podsandbox"}}},"cni":{}}`,
		"2.3": `{"cni":{"binDirs":["/opt/cni/bin"]},"containerd":{"defaultRuntimeName":"runc","runtimes":{"nvidia":{"runtimeType":"io.containerd.runc.v2","runtimePath":"","options":{"BinaryName":
			"/usr/bin/nvidia-container-runtime","SystemdCgroup":true},"sandboxer":"podsandbox"}}},"enableCDI":true,"stateDir":"/run/containerd/io.containerd.grpc.v1.cri"}`,
		"in a string": `"{\"containerd\":{\"defaultRuntimeName\":\"runc\",\"runtimes\":{\"nvidia\":{\"runtimeType\":\"io.containerd.runc.v2\",\"options\":{\"BinaryName\":\"/usr/bin/nvidia-container-runtime\",\"SystemdCgroup\":true}}}}}"`,
	} {
		m, err := Running([]byte(config))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		h := m.Handlers["nvidia"]
		if m.DefaultRuntime != "runc" || h.Name != "nvidia" || h.Type != "io.containerd.runc.v2" ||
			h.BinaryName != "/usr/bin/nvidia-container-runtime" || flag(h.SystemdCgroup) != "true" {
			t.Errorf("%s: %+v, %+v", name, m, h)
		}
	}
	for _, config := range []string{"", "{", `{"runtimes":{}}`, `{"containerd":{"runtimes":[]}}`, `"`} {
		if m, err := Running([]byte(config)); err == nil {
			t.Errorf("Running(%q) = %+v, want an error", config, m)
		}
	}
}

// Restoring is proven by the same sum: it must not depend on the order of keys, and must on everything else.
func TestConfigSum(t *testing.T) {
	t.Parallel()
	a := ConfigSum([]byte(`{"a":{"x":1,"y":[1,2]},"b":12345678901234567890}`))
	if b := ConfigSum([]byte(" {\"b\":12345678901234567890,\n \"a\":{\"y\":[1,2],\"x\":1}}")); a != b || len(a) != 64 {
		t.Errorf("the same configuration has the sums %s and %s", a, b)
	}
	for _, other := range []string{
		`{"a":{"x":1,"y":[2,1]},"b":12345678901234567890}`, `{"a":{"x":1,"y":[1,2]},"b":12345678901234567891}`, `{`,
	} {
		if ConfigSum([]byte(other)) == a {
			t.Errorf("%s has the sum of another configuration", other)
		}
	}
	for _, none := range []string{"", " ", "null"} {
		if sum := ConfigSum([]byte(none)); sum != "" {
			t.Errorf("ConfigSum(%q) = %s, want none", none, sum)
		}
	}
}
