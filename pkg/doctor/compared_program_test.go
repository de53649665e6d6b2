package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestProgramCompared verifies that a conflict between a pod's settings is the cause only if the settings really
// conflict and the message can follow from the conflict.
func TestProgramCompared(t *testing.T) {
	t.Parallel()
	const refused = `Readiness probe failed: Get "http://10.244.1.7:8000/health": dial tcp 10.244.1.7:8000: connect: ` +
		`connection refused`
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")},
	}}
	runs := func(args ...string) podChange {
		return func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Args = args
			c.LivenessProbe = probe
			c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}}
		}
	}
	env := func(name, value string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
	mounted := func(at string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: at}}
			p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		}
	}
	sidecar := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = nil
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "proxy", Resources: corev1.ResourceRequirements{Limits: gpus(1)},
		})
	}
	onHost := func(policy corev1.DNSPolicy) podChange {
		return func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.DNSPolicy = true, policy }
	}
	const (
		noGPU   = "RuntimeError: No CUDA GPUs are available"
		noName  = "dial tcp: lookup redis.ml.svc.cluster.local on 10.0.0.2:53: no such host"
		noFile  = "python: can't open file '/app/main.py': [Errno 2] No such file or directory"
		noModel = "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/llama'."
		noAgent = `plugin type="aws-cni" name="aws-cni" failed (add): dial tcp 127.0.0.1:50051: connect: connection refused`
		noCUDA  = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
	)
	const loopback, outside = "server-listens-on-loopback", "model-path-outside-volumes"
	const unmounted = "driver-capabilities-without-compute"
	for name, c := range map[string]struct {
		changes          []podChange
		event, log, want string
	}{
		"other port":     {[]podChange{runs("--port", "8080")}, refused, "", "probe-asks-another-port"},
		"joined":         {[]podChange{runs("--port=8080")}, refused, "", "probe-asks-another-port"},
		"in a shell":     {[]podChange{runs("sh", "-c", "serve --port 8080")}, refused, "", "probe-asks-another-port"},
		"same port":      {[]podChange{runs("--port", "8000")}, refused, "", ""},
		"no port":        {[]podChange{runs("serve")}, refused, "", ""},
		"with a proxy":   {[]podChange{runs("--port", "8080"), sidecar}, refused, "", ""},
		"loopback":       {[]podChange{runs("--host", "127.0.0.1")}, refused, "", loopback},
		"SGLang":         {[]podChange{runs("python", "-m", "sglang.launch_server")}, refused, "", loopback},
		"SGLang, host":   {[]podChange{runs("-m", "sglang.launch_server", "--host=0.0.0.0")}, refused, "", ""},
		"by env":         {[]podChange{runs("serve"), env("OLLAMA_HOST", "127.0.0.1:11434")}, refused, "", loopback},
		"all addresses":  {[]podChange{runs("serve"), env("OLLAMA_HOST", "0.0.0.0")}, refused, "", ""},
		"other's GPU":    {[]podChange{sidecar}, "", noGPU, "gpu-in-another-container"},
		"own GPU":        {nil, "", noGPU, ""},
		"node's DNS":     {[]podChange{onHost(corev1.DNSClusterFirst)}, "", noName, "host-network-without-cluster-dns"},
		"cluster's DNS":  {[]podChange{onHost(corev1.DNSClusterFirstWithHostNet)}, "", noName, ""},
		"internet":       {[]podChange{onHost("")}, "", "curl: (6) Could not resolve host: huggingface.co", ""},
		"pod network":    {nil, "", noName, ""},
		"hidden":         {[]podChange{runs("/app/main.py"), mounted("/app")}, "", noFile, "program-hidden-by-volume"},
		"beside it":      {[]podChange{runs("python", "/app/main.py"), mounted("/data")}, "", noFile, ""},
		"model outside":  {[]podChange{runs("--model", "/models/llama"), mounted("/data")}, "", noModel, outside},
		"model inside":   {[]podChange{runs("--model", "/models/llama"), mounted("/models")}, "", noModel, ""},
		"no compute":     {[]podChange{env("NVIDIA_DRIVER_CAPABILITIES", "utility,video")}, "", noCUDA, unmounted},
		"with compute":   {[]podChange{env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")}, "", noCUDA, ""},
		"started since":  {nil, noAgent, noGPU, ""},
		"bus error":      {[]podChange{crashing(135, "Error")}, "", "", "exit-sigbus"},
		"another signal": {[]podChange{crashing(1, "Error")}, "", "", ""},
	} {
		changes := append([]podChange{crashing(1, "Error")}, c.changes...)
		b := newBench().node("n", 1).pod("p", "n", 1, changes...)
		if c.event != "" {
			b.event("Pod", "p", "Unhealthy", c.event)
		}
		if c.log != "" {
			b.previous("p", c.log)
		}
		_, all := b.tell(t)
		for _, id := range []string{
			"probe-asks-another-port", loopback, "gpu-in-another-container",
			"host-network-without-cluster-dns", "program-hidden-by-volume", outside,
			unmounted, "exit-sigbus", "cni-aws-agent-not-running",
		} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}
