package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

func controlledBy(kind, name string) podChange {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: "owner-1", Controller: &yes}}
	}
}

// TestErrorsOfRunningPods verifies that an error at the end of a running GPU pod's log is reported, unless the program
// handles the error itself.
func TestErrorsOfRunningPods(t *testing.T) {
	t.Parallel()
	const (
		shm    = "Error while creating shared memory segment /dev/shm/nccl-jaXv5Z (size 5767520)"
		record = "2026-01-01 11:57:01,903 worker 1 ERROR    NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled error\n" +
			"ncclSystemError: System call failed.\nLast error:\n" + shm + "\n"
		llama = `time=2026-01-01T11:46:49.371Z level=ERROR source=sched.go:443 msg="error loading llama server" ` +
			`error="timed out waiting for llama runner to start - progress 0.02 - "` + "\n"
	)
	server := controlledBy("ReplicaSet", "server-7d9f6c5b8")
	logs := func(text string, edits ...podChange) *bench {
		return newBench().node("a", 2).pod("p", "a", 1, append([]podChange{created(24 * time.Hour)}, edits...)...).
			log("p", text)
	}
	ordinary := func(n int) string {
		return strings.Repeat("2026-01-01 11:58:00,000 worker 1 INFO     the queue is empty\n", n)
	}
	const known, silent = "wl.message warning", ""
	runBench(t, map[string]benchCase{
		"at the end of the log": {logs(record, server), known, "/dev/shm is too small"},
		"of a standalone pod":   {logs(record), known, "/dev/shm is too small"},
		"a request fails": {
			logs(llama + "[GIN] 2026/01/01 - 11:46:49 | 500 | 6m57s | 127.0.0.1 | POST \"/api/chat\"\n"), known, "Ollama",
		},
		"only probes follow": {
			logs(record+strings.Repeat("INFO:  10.0.0.1:5 - \"GET /health HTTP/1.1\" 200 OK\n", 40), server), known, "",
		},
		"of a job, hours ago": {
			logs(strings.ReplaceAll(record, "11:57:01", "04:57:01"), controlledBy("PyTorchJob", "t")), known, "",
		},
		"a GPU that the process cannot use anymore": {
			logs("ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n  File \"a.py\", line 412, in run\n"+
				"RuntimeError: CUDA error: an illegal memory access was encountered\n", server), "wl.cuda-error warning", "still running",
		},
		"it was restarted by its parent": {
			logs("RuntimeError: CUDA error: an illegal memory access was encountered\nINFO worker started\n", server), silent, "",
		},
		"a request needs too much of the GPU": {
			logs("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n", server), known, "2.00 GiB",
		},
		"NCCL's warning before the error": {
			logs("a:45:120 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes\n" +
				"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\n"),
			known, "",
		},
		"retried in vain for long": {
			logs("2026-01-01T11:30:00Z ERROR "+shm+", retrying\n2026-01-01T11:44:00Z ERROR "+shm+", retrying\n"+
				"2026-01-01T11:58:00Z ERROR "+shm+", retrying\n", server), known, "",
		},

		"of a server, hours ago":  {logs(strings.ReplaceAll(record, "11:57:01", "04:57:01"), server), silent, ""},
		"many other lines follow": {logs(record+ordinary(30), server), silent, ""},
		"it works again": {
			logs(record+"2026-01-01 11:57:40,000 worker 1 INFO model loaded\n", server), silent, "",
		},
		"training goes on": {logs(record + "step 120 | loss 2.31 | 1.2 it/s\n"), silent, ""},
		"requests are served": {
			logs(record+"INFO:  10.0.0.1:5 - \"POST /v1/completions HTTP/1.1\" 200 OK\n", server), silent, "",
		},
		"the client's request is bad": {
			logs(record + "INFO:  10.0.0.1:5 - \"POST /v1/completions HTTP/1.1\" 400 Bad Request\n"), silent, "",
		},
		"retried": {logs("2026-01-01T11:58:00Z ERROR " + shm + ", retrying in 5s\n"), silent, ""},
		"NCCL's own warning alone": {
			logs("a:45:120 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes\n"),
			silent, "",
		},
		"a warning": {logs("2026-01-01T11:58:00Z WARNING " + shm + "\n"), silent, ""},
		"information": {
			logs("2026-01-01T11:58:00Z INFO the last run ended with: " + shm + "\n"), silent, "",
		},
		"a sidecar": {
			newBench().node("a", 2).pod("p", "a", 1).container("uploader", record), silent, "",
		},
		"the instance before": {newBench().node("a", 2).pod("p", "a", 1).previous("p", record), silent, ""},
		"without a GPU":       {newBench().node("a", 2).pod("p", "a", 0).log("p", record), silent, ""},
	})
}

// TestLogsOfProgramsThatWork verifies that logs of working programs are not reported although they end with errors:
// errors from clients, errors that the program tolerates, and errors that it retries. The last case is a process that
// can no longer use its GPU.
func TestLogsOfProgramsThatWork(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "running-logs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(data), "\n====\n")
	for i, text := range all {
		for _, kind := range []string{"ReplicaSet", "Job"} {
			owner := controlledBy(kind, "owner")
			b := newBench().node("a", 2).pod("p", "a", 1, created(24*time.Hour), owner).log("p", text)
			_, found := b.tell(t)
			reported := slices.ContainsFunc(found, func(f finding.Finding) bool {
				return f.ID == "wl.message" || f.ID == "wl.cuda-error"
			})
			if reported != (i == len(all)-1) {
				t.Errorf("log %d: reported %t\n%s\n%+v", i, reported, text, found)
			}
		}
	}
}

// restarted returns a change that makes a pod's container run again since the given time, after a number of restarts.
func restarted(count int32, ago time.Duration, ended corev1.ContainerStateTerminated) podChange {
	return func(p *corev1.Pod) {
		ended.FinishedAt, ended.StartedAt = benchAgo(ago), benchAgo(ago+2*time.Minute)
		s := &p.Status.ContainerStatuses[0]
		s.RestartCount, s.LastTerminationState.Terminated = count, &ended
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: benchAgo(ago)}
	}
}

// TestRestartsNowAndThen verifies that pods that are killed repeatedly but are running at the time of the snapshot are
// reported, and that restarts in the past are not.
func TestRestartsNowAndThen(t *testing.T) {
	t.Parallel()
	oom := corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
	failed := corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
	const traceback = "Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory\n" +
		"misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes\n"
	pod := func(age time.Duration, edits ...podChange) *bench {
		return newBench().node("a", 2).pod("p", "a", 1, append([]podChange{created(age)}, edits...)...)
	}
	limited := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits["memory"] = resource.MustParse("4Gi")
	}
	runBench(t, map[string]benchCase{
		"killed every two hours": {
			pod(24*time.Hour, restarted(11, time.Hour, oom)), "wl.restarts warning", "11 restarts",
		},
		"killed at its limit": {
			pod(24*time.Hour, restarted(11, time.Hour, oom), limited), "wl.restarts warning", "4Gi",
		},
		"a known error": {
			pod(5*time.Hour, restarted(4, time.Hour, failed)).previous("p", traceback), "wl.restarts warning",
			"/dev/shm is too small",
		},
		"a signal of its own": {
			pod(5*time.Hour, restarted(4, time.Hour, corev1.ContainerStateTerminated{ExitCode: 135, Reason: "Error"})).
				previous("p", traceback), "wl.restarts warning", "",
		},
		"a failed probe": {
			pod(5*time.Hour, restarted(4, time.Hour, corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"})).
				previous("p", traceback), "", "",
		},
		"an unknown error":    {pod(5*time.Hour, restarted(4, time.Hour, failed)).previous("p", "bye\n"), "", ""},
		"killed once":         {pod(24*time.Hour, restarted(1, time.Hour, oom)), "", ""},
		"killed at the start": {pod(24*time.Hour, restarted(5, 23*time.Hour+30*time.Minute, oom)), "", ""},
		"killed twice": {
			pod(72*time.Hour, restarted(2, 14*time.Minute, oom), func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated.StartedAt = benchAgo(3 * time.Hour)
			}), "wl.restarts warning", "2 restarts",
		},
		"failed twice": {pod(5*time.Hour, restarted(2, time.Hour, failed)).previous("p", traceback), "", ""},
		"seldom":       {pod(90*24*time.Hour, restarted(20, time.Hour, oom)), "", ""},
		"failed as it started": {
			pod(50*time.Minute, restarted(6, 11*time.Minute, failed)).previous("p", traceback), "", "",
		},
		"the node rebooted": {
			pod(20*time.Hour, restarted(3, time.Hour, corev1.ContainerStateTerminated{ExitCode: 255,
				Reason: "Unknown"})), "", "",
		},
	})

	component := func(app, image string, edits ...podChange) *bench {
		return newBench().node("a", 2).pod(app+"-x1", "a", 0, append([]podChange{func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": app}
			p.Spec.Containers[0].Image = image
		}}, edits...)...)
	}
	for name, c := range map[string]struct {
		bench *bench
		want  string
	}{
		"exporter": {
			component("nvidia-dcgm-exporter", "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.3", created(2*time.Hour),
				restarted(11, 8*time.Minute, oom)),
			"op.restarts warning dcgm-exporter-memory-limit",
		},
		"device plugin": {
			component("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
				created(2*time.Hour),
				restarted(11, 8*time.Minute, oom)),
			"op.restarts warning ",
		},
		"stable again": {
			component("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
				created(20*time.Hour),
				restarted(6, 19*time.Hour, oom)),
			"",
		},
		"leader election now and then": {
			component("gpu-operator", "nvcr.io/nvidia/gpu-operator:v25.3.0", created(20*time.Hour),
				restarted(4, time.Hour, failed)).previous("gpu-operator-x1",
				"E0101 11:00:00.0 1 leaderelection.go:436] error "+
					"retrieving resource lock: the server was unable to return a response in the time allotted\n"),
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, found := range Examine(&c.bench.Snapshot, Options{Checks: []string{"op.restarts"}}).Items {
				got = found.ID + " " + string(found.Severity) + " " + found.Signature
			}
			if got != c.want {
				t.Errorf("doctor reports %q, want %q", got, c.want)
			}
		})
	}
}

// TestEvictions verifies that an eviction shows the resource, the pod's usage and its request, and that a resolved
// eviction is not a warning.
func TestEvictions(t *testing.T) {
	t.Parallel()
	evicted := func(message string, edits ...podChange) *bench {
		return newBench().node("a", 2).pod("p", "a", 1, append([]podChange{func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: message}
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("1Gi")}
			created(5 * time.Hour)(p)
		}}, edits...)...)
	}
	now := func(b *bench, message string) *bench { return b.event("Pod", "p", "Evicted", message) }
	old := func(e *corev1.Event) { e.LastTimestamp = benchAgo(4 * time.Hour) }
	const low = "The node was low on resource: memory. "
	runBench(t, map[string]benchCase{
		"memory": {now(evicted(low), low), "wl.evicted warning", "memory: request 1Gi, limit none"},
		"what it used": {
			now(evicted("Pod The node had condition: [MemoryPressure]. "),
				low+"Container main was using 12Gi, request is 1Gi, "+
					"has larger consumption of memory. "), "wl.evicted warning", "was using 12Gi",
		},
		"a condition of the node": {
			now(evicted("The node had condition: [MemoryPressure]. "), "x"), "wl.evicted warning", "low on memory",
		},
		"disk pressure": {
			now(evicted("The node had condition: [DiskPressure]. "), "x"), "wl.evicted warning", "ran low on disk " +
				"space",
		},
		"inodes": {
			now(evicted("The node was low on resource: inodes. "), "x"), "wl.evicted warning", "ran low on disk space",
		},
		"process IDs": {
			now(evicted("The node was low on resource: pids. "), "x"), "wl.evicted warning", "process IDs",
		},
		"its own limit": {
			now(evicted(`Usage of EmptyDir volume "cache" exceeds the limit "1Gi". `), "x"), "wl.evicted warning", "",
		},
		"unknown":       {now(evicted("Bye"), "x"), "wl.evicted warning", ""},
		"hours ago":     {evicted(low).event("Pod", "p", "Evicted", low, old), "wl.evicted info", ""},
		"its time gone": {evicted(low), "wl.evicted info", ""},
		"replaced": {
			now(evicted(low, controlledBy("ReplicaSet", "r")), low).pod("q", "a", 1, controlledBy("ReplicaSet", "r")),
			"", "",
		},
	})
}

// TestNodeAgents verifies that a DaemonSet that a failing pod depends on is reported if it is excluded from the pod's
// node.
func TestNodeAgents(t *testing.T) {
	t.Parallel()
	const said = "2026-01-01T11:39:52Z info waiting 2m0s for /var/run/sds/uds_path\n"
	unready := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	mounts := func(at string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: at},
			}})
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: at}}
		}
	}
	set := func(b *bench, name, at string, selects map[string]string) *bench {
		b.daemonSet(name, selects)
		d := &b.DaemonSets[len(b.DaemonSets)-1]
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: at},
		}}}
		return b
	}
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}
	}
	failing := func(at, log string, edit nodeChange) *bench {
		return newBench().node("a", 2, edit).pod("p", "a", 1, mounts(at), unready).log("p", log)
	}
	none := func(*corev1.Node) {}
	agentOf := func(b *bench, name string) *bench {
		return b.pod(name+"-x", "a", 0, controlledBy("DaemonSet", name),
			func(p *corev1.Pod) { p.Namespace = "plugins" })
	}
	const known = "wl.node-agent error"
	runBench(t, map[string]benchCase{
		"a taint": {
			set(failing("/var/run/sds", said, tainted), "agent", "/run/sds", nil), known, "Add a toleration",
		},
		"a selector": {
			set(failing("/run/spire/sockets",
				"dial unix /run/spire/sockets/agent.sock: connect: no such file or directory\n", none),
				"spire-agent", "/run/spire/sockets", map[string]string{"pool": "cpu"}),
			known, "pool=cpu",
		},
		"a socket in the directory": {
			set(failing("/var/run/datadog/apm.socket", "cannot connect to /var/run/datadog/apm.socket\n", tainted),
				"datadog", "/var/run/datadog", nil), known, "datadog",
		},
		"the agent runs": {
			agentOf(set(failing("/var/run/sds", said, tainted), "agent", "/run/sds", nil), "agent"), "", "",
		},
		"another agent runs": {
			agentOf(set(set(failing("/var/run/sds", said, tainted), "agent", "/run/sds", nil), "agent-gpu",
				"/run/sds", nil), "agent-gpu"),
			"", "",
		},
		"nothing keeps it off": {set(failing("/var/run/sds", said, none), "agent", "/run/sds", nil), "", ""},
		"the pod is ready": {
			set(newBench().node("a", 2, tainted).pod("p", "a", 1, mounts("/run/sds")).log("p", said), "agent",
				"/run/sds", nil),
			"", "",
		},
		"it complains about something else": {
			set(failing("/var/run/sds", "FLAG: --sds=/var/run/sds\nfailed to load the model\n", tainted), "agent",
				"/run/sds", nil),
			"", "",
		},
		"another path": {set(failing("/var/run/sds", said, tainted), "agent", "/run/sdsx", nil), "", ""},
		"a path of the system": {
			set(failing("/var/log", "cannot open /var/log/x: no such file\n", tainted), "logs", "/var/log", nil), "",
			"",
		},
		"the runtime's socket": {
			set(failing("/var/run/docker.sock", "cannot connect to /var/run/docker.sock\n", tainted), "builder",
				"/var/run/docker.sock", nil), "", "",
		},
		"a device": {
			set(failing("/dev/fuse", "open /dev/fuse: permission denied\n", tainted), "fuse", "/dev/fuse", nil), "", "",
		},
		"another namespace's DaemonSet of that name": {
			set(failing("/var/run/sds", said, tainted), "agent", "/run/sds", nil).
				pod("agent-y", "a", 0, controlledBy("DaemonSet", "agent")), known, "",
		},
	})
}

// TestMeshBetweenRanks verifies that a service mesh's sidecar explains why ranks cannot connect, unless a rank has an
// error of its own.
func TestMeshBetweenRanks(t *testing.T) {
	t.Parallel()
	const reset = "File \"mnist.py\", line 116, in main\n    dist.init_process_group(backend=args.backend)\n" +
		"RuntimeError: Connection reset by peer\n"
	sidecar := func(name, image string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: image})
		}
	}
	istio := sidecar("istio-proxy", "docker.io/istio/proxyv2:1.20.3")
	rank := controlledBy("PyTorchJob", "mnist")
	started := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: benchAgo(time.Hour)}
	}
	job := func(log string, edits ...podChange) *bench {
		all := append([]podChange{rank, crashing(1, "Error")}, edits...)
		return newBench().node("a", 4).pod("w", "a", 1, all...).previous("w", log).
			pod("m", "a", 1, append([]podChange{rank}, edits...)...)
	}
	member := func(key string) podChange {
		return func(p *corev1.Pod) { p.Labels, p.OwnerReferences = map[string]string{key: "big"}, nil }
	}
	annotated := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"traffic.sidecar.istio.io/excludeInboundPorts": "23456"}
	}
	waiting := func(edits ...podChange) *bench {
		all := append([]podChange{rank, started}, edits...)
		return newBench().node("a", 4).pod("m", "a", 1, all...).pod("w", "a", 1, all...).
			log("w", "Using distributed PyTorch with gloo backend\n")
	}
	for name, c := range map[string]struct {
		bench *bench
		want  string
	}{
		"Istio": {job(reset, istio), "mesh-between-ranks"},
		"Linkerd": {
			job(reset, sidecar("linkerd-proxy", "cr.l5d.io/linkerd/proxy:edge-24.5.1")), "mesh-between-ranks",
		},
		"of a JobSet": {job(reset, istio, member("jobset.sigs.k8s.io/jobset-name")), "mesh-between-ranks"},
		"of Ray": {
			job("RuntimeError: Failed to connect to GCS at address 10.0.0.7:6379\n", istio, member("ray.io/cluster")),
			"mesh-between-ranks",
		},
		"refused":       {job("torch.distributed.DistNetworkError: Connection refused\n", istio), "mesh-between-ranks"},
		"all wait":      {waiting(istio), "mesh-hangs-rendezvous"},
		"without proxy": {job(reset), ""},
		"not a job":     {job(reset, istio, controlledBy("ReplicaSet", "server")), ""},
		"ports are excluded": {
			job(reset, istio, annotated), "",
		},
		"another rank has a reason of its own": {
			job(reset, istio).pod("x", "a", 1, rank, istio, crashing(1, "Error")).
				previous("x", "ValueError: my own mistake\n"), "",
		},
		"another rank was killed": {
			job(reset, istio).pod("x", "a", 1, rank, istio, crashing(137, "OOMKilled")), "",
		},
		"it trained before": {job("epoch 3 loss 0.2\n"+reset, istio), ""},
		"a server outside": {
			job("requests.exceptions.ConnectionError: Connection reset by peer huggingface.co\n", istio), "",
		},
		"all wait, without proxy": {waiting(), ""},
		"all wait since seconds": {
			waiting(istio, func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State.Running.StartedAt = benchAgo(time.Minute)
			}), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, found := range Examine(&c.bench.Snapshot, Options{}).Items {
				if strings.HasPrefix(found.Signature, "mesh-") {
					got = found.Signature
				}
			}
			if got != c.want {
				t.Errorf("the signature is %q, want %q", got, c.want)
			}
		})
	}
}
