//go:build shim

package shim

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// TestTrainerOnTheCPU protects the exercise about idle GPUs: as frameworks do, the sample workload goes to the CPU
// without a word when the environment leaves it no device, and only then: a device that fails is an error.
func TestTrainerOnTheCPU(t *testing.T) {
	for _, test := range []struct {
		name string
		env  map[string]string
		args []string
		code int
		says string
	}{
		{"there is one", nil, nil, 0, "device: cuda:0 "},
		{"named", map[string]string{"CUDA_VISIBLE_DEVICES": "0"}, nil, 0, "device: cuda:0 "},
		{"hidden", map[string]string{"CUDA_VISIBLE_DEVICES": ""}, nil, 0, "device: cpu\n"},
		{"hidden as in Python", map[string]string{"CUDA_VISIBLE_DEVICES": "-1"}, nil, 0, "device: cpu\n"},
		{"not there", map[string]string{"CUDA_VISIBLE_DEVICES": "7"}, nil, 0, "device: cpu\n"},
		{
			"none of the runtime's", map[string]string{"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": "-1"},
			nil, 0, "device: cpu\n",
		},
		{"asked for", nil, []string{"-device", "cpu"}, 0, "device: cpu\n"},
		{
			"hidden, and insisted on", map[string]string{"CUDA_VISIBLE_DEVICES": ""}, []string{"-require-cuda"}, 1,
			"no CUDA-capable device is detected (100)",
		},
		{"broken", map[string]string{"FAKECUDA_INIT": "100"}, nil, 1, "no CUDA-capable device is detected (100)"},
		{
			"broken, and it does not matter", map[string]string{"FAKECUDA_INIT": "100"}, []string{"-device", "auto"}, 0,
			"device: cpu\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			for name, value := range test.env {
				p.env[name] = value
			}
			got := p.runProgram(p.program("trainer"),
				append([]string{"-steps", "3", "-interval", "0"}, test.args...)...)
			if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTrainerFramework protects the exercise about idle GPUs: the messages are those of the framework, and a training
// script chooses the device.
func TestTrainerFramework(t *testing.T) {
	const (
		tensorflow = "tensorflow"
		onCPU      = "visible devices: [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]\n"
		onGPU      = "PhysicalDevice(name='/physical_device:GPU:0', device_type='GPU')]\n"
	)
	for _, test := range []struct {
		name, framework, visible, script string
		says                             []string
	}{
		{
			"TensorFlow", tensorflow, "0", "",
			[]string{"Created device /job:localhost/replica:0/task:0/device:GPU:0", onGPU},
		},
		{
			"hidden from TensorFlow", tensorflow, "-1", "",
			[]string{"failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", onCPU},
		},
		{
			"TensorFlow's script gives it up", tensorflow, "0",
			"import tensorflow as tf\ntf.config.set_visible_devices([], 'GPU')\n", []string{onCPU},
		},
		{
			"a comment gives nothing up", tensorflow, "0", "# tf.config.set_visible_devices([], 'GPU')\n",
			[]string{onGPU},
		},
		{
			"TensorFlow's script selects one", tensorflow, "0",
			"gpus = tf.config.list_physical_devices('GPU')\ntf.config.set_visible_devices(gpus[:1], 'GPU')\n",
			[]string{onGPU},
		},
		{"PyTorch's script", "", "0", "device = torch.device(\"cpu\")\n", []string{"device: cpu\n"}},
		{"PyTorch's script selects one", "", "0", "device = torch.device('cuda:0')\n", []string{"device: cuda:0 "}},
		{
			"a script hides it", "", "0", "os.environ[\"CUDA_VISIBLE_DEVICES\"] = \"-1\"\n", []string{"device: cpu\n"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.env["FRAMEWORK"], p.env["CUDA_VISIBLE_DEVICES"] = test.framework, test.visible
			if test.script != "" {
				p.env["TRAINING_SCRIPT"] = filepath.Join(folder(t), "train.py")
				if err := os.WriteFile(p.env["TRAINING_SCRIPT"], []byte(test.script), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := p.runProgram(p.program("trainer"), "-steps", "3", "-interval", "0")
			for _, says := range test.says {
				if got.code != 0 || !strings.Contains(got.stdout+got.stderr, says) {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}

// TestTrainerMemory protects the exercise about memory: the words and the numbers are PyTorch's, and the settings
// decide.
func TestTrainerMemory(t *testing.T) {
	model := map[string]string{"MODEL_MEMORY": "12Gi", "ACTIVATION_MEMORY": "640Mi"}
	for _, test := range []struct {
		name string
		env  map[string]string
		code int
		says string
	}{
		{
			"too much", map[string]string{"BATCH_SIZE": "32"}, 1,
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.77 GiB is free.",
		},
		{"fewer samples", map[string]string{"BATCH_SIZE": "4"}, 0, "done\n"},
		{
			"half the precision, half the samples", map[string]string{"BATCH_SIZE": "16", "PRECISION": "bf16"}, 0,
			"done\n",
		},
		{"half the precision", map[string]string{"BATCH_SIZE": "32", "PRECISION": "bf16"}, 1, "torch.OutOfMemoryError"},
		{"no such precision", map[string]string{"PRECISION": "int8"}, 1, "ValueError: PRECISION: 'int8'"},
		{
			"no samples", map[string]string{"BATCH_SIZE": "0"}, 1,
			"ValueError: batch_size should be a positive integer value",
		},
		{"no size", map[string]string{"MODEL_MEMORY": "much"}, 1, "ValueError: MODEL_MEMORY: 'much' is no size"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.arm(all(cudafault.State{MemLimit: 16148 << 20, Flags: cudafault.FlagQuiet}))
			p.env["LD_PRELOAD"] = p.on.library(t)
			for _, env := range []map[string]string{model, test.env} {
				for name, value := range env {
					p.env[name] = value
				}
			}
			got := p.runProgram(p.program("trainer"), "-steps", "3", "-interval", "0")
			if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTrainerResumes protects the exercise about a GPU that is lost: what was saved is where the next process begins,
// from a file as from a store, and a store that does not answer is no new beginning.
func TestTrainerResumes(t *testing.T) {
	port := serves(t, "-store")
	for name, checkpoint := range map[string]string{
		"file": filepath.Join(folder(t), "checkpoint"), "store": fmt.Sprintf("http://127.0.0.1:%d/run", port),
		"store by name": fmt.Sprintf("http://localhost:%d/other", port),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.env["CHECKPOINT"], p.env["CHECKPOINT_EVERY"] = checkpoint, "20"
			for _, step := range []struct{ steps, says string }{
				{"50", "no checkpoint yet: starting at step 1\n"}, {"70", "resumed from checkpoint at step 40\n"},
			} {
				if got := p.runProgram(p.program("trainer"), "-steps", step.steps, "-interval", "0"); got.code != 0 ||
					!strings.Contains(got.stdout, step.says) {
					t.Errorf("%s steps: %+v", step.steps, got)
				}
			}
		})
	}
	for step, want := range map[string]int{"step 39\n": http.StatusConflict, "step 80\n": http.StatusNoContent} {
		url := fmt.Sprintf("http://127.0.0.1:%d/run", port)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(step))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("saving %q after step 60: status %d, want %d", step, answer.StatusCode, want)
		}
	}
	p := newPod(t)
	p.env["CHECKPOINT"] = fmt.Sprintf("http://127.0.0.1:%d/run", freePort(t))
	if got := p.runProgram(p.program("trainer"), "-steps", "5"); got.code != 1 ||
		!strings.Contains(got.stderr, "no answer") {
		t.Errorf("without a store: %+v", got)
	}
}

// serves starts the trainer as a server, and returns its port.
func serves(t *testing.T, mode string) int {
	t.Helper()
	port := freePort(t)
	server := exec.Command(newPod(t).program("trainer"), mode, fmt.Sprint(port))
	server.Env = []string{"FABRICMANAGER_VERSION=590.48.01", "DRIVER_VERSION=590.48.01"}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			return port
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestTrainerFabric protects the exercise about the Fabric Manager: CUDA starts only if the one of the node answers,
// which another server does not replace, and it takes no other driver than its own.
func TestTrainerFabric(t *testing.T) {
	for _, test := range []struct {
		name string
		port int
		code int
		says string
	}{
		{"it runs", serves(t, "-fabric"), 0, "done\n"},
		{"it does not", freePort(t), 1, "CUDA error: system not yet initialized (802)"},
		{"another server", serves(t, "-store"), 1, "CUDA error: system not yet initialized (802)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.env["LAB_NVSWITCH"] = fmt.Sprintf("http://127.0.0.1:%d/fabric", test.port)
			got := p.runProgram(p.program("trainer"), "-steps", "3", "-interval", "0")
			if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) {
				t.Errorf("%+v", got)
			}
		})
	}
	p := newPod(t)
	p.env["FABRICMANAGER_VERSION"], p.env["DRIVER_VERSION"] = "590.44.01", "590.48.01"
	got := p.runProgram(p.program("trainer"), "-fabric", fmt.Sprint(freePort(t)))
	if got.code != 1 || !strings.Contains(got.stderr, "version 590.44.01 don't match with driver version 590.48.01") {
		t.Errorf("of another version: %+v", got)
	}
}

// TestTrainerHealth protects the test of all layers: the supervisor prints an XID that it gets by NVML, goes on when
// training fails, and ends with the exit code of the last try.
func TestTrainerHealth(t *testing.T) {
	for name, test := range map[string]struct {
		env   map[string]string
		code  int
		tries int
		says  string
	}{
		"it trains": {nil, 0, 1, "done\n"},
		"an XID":    {map[string]string{"FAKECUDA_EVENT": "48:50"}, 0, 1, "NVML: Xid=48 on GPU 0 00000000:17:00.0\n"},
		"it fails":  {map[string]string{"FAKECUDA_INIT": "100"}, 1, 3, "no CUDA-capable device is detected (100)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.env["TRAINER_HEALTH"], p.env["TRAINER_RESTARTS"] = "1", "2"
			for name, value := range test.env {
				p.env[name] = value
			}
			got := p.runProgram(p.program("trainer"), "-steps", "3", "-interval", "100")
			text := got.stdout + got.stderr
			tries := strings.Count(text, "device: ") + strings.Count(text, "(100)")
			if got.code != test.code || tries != test.tries || !strings.Contains(text, test.says) {
				t.Errorf("%d tries: %+v", tries, got)
			}
		})
	}
}

// TestTrainerCompat protects the exercise about driver versions: the library of the image counts only if
// LD_LIBRARY_PATH has it before that of the node.
func TestTrainerCompat(t *testing.T) {
	bin := newPod(t).env["LD_LIBRARY_PATH"]
	for path, says := range map[string]string{
		bin + "/compat:" + bin:      "system has unsupported display driver / cuda driver combination (803)",
		bin + ":" + bin + "/compat": "done\n",
	} {
		p := newPod(t)
		p.env["LD_LIBRARY_PATH"] = path
		got := p.runProgram(p.program("trainer"), "-steps", "3", "-interval", "0")
		if !strings.Contains(got.stdout+got.stderr, says) {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// TestTrainerBuffers protects the exercise about missing logs: lines come when the buffer is full or the program ends,
// unless Python's own variable says otherwise.
func TestTrainerBuffers(t *testing.T) {
	for _, test := range []struct {
		env  []string
		soon bool
	}{
		{nil, true}, {[]string{"TRAINER_BUFFERED=1"}, false},
		{[]string{"TRAINER_BUFFERED=1", "PYTHONUNBUFFERED=1"}, true},
	} {
		p := newPod(t)
		program := exec.Command(p.program("trainer"), "-interval", "1000")
		program.Env = append([]string{"LD_LIBRARY_PATH=" + p.env["LD_LIBRARY_PATH"], "TRAINER_REPORT=1"}, test.env...)
		out, err := program.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		read := make(chan string, 1)
		go func() {
			text := make([]byte, 4096)
			n, _ := out.Read(text)
			read <- string(text[:n])
		}()
		select {
		case text := <-read:
			if !test.soon {
				t.Errorf("%v: it wrote %q at once", test.env, text)
			}
		case <-time.After(2500 * time.Millisecond): // two steps and more
			if test.soon {
				t.Errorf("%v: it wrote nothing", test.env)
			}
		}
		_ = program.Process.Kill()
		_ = program.Wait()
	}
}

// TestTrainerLoadsData protects the exercise about shared memory: the workers' batches really are in /dev/shm, and when
// it is full, a worker dies and the program ends with PyTorch's words.
func TestTrainerLoadsData(t *testing.T) {
	for _, test := range []struct {
		name, workers, shm string
		code               int
		says               string
	}{
		{"enough", "2", "64m", 0, "done\n"},
		{"none, and no workers", "0", "1m", 0, "done\n"},
		{
			"too little", "2", "20m", 1,
			"is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
		},
		{"too many", "1000", "64m", 1, "ValueError: NUM_WORKERS must be from 0 to 64, but got 1000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.env["NUM_WORKERS"], p.env["BATCH_SIZE"], p.env["SAMPLE_SIZE"] = test.workers, "8", "1Mi" // 32 MiB
			script := "mount -t tmpfs -o size=" + test.shm + " none /dev/shm && exec " + p.program("trainer")
			got := p.runProgram("unshare", "-rm", "sh", "-c", script+" -device cpu -steps 5 -interval 0")
			if strings.HasPrefix(got.stderr, "unshare: ") {
				t.Skip(got.stderr) // without root, on a kernel that does not allow it
			}
			if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTrainerRanks protects the exercises about trainings of several ranks: they wait for each other at the beginning
// and in each step, and who waits too long says which operation it was, as the rest say that a peer is gone.
func TestTrainerRanks(t *testing.T) {
	for _, test := range []struct {
		name  string
		ranks []map[string]string
		says  []string
		codes []int
	}{
		{"all", []map[string]string{{}, {}}, []string{"finished 5 steps", "finished 5 steps"}, []int{0, 0}},
		{
			"one is slow", []map[string]string{{"COLLECTIVE_TIMEOUT": "1"}, {"STEP_CPU_MS": "3000"}},
			[]string{
				"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE,",
				"remote process exited or there was a network error",
			}, []int{134, 1},
		},
		{
			"one is missing", []map[string]string{{"WORLD_SIZE": "3"}, {"RENDEZVOUS_TIMEOUT": "30"}},
			[]string{
				"DistStoreError: Timed out after 3 seconds waiting for clients. 2/3 clients joined.",
				"remote process exited or there was a network error",
			}, []int{1, 1},
		},
		{
			"another address", []map[string]string{{}, {"MASTER_PORT": "1"}},
			[]string{
				"1/2 clients joined.",
				"The client socket has timed out after 2000ms while trying to connect to (127.0.0.1, 1).",
			}, []int{1, 1},
		},
		{"a single one", []map[string]string{{"WORLD_SIZE": "1"}}, []string{"finished 5 steps"}, []int{0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			port, results := fmt.Sprint(freePort(t)), make([]result, len(test.ranks))
			var done sync.WaitGroup
			for rank, env := range test.ranks {
				p := newPod(t)
				p.env["RANK"], p.env["WORLD_SIZE"] = fmt.Sprint(rank), fmt.Sprint(len(test.ranks))
				p.env["MASTER_ADDR"], p.env["MASTER_PORT"], p.env["RENDEZVOUS_TIMEOUT"] = "127.0.0.1", port, "2"
				for name, value := range env {
					p.env[name] = value
				}
				done.Go(func() {
					results[rank] = p.runProgram(p.program("trainer"), "-device", "cpu", "-steps", "5", "-interval",
						"0")
				})
			}
			done.Wait()
			for rank, got := range results {
				if got.code != test.codes[rank] || !strings.Contains(got.stdout+got.stderr, test.says[rank]) {
					t.Errorf("rank %d: %+v", rank, got)
				}
			}
		})
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
