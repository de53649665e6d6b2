package doctor

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestListens verifies that the address at which a program listens is a problem only if a probe, a Service or the pod's
// address does not fit, and that a pod waits in vain only for names that are not published.
func TestListens(t *testing.T) {
	t.Parallel()
	const refused = `Readiness probe failed: dial tcp 10.244.1.7:8000: connect: connection refused`
	const loopback, service = "server-listens-on-loopback", "service-of-loopback-server"
	const family = "ipv4-server-in-ipv6-pod"
	const unpublished, override = "peer-name-not-published", "rocm-override-of-other-generation"
	const fault = "\nMemory access fault by GPU node-1 (Agent handle: 0x7f88) on address 0x7f86. Reason: Unknown."
	amd := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"amd.com/gpu": *resource.NewQuantity(1, "")}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "HSA_OVERRIDE_GFX_VERSION", Value: "10.3.0"}}
	}
	notReady := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	address := func(ip string) podChange {
		return func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip}) }
	}
	probed := func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8000)},
		}}
	}
	sidecar := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "proxy"})
	}
	sglang := func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"python", "-m", "sglang.launch_server"} }
	named := func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "rank-0", "job" }
	const six, uvicorn = "fd00::7", "INFO:     Uvicorn running on http://"
	for name, c := range map[string]struct {
		changes          []podChange
		event, log, want string
	}{
		"loopback":       {[]podChange{notReady, probed}, refused, "Listening at: http://127.0.0.1:8000 (9)", loopback},
		"another server": {[]podChange{notReady, probed}, refused, "Listening at: http://127.0.0.1:43211", ""},
		"all addresses":  {[]podChange{notReady, probed}, refused, uvicorn + "0.0.0.0:8000", ""},
		"Service":        {nil, "", " * Running on http://127.0.0.1:8000", service},
		"Flask":          {nil, "", " * Running on http://127.0.0.1:8000\n * Running on http://10.244.1.7:8000", ""},
		"behind nginx":   {nil, "", uvicorn + "127.0.0.1:5000", ""},
		"default":        {[]podChange{sglang}, "", uvicorn + "127.0.0.1:30000", service},
		"behind a proxy": {[]podChange{sidecar}, "", uvicorn + "127.0.0.1:8000", ""},
		"probe succeeds": {[]podChange{probed}, "", uvicorn + "127.0.0.1:8000", ""},
		"IPv6":           {[]podChange{notReady, probed, address(six)}, refused, uvicorn + "0.0.0.0:8000", family},
		"IPv6, AMD":      {[]podChange{notReady, probed, address(six), amd}, "", uvicorn + "0.0.0.0:8000", family},
		"IPv6 works":     {[]podChange{probed, address(six)}, "", uvicorn + "0.0.0.0:8000", ""},
		"both families": {
			[]podChange{notReady, probed, address(six), address("10.1.1.1")}, refused, uvicorn + "0.0.0.0:8000", "",
		},
		"both addresses": {
			[]podChange{notReady, probed, address(six)}, refused, uvicorn + "0.0.0.0:8000\n" + uvicorn + "[::]:8000",
			"",
		},
		"metrics":          {[]podChange{notReady, probed, address(six)}, refused, "metrics: listening on 0.0.0.0:9090", ""},
		"own name":         {[]podChange{notReady, named}, refused, "waiting for rank-0.job.team.svc (7/120)", unpublished},
		"unknown":          {[]podChange{notReady, named}, refused, "ping: rank-0.job: Name or service not known", unpublished},
		"found":            {[]podChange{notReady, named}, refused, "waiting for rank-0.job\nresolved rank-0.job, loading", ""},
		"another's name":   {[]podChange{notReady, named}, refused, "waiting for redis.data.svc (7/120)", ""},
		"ready":            {[]podChange{named}, "", "waiting for rank-0.job.team.svc (7/120)", ""},
		"override":         {[]podChange{amd}, "", "library=rocm compute=gfx1100" + fault, override},
		"override by name": {[]podChange{amd}, "", "Device 0: AMD Radeon RX 7900 XTX" + fault, override},
		"same generation":  {[]podChange{amd}, "", "library=rocm compute=gfx1035" + fault, ""},
		"second GPU":       {[]podChange{amd}, "", "compute=gfx1100\ncompute=gfx1030" + fault, ""},
		"it works":         {[]podChange{amd}, "", "library=rocm compute=gfx1100", ""},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, append(c.changes, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "p"}
		})...).log("p", c.log)
		if c.event != "" {
			b.event("Pod", "p", "Unhealthy", c.event)
		}
		service := func(name, ip string) corev1.Service {
			return corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
				Spec: corev1.ServiceSpec{
					ClusterIP: ip, Selector: map[string]string{"app": "p"},
					Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8000)}},
				},
			}
		}
		if c.want != unpublished && name != "found" {
			b.Services = append(b.Services, service("api", "10.96.0.9"))
		}
		b.Services = append(b.Services, service("job", corev1.ClusterIPNone))
		_, all := b.tell(t)
		for _, id := range []string{loopback, "service-of-loopback-server", family, unpublished, override} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

// TestOthersProbes verifies that pods with other vendors' accelerators are checked like GPU pods, and which of their
// probes time out.
func TestOthersProbes(t *testing.T) {
	t.Parallel()
	const slow = `Readiness probe failed: Get "http://10.1.1.1:8000/health": context deadline exceeded ` +
		`(Client.Timeout exceeded while awaiting headers)`
	const answers = `[2026-01-01 11:59:30] INFO: "GET /health HTTP/1.1" 200 OK`
	for name, c := range map[string]struct{ event, log, want string }{
		"responds":  {slow, answers, "responds, but later than the Readiness probe waits"},
		"responded": {slow, strings.Replace(answers, "11:59", "11:20", 1), "its probe fails"},
		"refused":   {"Readiness probe failed: dial tcp 10.1.1.1:8000: connect: connection refused", "", "its probe fails"},
	} {
		for _, resource := range []corev1.ResourceName{
			"amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "aws.amazon.com/neuron", "google.com/tpu",
			"huawei.com/Ascend910",
		} {
			b := newBench().node("n", 0).pod("p", "n", 0, func(p *corev1.Pod) {
				c := &p.Spec.Containers[0]
				c.Resources.Limits = corev1.ResourceList{resource: gpus(1)["nvidia.com/gpu"]}
				c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)},
				}}
				p.Status.Conditions[0].Status = corev1.ConditionFalse
			}).event("Pod", "p", "Unhealthy", c.event)
			if c.log != "" {
				b.log("p", c.log)
			}
			_, all := b.tell(t)
			if len(all) != 1 || all[0].ID != "wl.probe-failing" || !strings.Contains(all[0].Title, c.want) {
				t.Errorf("%s, %s: want %q: %+v", name, resource, c.want, all)
			}
		}
	}
}
