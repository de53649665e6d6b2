package workload

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// TestHides covers values that hide GPUs and values that do not.
func TestHides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value string
		devices     int64
		want        bool
	}{
		{"CUDA_VISIBLE_DEVICES", "", 1, true}, {"CUDA_VISIBLE_DEVICES", "-1", 1, true},
		{"CUDA_VISIBLE_DEVICES", "-1,0", 1, true}, {"CUDA_VISIBLE_DEVICES", "0", 1, false},
		{"CUDA_VISIBLE_DEVICES", "0,-1", 1, false}, {"NVIDIA_VISIBLE_DEVICES", "void", 1, true},
		{"NVIDIA_VISIBLE_DEVICES", "all", 1, false}, {"HOME", "", 1, false},
		{"CUDA_VISIBLE_DEVICES", "NoDevFiles", 1, true}, {"CUDA_VISIBLE_DEVICES", "7", 1, true},
		{"CUDA_VISIBLE_DEVICES", " 1 ,0", 1, true}, {"CUDA_VISIBLE_DEVICES", "1", 2, false},
		{"CUDA_VISIBLE_DEVICES", "2", 2, true}, {"CUDA_VISIBLE_DEVICES", "7", 0, false},
		{"CUDA_VISIBLE_DEVICES", "GPU-8932f937", 1, false}, {"CUDA_VISIBLE_DEVICES", "MIG-1", 1, false},
	} {
		if got := hides(c.name, c.value, c.devices); got != c.want {
			t.Errorf("hides(%s=%q) of %d is %v, want %v", c.name, c.value, c.devices, got, c.want)
		}
	}
}

// TestCPULine covers real output from programs that compute on the CPU, and similar lines.
func TestCPULine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"device: cpu":       true,
		"Using device: cpu": true,
		"Using cpu device":  true,
		"Using device: cpu\nWrapping the env in a DummyVecEnv.": true,
		"Use CPU":               true,
		"Device set to use cpu": true,
		"INFO:sentence_transformers.SentenceTransformer:Use pytorch device_name: cpu":                                                                true,
		"2025-05-30 21:38:47,092 - INFO - [sentence_transformers.SentenceTransformer:211] - Use pytorch device_name: cpu":                            true,
		"06/13/2024 10:23:16 - WARNING - __main__ -   device: cpu, n_gpu: 0":                                                                         true,
		"09/08/2022 14:20:22 - WARNING - __main__ -   Process rank: -1, device: cpu, n_gpu: 0, distributed training: False, 16-bits training: False": true,
		"GPU available: False, used: False\nTPU available: False, using: 0 TPU cores":                                                                true,
		"GPU available: True (cuda), used: False":                                                                                                    true,
		"WARNING:jax._src.lib.xla_bridge:No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)":               true,
		"An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.":                             true,
		"2020-03-09 14:02:19.250076: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1592] Cannot dlopen some GPU libraries. Please make sure":    true,
		"[10:00:01] WARNING: /workspace/src/context.cc:49: No visible GPU is found, setting device to CPU.":                                          true,
		"/usr/lib/python3/whisper/transcribe.py:132: UserWarning: FP16 is not supported on CPU; using FP32 instead":                                  true,
		"warning: no usable GPU found, --gpu-layers option will be ignored":                                                                          true,
		"torch.cuda.is_available(): False": true,
		"device: cpu\nstep 1\nstep 2":      true,

		"device: cuda:0 NVIDIA T4, driver 13000, 1 of 1 devices":   false,
		`  "offload_optimizer": {` + "\n" + `    "device": "cpu",`: false,
		"offload_optimizer:\n  device: cpu":                        false,
		"[2024-05-01 10:00:00,000] [INFO] [config.py:1000:print]   zero_config ... offload_param=DeepSpeedZeroOffloadParamConfig(device='cpu', nvme_path=None": false,
		"offload_optimizer_device: cpu":                             false,
		"Loading checkpoint to device: cpu":                         false,
		"Using device: cpu for the tokenizer\nUsing device: cuda:0": false,
		"Using device: cpu\nNCCL version 2.21.5+cuda12.4":           false,
		"GPU available: True (cuda), used: True":                    false,
		"Using CPU cores: 8":                                        false,
		"cpu: 8\nmemory: 32Gi":                                      false,
		"cuml.accel: falling back to CPU for this estimator":        false,
		"device: cpuset":                                            false,
		"model on CPU, moving it\nmodel moved to device cuda":       false,
		"": false,
	} {
		if line, got := cpuLine(text); got != want {
			t.Errorf("saysCPU(%q) is %v (%q), want %v", text, got, line, want)
		}
	}
}

func FuzzSaysCPU(f *testing.F) {
	f.Add("device: cpu")
	f.Fuzz(func(t *testing.T, text string) {
		if line, found := cpuLine(text); found != (line != "") || !strings.Contains(text, line) {
			t.Errorf("%q is not a line of %q", line, text)
		}
	})
}

// TestCUDAVersions verifies for which programs a driver is too old. Since CUDA 11, it is not too old for any program
// with the same major version.
func TestCUDAVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		driver, program string
		fits            bool
	}{
		{"cuda12.4", "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1", true}, {"cuda12.2", "vllm:cu124", true},
		{"cuda12.4", "nvidia/cuda:13.0.1-base", false}, {"cuda9.2", "cuda>=10.0", false},
		{"cuda10.2", "cuda10.1", true}, {"cuda12.2", "rapidsai/notebooks:25.10-cuda13-py3.13", false},
		{"cuda13.0", "x/y:1.0-cu12", true}, {"cuda12.4", "pytorch:2.9-cuda128", true},
		{"cuda12.2", "z:cuda-13-0", false},
	} {
		driver, program := cudaIn(c.driver), cudaIn(c.program)
		if program == (version{}) || driver.fits(program) != c.fits {
			t.Errorf("%s %v for %s %v: want %v", c.driver, driver, c.program, program, c.fits)
		}
	}
	for _, text := range []string{"registry/model-server:v2-gpu", "cuda2go/server:1", "icu74"} {
		if got := cudaIn(text); got != (version{}) {
			t.Errorf("a version %v where none is, in %s", got, text)
		}
	}
	for driver, want := range map[string]version{
		"535.274.02": {12, 2}, "580.65.06": {13, 0}, "": {}, "352.1": {}, "600.1": {13, 1},
	} {
		n := &facts.Node{Node: &corev1.Node{}, GPUs: func() *facts.GPUView { return &facts.GPUView{} }}
		n.Labels = map[string]string{"nvidia.com/cuda.driver-version.full": driver}
		if got := cudaOn(n); got != want {
			t.Errorf("the driver %q serves CUDA %v, want %v", driver, got, want)
		}
	}
}
