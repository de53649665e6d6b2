package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNamesOfPeers verifies that an unresolved name is reported as wrong, or as requested too early, only if the pods
// and Services in the namespace show it.
func TestNamesOfPeers(t *testing.T) {
	t.Parallel()
	const (
		wrong, early = "peer-name-of-no-pod", "peer-name-asked-too-early"
		notFound     = "ValueError: host not found: Name or service not known"
		inSSH        = "ssh: Could not resolve hostname job-0.job: " + notFound
		elsewhere    = "Failed to resolve 'huggingface.co' ([Errno -2] Name or service not known)"
	)
	ended := func(after time.Duration) podChange {
		return func(p *corev1.Pod) {
			endedBadly("")(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: exitedWith(1, "Error")}}
			p.CreationTimestamp = benchAgo(time.Minute + after)
		}
	}
	asks := func(name string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain = "job-0", "job"
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "MASTER_ADDR", Value: name}}
		}
	}
	for name, c := range map[string]struct {
		asks, clusterIP, log string
		after                time.Duration
		want                 string
	}{
		"another subdomain":    {"job-0.workers", "None", notFound, time.Hour, wrong},
		"no Service":           {"job-0.job", "", notFound, time.Hour, wrong},
		"no headless Service":  {"job-0.job:29500", "10.0.0.1", notFound, time.Hour, wrong},
		"right":                {"job-0.job", "None", notFound, time.Hour, ""},
		"right, full":          {"job-0.job.team.svc.cluster.local", "None", notFound, 8 * time.Second, early},
		"right, early":         {"job-0.job", "None", notFound, 8 * time.Second, early},
		"in the log":           {"", "None", inSSH, 8 * time.Second, early},
		"in the log, later":    {"", "None", inSSH, time.Hour, ""},
		"another namespace":    {"job-0.workers.other.svc", "None", notFound, time.Hour, ""},
		"no pod of the name":   {"master.workers", "None", notFound, time.Hour, ""},
		"a name elsewhere":     {"job-0.workers", "None", elsewhere, time.Hour, ""},
		"a program's own file": {"train.py", "None", notFound, time.Hour, ""},
		"no error of names":    {"job-0.workers", "None", "ValueError: bad input", time.Hour, ""},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, asks(c.asks), ended(c.after)).log("p", c.log)
		if c.clusterIP != "" {
			b.Services = []corev1.Service{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job"},
				Spec:       corev1.ServiceSpec{ClusterIP: c.clusterIP, PublishNotReadyAddresses: true},
			}}
		}
		_, all := b.tell(t)
		for _, id := range []string{wrong, early} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

// TestServingCompared verifies that the settings of a server's containers are reported as the cause only if they are
// the cause.
func TestServingCompared(t *testing.T) {
	t.Parallel()
	const (
		over, inUse   = "vllm-gpu-memory-utilization-too-high", "vllm-gpu-memory-in-use"
		token, gated  = "hf-token-in-another-container", "hf-gated-no-token"
		readOnly, cdi = "crun-cdi-hook-read-only-root", "crun-cdi-hook-fails"
		refused       = "Cannot access gated repo for url https://huggingface.co/meta-llama/x/resolve/main/config.json."
		hook          = "container create failed: error executing hook `/usr/bin/nvidia-cdi-hook` (exit code: 1)"
	)
	free := func(free string) string {
		return "ValueError: Free memory on device cuda:0 (" + free + "/79.10 GiB) on startup is less than desired " +
			"GPU memory utilization (0.97, 76.73 GiB). Decrease GPU memory utilization or reduce GPU memory used."
	}
	shared := func(n *corev1.Node) { n.Labels["nvidia.com/gpu.replicas"] = "4" }
	whole := func(*corev1.Node) {}
	withToken := func(at int) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "proxy"})
			p.Spec.Containers[at].Env = []corev1.EnvVar{{Name: "HF_TOKEN"}}
		}
	}
	created := func(readOnly bool) podChange {
		return func(p *corev1.Pod) {
			inState(inWaiting("CreateContainerError", hook), corev1.ContainerState{})(p)
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: &readOnly}
		}
	}
	crashes := crashing(1, "Error")
	for name, c := range map[string]struct {
		node    nodeChange
		changes []podChange
		log     string
		want    string
	}{
		"little is held":      {whole, []podChange{crashes}, free("75.20"), over},
		"much is held":        {whole, []podChange{crashes}, free("41.00"), inUse},
		"a shared GPU":        {shared, []podChange{crashes}, free("75.20"), inUse},
		"token elsewhere":     {whole, []podChange{crashes, withToken(1)}, refused, token},
		"token in place":      {whole, []podChange{crashes, withToken(0)}, refused, gated},
		"no token":            {whole, []podChange{crashes}, refused, gated},
		"read-only root":      {whole, []podChange{created(true)}, "", readOnly},
		"a root to write to":  {whole, []podChange{created(false)}, "", cdi},
		"little, other error": {whole, []podChange{crashes}, "ValueError: bad input", ""},
	} {
		b := newBench().node("n", 1, c.node).pod("p", "n", 1, c.changes...)
		if c.log != "" {
			b.previous("p", c.log)
		}
		_, all := b.tell(t)
		for _, id := range []string{over, inUse, token, gated, readOnly, cdi} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

// TestNoMemoryForTheNextModel verifies that a running pod is reported if it finds no GPU memory and cannot serve, but
// not if it recovers, and that another program is blamed only if it held the memory before.
func TestNoMemoryForTheNextModel(t *testing.T) {
	t.Parallel()
	const (
		process, shared = "gpu-memory-held-by-process", "gpu-memory-shared"
		free            = "using device CUDA0 (Tesla T4) - 2247 MiB free\n"
		little          = "using device CUDA0 (Tesla T4) - 14000 MiB free\n"
		full            = "allocating 4455.34 MiB on device 0: cudaMalloc failed: out of memory\n"
		bad             = "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n" +
			`[INFO] Request 10.0.0.1 "POST /v1/chat/completions HTTP/1.1" 502 92 "python-httpx/0.28.1" 3.1s` + "\n"
		good = `[INFO] Request 10.0.0.1 "POST /v1/chat/completions HTTP/1.1" 200 92 "python-httpx/0.28.1" 3.1s` + "\n"
	)
	holding := hwXML(`<gpu id="00000000:06:00.0"><fb_memory_usage><total>15360 MiB</total><used>12663 MiB</used>` +
		`</fb_memory_usage><processes><process_info><pid>7</pid><type>C</type><process_name>/opt/bin/python</process_name>` +
		`<used_memory>10714 MiB</used_memory></process_info></processes></gpu>`)
	for name, c := range map[string]struct{ log, smi, want string }{
		"held before":      {free + full + bad, holding, process},
		"free before":      {little + full + bad, holding, shared},
		"its own program":  {"start /opt/bin/python\n" + free + full + bad, holding, shared},
		"no nvidia-smi":    {free + full + bad, "", shared},
		"served later":     {free + full + bad + good, holding, ""},
		"loaded later":     {free + full + bad + "main: model loaded\n", holding, ""},
		"nothing fails":    {free + full, holding, ""},
		"with a fallback":  {"CUDA out of memory, falling back to the CPU\n" + bad, holding, ""},
		"an hour ago":      {"2026-01-01 09:00:00 CUDA out of memory\n" + bad, holding, ""},
		"a failed request": {"CUDA out of memory\n" + bad, holding, shared},
	} {
		b := newBench().node("n", 4, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.replicas"] = "4" }).
			pod("p", "n", 1).pod("other", "n", 1).log("p", c.log)
		if c.smi != "" {
			host := hwHost()
			host.SMI = c.smi
			b.Hosts["n"] = host
		}
		_, all := b.tell(t)
		for _, id := range []string{process, shared} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}
