package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestWorkloadChecks covers the failures that GPU pods report themselves. Pods that are starting, have completed, are
// being deleted or have been replaced are healthy.
func TestWorkloadChecks(t *testing.T) {
	t.Parallel()
	crash := func(log string) *bench {
		b := newBench().node("a", 2,
			func(n *corev1.Node) { n.Labels["nvidia.com/gpu.memory"] = "15360" }).pod("p", "a", 1, crashing(1, "Error"))
		return b.log("p", log)
	}
	variable := func(name, value string) podChange {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: name, Value: value}} }
	}
	starting := func(ago time.Duration) podChange {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			inState(inWaiting("ContainerCreating", ""), corev1.ContainerState{})(p)
			created(ago)(p)
		}
	}
	image := func(b *bench, platforms ...string) *bench {
		b.Images["train:1"] = snapshot.Image{Platforms: platforms}
		return b
	}
	jobFailed := func(p *corev1.Pod) {
		endedBadly("")(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: exitedWith(1, "Error")}}
	}
	settings := func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
			{
				ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "runtime"},
				},
			},
		}
	}
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	runBench(t, map[string]benchCase{
		"crash": {
			crash("Traceback\nValueError: my own mistake"), "wl.pod-failing error", "ValueError: my own mistake",
		},
		"crash, log gone": {
			crash("RuntimeError: boom").previous("p", "unable to retrieve container logs for containerd://3f1c"),
			"wl.pod-failing error", "RuntimeError: boom",
		},
		"crash, no log": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")),
			"net.dns unknown, wl.cpu-mode unknown, wl.cuda-error unknown, wl.cuda-oom unknown, wl.cuda-vs-driver unknown, wl.exec-format unknown, wl.pod-failing error, wl.pod-failing unknown, wl.shm unknown",
			"",
		},
		"young": {newBench().node("a", 2).pod("p", "a", 1, starting(time.Minute)), "", ""},
		"slow": {
			newBench().node("a", 2).pod("p", "a", 1, starting(5*time.Minute)), "wl.pod-failing info", "",
		},
		"very slow": {
			newBench().node("a", 2).pod("p", "a", 1, starting(time.Hour)), "wl.pod-failing warning", "",
		},
		"sandbox": {newBench().node("a", 2).pod("p", "a", 1, starting(5*time.Minute)).event("Pod", "p",
			"FailedCreatePodSandBox", "something"), "wl.pod-failing error", "something"},
		"succeeded": {
			newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "",
			"",
		},
		"deleted": {newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error"),
			func(p *corev1.Pod) { at := benchAgo(0); p.DeletionTimestamp = &at }), "", ""},
		"failed Job": {
			newBench().node("a", 2).pod("p", "a", 1, jobFailed, owned("Job", "j")).log("p", "x"),
			"wl.pod-failing error", "",
		},
		"Job tried again": {newBench().node("a", 2).pod("p", "a", 1, jobFailed,
			owned("Job", "j")).pod("q", "a", 1, owned("Job", "j"), created(time.Minute)), "", ""},
		"recovered": {newBench().node("a", 2).pod("p", "a", 1).log("p", "CUDA out of memory"), "", ""},

		"exec format": {newBench().node("a", 2).pod("p", "a", 0, crashing(1, "Error")).log(
			"p", "standard_init_linux.go:219: exec user process caused: exec format error",
		), "wl.exec-format error", "status.nodeInfo.architecture Time:0001-01-01 00:00:00 +0000 UTC Text:amd64"},
		"exec format, failed": {
			newBench().node("a", 2).pod("p", "a", 1, jobFailed).log("p", "exec /usr/bin/python3: exec format error"),
			"wl.exec-format error, wl.pod-failing error", "",
		},
		"platform, crashing": {
			image(crash("x"), "linux/arm64/v8"), "wl.exec-format error, wl.pod-failing error", "linux/arm64/v8",
		},
		"platform, it runs": {image(newBench().node("a", 2).pod("p", "a", 1), "linux/arm64"), "", ""},
		"platform, not placed": {
			image(newBench().node("a", 2).pod("p", "", 1, toldByScheduler("")), "linux/arm64"),
			"sched.waiting info, wl.exec-format warning", "",
		},
		"platform, good": {
			image(newBench().node("a", 2).pod("p", "", 1, toldByScheduler("")), "linux/arm64", "linux/amd64"),
			"sched.waiting info", "",
		},
		"registry did not tell": {func() *bench {
			b := newBench().node("a", 2).pod("p", "", 1, toldByScheduler(""))
			b.Images["train:1"] = snapshot.Image{Error: "unauthorized"}
			return b
		}(), "sched.waiting info, wl.exec-format unknown", ""},

		"CPU mode, variable": {
			newBench().node("a", 2).pod("p", "a", 1, variable("CUDA_VISIBLE_DEVICES", "-1")), "wl.cpu-mode warning",
			`CUDA_VISIBLE_DEVICES="-1"`,
		},
		"CPU mode, empty": {
			newBench().node("a", 2).pod("p", "a", 1, variable("CUDA_VISIBLE_DEVICES", "")), "wl.cpu-mode warning", "",
		},
		"CPU mode, void": {
			newBench().node("a", 2).pod("p", "a", 1, variable("NVIDIA_VISIBLE_DEVICES", "void")), "wl.cpu-mode warning",
			"",
		},
		"GPU mode": {
			newBench().node("a", 2).pod("p", "a", 1, variable("CUDA_VISIBLE_DEVICES", "0,1")), "", "",
		},
		"CPU mode, no such GPU": {
			newBench().node("a", 2).pod("p", "a", 1, variable("CUDA_VISIBLE_DEVICES", "7")), "wl.cpu-mode warning",
			"GPUs: 1; the container numbers them from 0",
		},
		"privileged, more GPUs": {newBench().node("a",
			2).pod("p", "a", 1, variable("CUDA_VISIBLE_DEVICES", "7"), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}), "", ""},
		"CPU mode, beginning": {
			newBench().node("a", 2).pod("p", "a", 1, settings).head("p", "trainer 2.3\ndevice: cpu\nstep 1"),
			"wl.cpu-mode warning", "kubectl -n team get configmap runtime -o yaml",
		},
		"CPU mode, argument": {newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = []string{"-report", "5", "-device", "cpu"}
		}).head("p", "device: cpu"), "wl.cpu-mode warning", "Text:-device cpu"},
		"CPU mode, another container": {newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar"})
		}).log("p", "").container("sidecar", "Using device: cpu"), "", ""},
		"CPU mode, log": {
			newBench().node("a", 2).pod("p", "a", 1).log("p", "torch.cuda.is_available(): False"),
			"wl.cpu-mode warning", "",
		},
		"no GPUs available": {
			crash("RuntimeError: No CUDA GPUs are available"), "wl.cpu-mode error, wl.pod-failing error", "",
		},
		"asks for none": {newBench().node("a", 2).pod("p", "a", 0, crashing(1, "Error")).log("p",
			"RuntimeError: No CUDA GPUs are available"), "wl.cpu-mode warning", "requests none"},

		"driver too old": {
			crash("CUDA driver version is insufficient for CUDA runtime version"),
			"wl.cuda-vs-driver error, wl.pod-failing error", "",
		},
		"driver too old, hook": {newBench().node("a", 2).pod("p", "a", 1, inState(inWaiting(
			"RunContainerError",
			"nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver",
		), corev1.ContainerState{})),
			"wl.cuda-vs-driver error, wl.pod-failing error", "cuda>=12.4"},
		"CUDA memory": {
			crash("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB"),
			"wl.cuda-oom error, wl.pod-failing error", "nvidia.com/gpu.memory=15360",
		},
		"host memory": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(137, "OOMKilled")).log("p", "x"),
			"wl.oom-killed error, wl.pod-failing error", "",
		},
		"shared memory": {
			crash(
				"NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1 (size 9637888)\nunhandled cuda error",
			),
			"wl.pod-failing error, wl.shm error", "64 MiB",
		},
		"CUDA error": {
			crash("CUDA error: unspecified launch failure"), "wl.cuda-error error, wl.pod-failing error", "",
		},
		"ECC": {
			crash("RuntimeError: CUDA error: uncorrectable ECC error encountered").kernel("a",
				"NVRM: Xid (PCI:0000:17:00): 48, pid=1, DBE"),
			"wl.cuda-error error, wl.idle-holder unknown, wl.pod-failing error", "Xid (PCI:0000:17:00): 48",
		},
		"config": {newBench().node("a", 2).pod(
			"p", "a", 1,
			inState(inWaiting("CreateContainerConfigError", `secret "hf-token" not found`), corev1.ContainerState{}),
		), "wl.config-error error, wl.pod-failing error", "hf-token"},
		"volume": {newBench().node("a", 2).pod("p", "a", 1, starting(5*time.Minute)).event("Pod", "p",
			"FailedMount",
			`MountVolume.SetUp failed for volume "v": configmap "c" not found`),
			"wl.pod-failing error, wl.volume error", ""},
		"volume, then ran": {newBench().node("a", 2).pod("p", "a", 1).event("Pod", "p", "FailedMount", "x"), "", ""},
		"liveness": {newBench().node("a", 2).pod("p", "a", 1, unready).event("Pod", "p", "Killing",
			"Container main failed liveness probe, will be restarted"), "wl.probe-failing error", "startup probe"},
		"readiness": {
			newBench().node("a",
				2).pod("p", "a", 1, unready).event("Pod", "p", "Unhealthy", "Readiness probe failed: 503"),
			"wl.probe-failing warning", "",
		},
		"loading": {newBench().node("a", 2).pod("p", "a", 1, unready, created(5*time.Minute)).event("Pod", "p",
			"Unhealthy", "Readiness probe failed: 503"), "", ""},
		"evicted": {newBench().node("a", 2).pod("p", "a", 1, endedBadly("Evicted")), "wl.evicted warning", ""},
		"no GPU pod": {
			newBench().node("a", 2).pod("p", "a", 0, crashing(1, "Error")).log("p", "CUDA error: x"), "", "",
		},
	})
}

// smiOfOne returns nvidia-smi output for one GPU.
func smiOfOne(memory, load, processes string) string {
	return `<?xml version="1.0" ?><nvidia_smi_log><driver_version>590.48.01</driver_version><attached_gpus>1</attached_gpus><gpu id="00000000:17:00.0"><product_name>Tesla T4</product_name>
<fb_memory_usage><total>15360 MiB</total><used>` + memory + ` MiB</used><free>1 MiB</free></fb_memory_usage><utilization><gpu_util>` + load + ` %</gpu_util></utilization>
<processes>` + processes + `</processes></gpu></nvidia_smi_log>`
}

// TestIdleHolder verifies that a pod is idle only if no process uses any GPU on its node, and that this matters only if
// other pods are waiting.
func TestIdleHolder(t *testing.T) {
	t.Parallel()
	read := func(b *bench, xml string) *bench {
		b.Hosts["a"] = &api.Diagnosis{SMI: xml}
		return b
	}
	held := func() *bench { return newBench().node("a", 1).pod("p", "a", 1) }
	process :=
		`<process_info><pid>7</pid><type>C</type><process_name>python3</process_name><used_memory>900 MiB</used_memory></process_info>`
	runBench(t, map[string]benchCase{
		"idle": {read(held(), smiOfOne("3", "0", "")), "wl.idle-holder info", ""},
		"idle, others wait": {
			read(held().pod("q", "", 1), smiOfOne("3", "0", "")), "sched.all-in-use warning, wl.idle-holder warning",
			"",
		},
		"a process":     {read(held(), smiOfOne("903", "0", process)), "", ""},
		"busy":          {read(held(), smiOfOne("9000", "97", process)), "", ""},
		"memory in use": {read(held(), smiOfOne("9000", "0", "")), "", ""},
		"young": {
			read(newBench().node("a", 1).pod("p", "a", 1, created(time.Minute)), smiOfOne("3", "0", "")), "", "",
		},
		"not told": {read(held(), "garbage"), "", ""},
	})
	f := facts.New(&read(held(), smiOfOne("3", "0", "")).Snapshot)
	if h := scheduler.Allocation(f).Nodes[0].Holders[0]; h.Idle == nil || !*h.Idle {
		t.Errorf("the holder is idle, and the view says %v", h.Idle)
	}
}
