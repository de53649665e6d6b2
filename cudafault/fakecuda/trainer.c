// A sample workload that behaves like a training program on PyTorch, at the driver API: it finds the driver as cudart does (dlopen, dlsym of
// cuGetProcAddress_v2, everything else through that pointer), asks NVML for the devices, captures its step as a graph, and loops: copy a batch
// in, launch, launch the graph, wait for an event, copy out, verify the sums. On the first error it says what PyTorch would and exits 1.
//
//	trainer [-steps N] [-interval MS] [-report N] [-bytes N] [-device N|cpu|auto] [-require-cuda] [-no-graph]   (or --flag=value)
//	trainer -store PORT     keeps checkpoints for others, in memory
//	trainer -health         reads the health of GPUs by NVML, as device plugins do, see trainer-health.c
//	trainer -fabric PORT    stands in for the Fabric Manager; FABRICMANAGER_VERSION must be DRIVER_VERSION
//
// The environment has the same names: TRAINER_STEPS (0 = endless), TRAINER_INTERVAL (ms between steps, 100), TRAINER_REPORT (steps per line, 10),
// TRAINER_BYTES (held in addition, as weights would be, 0), TRAINER_DEVICE (0), TRAINER_REQUIRE_CUDA (0). And:
//
//	MODEL_MEMORY, ACTIVATION_MEMORY, BATCH_SIZE, PRECISION   what it holds, see trainer-memory.c
//	GRADIENT_ACCUMULATION (1)   batches between two updates of the weights: the effective batch is so many times larger, and needs no more memory
//	NUM_WORKERS, PREFETCH_FACTOR, SAMPLE_SIZE   the data loader and its shared memory, see trainer-loader.c
//	RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT   ranks that wait for each other, see trainer-ranks.c
//	STEP_CPU_MS (0)         processor time that each step needs, as for preparing its data
//	CHECKPOINT, CHECKPOINT_EVERY (50)   a file or http://HOST:PORT/NAME to resume from and to save to, and how many steps apart
//	METRICS_PORT            serves /metrics, /readyz (a step was done in the last 10 s) and /healthz there
//	FRAMEWORK=tensorflow, TRAINING_SCRIPT   TensorFlow's messages, and a script that chooses the device, see trainer-framework.c
//	TRAINER_SIMULATION=allocated   the simulated driver is in the container only if the device plugin gave it a device, as NVIDIA's is
//	LAB_NVSWITCH            http://HOST:PORT/fabric of the node's Fabric Manager: without an answer, CUDA does not start (802)
//	TRAINER_HEALTH=1        trains in a second process, and reads the health of the GPUs, see trainer-health.c
//	TRAINER_RESTARTS (0)    how often training starts again in the same container when it fails; requires TRAINER_HEALTH
//	TRAINER_BUFFERED=1      keeps lines in a buffer of 8 KiB, as Python does on a pipe; PYTHONUNBUFFERED=1 prevents that, as there
//
// It works on the CPU, ten times slower, where frameworks do so without a word: when there is no driver, or CUDA_VISIBLE_DEVICES or
// NVIDIA_VISIBLE_DEVICES leave no device. A device that is there and fails is an error, but for TRAINER_DEVICE=auto, and so is none with
// TRAINER_REQUIRE_CUDA=1. SIGTERM ends it after the step: with exit code 0, or with 143 if it has a number of steps.
#define _GNU_SOURCE
#include "trainer.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ELEMENTS = 4096, BYTES = ELEMENTS * sizeof(float), NO_DEVICE = 100, SLOWER = 10 };
static const float half = 0.5f;
static float in[ELEMENTS], out[ELEMENTS];
static volatile sig_atomic_t stop;
static void on_term(int signal) { stop = signal; }
int stopping(void) { return stop != 0; }

void check(int code, const char *call)
{
	const char *text = NULL;
	if (code == 0) return;
	if (cu.cuGetErrorString) cu.cuGetErrorString(code, &text);
	fflush(stdout);
	fprintf(stderr, "RuntimeError: CUDA error: %s (%d)\n  in %s\n", text ? text : "unrecognized error code", code, call);
	exit(1);
}

static struct settings { long steps, interval, report, bytes, every, device, require, graphs, busy; int cpu, any; const char *checkpoint; } settings;

static long setting(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 0) : otherwise;
}

// A device as PyTorch names it: 1, cuda:1, cuda, cpu, auto (cuda if it is available).
static void choose_device(const char *text)
{
	settings.cpu = !strcmp(text, "cpu"), settings.any = !strcmp(text, "auto");
	if (!strncmp(text, "cuda", 4)) text += text[4] == ':' ? 5 : 4;
	settings.device = strtol(text, NULL, 0);
}

static void read_environment(void)
{
	const char *device = getenv("TRAINER_DEVICE"), *checkpoint = getenv("CHECKPOINT");
	settings = (struct settings){.graphs = 1,
		.steps = setting("TRAINER_STEPS", 0), .interval = setting("TRAINER_INTERVAL", 100), .report = setting("TRAINER_REPORT", 10),
		.bytes = setting("TRAINER_BYTES", 0), .every = setting("CHECKPOINT_EVERY", 50), .busy = setting("STEP_CPU_MS", 0),
		.require = setting("TRAINER_REQUIRE_CUDA", 0),
		.checkpoint = checkpoint && *checkpoint ? checkpoint : NULL};
	if (device) choose_device(device);
}

static int is(const char *flag, size_t length, const char *name)
{
	return strlen(name) == length && !strncmp(flag, name, length);
}

// 0: go on; else the exit code.
static int read_arguments(int argc, char **argv)
{
	const struct { const char *flag; long *value; } flags[] = {
		{"-steps", &settings.steps}, {"-interval", &settings.interval}, {"-report", &settings.report}, {"-bytes", &settings.bytes},
	};
	for (int i = 1; i < argc; i++) {
		const char *given = argv[i], *flag = given + (given[0] == '-' && given[1] == '-'), *value = strchr(flag, '=');
		size_t f = 0, length = value ? (size_t)(value - flag) : strlen(flag);
		if (is(flag, length, "-no-graph")) { settings.graphs = 0; continue; }
		if (is(flag, length, "-require-cuda")) { settings.require = 1; continue; }
		if (value) value++; // -flag=value
		else if (i + 1 < argc) value = argv[++i];
		if (value && is(flag, length, "-device")) { choose_device(value); continue; }
		while (f < sizeof flags / sizeof *flags && !is(flag, length, flags[f].flag)) f++;
		if (f == sizeof flags / sizeof *flags || !value) return fprintf(stderr, "trainer: unknown argument %s\n", given), 2;
		*flags[f].value = strtol(value, NULL, 0);
	}
	if (settings.report < 1) settings.report = 1;
	if (settings.every < 1) settings.every = 1;
	return 0;
}

int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(long ms)
{
	struct timespec left = {ms / 1000, ms % 1000 * 1000000};
	while (ms > 0 && !stop && nanosleep(&left, &left) && errno == EINTR) {}
}

static void use_cpu(long ms)
{
	struct timespec used, now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - used.tv_sec) * 1000 + (now.tv_nsec - used.tv_nsec) / 1000000 < ms);
}

static struct { uint64_t a, b, sum; void *add, *fill, *stream, *event, *exec; } gpu;
static int n = ELEMENTS;
static void *fill_arguments[] = {&gpu.b, (void *)&half, &n}, *add_arguments[] = {&gpu.a, &gpu.b, &gpu.sum, &n};
#define ADD CHECK(cuLaunchKernel(gpu.add, ELEMENTS / 256, 1, 1, 256, 1, 1, 0, gpu.stream, add_arguments, NULL))

// Takes the device; 0: there is none, and the CPU will do.
static int take_gpu(void)
{
	int may = !settings.require, count = 0, version = 0, handle = 0;
	settings.cpu |= script_chooses_cpu();
	if (settings.cpu) return report_cpu(1, 1), 0;
	if (load_driver() == NONE) {
		if (may) return report_cpu(0, 0), 0;
		fprintf(stderr, "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
			"http://www.nvidia.com/Download/index.aspx\n");
		exit(1);
	}
	int nvml = nvml_count();
	CHECK(cuDriverGetVersion(&version));
	int code = cu.cuInit(0);
	if (!code) code = fabric_state();
	if (code == NO_DEVICE && may && (settings.any || hidden_by_environment(nvml))) return report_cpu(0, 1), 0;
	check(code, "cuInit(0)");
	CHECK(cuDeviceGetCount(&count));
	CHECK(cuDeviceGet(&handle, (int)settings.device));
	char name[64] = "";
	size_t total = 0, available = 0;
	void *context;
	CHECK(cuDeviceGetName(name, sizeof name, handle));
	CHECK(cuDeviceTotalMem(&total, handle));
	CHECK(cuDevicePrimaryCtxRetain(&context, handle));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemGetInfo(&available, &total));
	report_gpu(settings.device, name, version, count, nvml, available, total);
	return 1;
}

static void prepare_gpu(void)
{
	uint64_t weights = 0;
	void *module, *graph = NULL;
	if (settings.bytes > 0) CHECK(cuMemAlloc(&weights, (size_t)settings.bytes));
	hold_model((int)settings.device);
	CHECK(cuMemAlloc(&gpu.a, BYTES));
	CHECK(cuMemAlloc(&gpu.b, BYTES));
	CHECK(cuMemAlloc(&gpu.sum, BYTES));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&gpu.add, module, "vectorAdd"));
	CHECK(cuModuleGetFunction(&gpu.fill, module, "fill"));
	CHECK(cuStreamCreate(&gpu.stream, 1));
	CHECK(cuEventCreate(&gpu.event, 2));
	if (!settings.graphs) return;
	CHECK(cuStreamBeginCapture(gpu.stream, 0));
	ADD;
	CHECK(cuStreamEndCapture(gpu.stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&gpu.exec, graph, 0));
}

static void step_on_gpu(void)
{
	CHECK(cuMemcpyHtoDAsync(gpu.a, in, BYTES, gpu.stream));
	CHECK(cuMemsetD8Async(gpu.sum, 0, BYTES, gpu.stream));
	CHECK(cuLaunchKernel(gpu.fill, ELEMENTS / 256, 1, 1, 256, 1, 1, 0, gpu.stream, fill_arguments, NULL));
	if (gpu.exec) CHECK(cuGraphLaunch(gpu.exec, gpu.stream));
	else ADD;
	CHECK(cuEventRecord(gpu.event, gpu.stream));
	CHECK(cuEventSynchronize(gpu.event));
	CHECK(cuMemcpyDtoH(out, gpu.sum, BYTES));
}

static void step_on_cpu(void)
{
	for (int i = 0; i < ELEMENTS; i++) out[i] = in[i] + half;
}

// Does a step and says how it went.
static void train(long step, int on_gpu)
{
	int64_t begin = now_ms();
	next_batch();
	if (settings.busy > 0) use_cpu(settings.busy);
	for (int i = 0; i < ELEMENTS; i++) in[i] = (float)((step + i) % 1000);
	if (on_gpu) step_on_gpu();
	else step_on_cpu();
	for (int i = 0; i < ELEMENTS; i++) {
		if (out[i] == in[i] + half) continue;
		fflush(stdout);
		fprintf(stderr, "AssertionError: step %ld: element %d is %.9g, not %.9g\n", step, i, out[i], in[i] + half);
		exit(1);
	}
	all_reduce();
	progress.seconds += ((double)(now_ms() - begin) / 1000 - progress.seconds) / (step - progress.first < 8 ? (double)(step - progress.first) : 8);
	// What it computes has no loss: this is the shape of one.
	progress.loss = 0.4 + 9.6 / (1 + (double)step / 150) + (double)(step * 7919 % 101) / 2500;
	progress.at = now_ms();
	progress.step = step;
	progress.samples += progress.batch;
	if (step % settings.report == 0) printf("step %ld loss %.3f\n", step, progress.loss);
	if (settings.checkpoint && step % settings.every == 0) save(settings.checkpoint, step);
}

static void buffer_output(void)
{
	const char *unbuffered = getenv("PYTHONUNBUFFERED");
	int buffered = setting("TRAINER_BUFFERED", 0) && !(unbuffered && *unbuffered);
	setvbuf(stdout, NULL, buffered ? _IOFBF : _IOLBF, buffered ? 8192 : 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-store")) return setvbuf(stdout, NULL, _IOLBF, 0), serve_store(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "-fabric")) return setvbuf(stdout, NULL, _IOLBF, 0), serve_fabric(atoi(argv[2]));
	if (argc == 2 && !strcmp(argv[1], "-health")) return setvbuf(stdout, NULL, _IOLBF, 0), watch_health();
	read_environment();
	int code = read_arguments(argc, argv);
	if (code) return code;
	buffer_output();
	if (setting("TRAINER_HEALTH", 0)) return supervise(argv, setting("TRAINER_RESTARTS", 0));
	signal(SIGTERM, on_term);
	signal(SIGINT, on_term);

	start_loader();
	int on_gpu = take_gpu();
	progress.ordinal = (int)settings.device;
	progress.device = on_gpu ? "cuda" : "cpu";
	if (on_gpu) prepare_gpu();
	else settings.interval *= SLOWER;
	long port = setting("METRICS_PORT", 0), first = settings.checkpoint ? resume(settings.checkpoint) : 0;
	progress.first = progress.step = first;
	progress.batch = setting("BATCH_SIZE", 1) * setting("GRADIENT_ACCUMULATION", 1);
	if (port && !on_gpu) (void)nvml_count(); // which nobody has asked yet: the metrics tell of an idle device too
	if (port) serve_metrics((int)port);
	if (first) printf("resumed from checkpoint at step %ld\n", first);
	else if (settings.checkpoint) printf("no checkpoint yet: starting at step 1\n");

	join_ranks();
	for (long step = first + 1; !stop && (settings.steps == 0 || step <= settings.steps); step++) {
		train(step, on_gpu);
		pause_ms(settings.interval);
	}
	if (on_gpu) CHECK(cuCtxSynchronize());
	// A Job must not count a rank as succeeded that was terminated before its last step.
	if (stop && settings.steps) return printf("terminated\n"), 128 + stop;
	if (settings.steps) printf("finished %ld steps\n", settings.steps);
	printf("done\n");
	return 0;
}
