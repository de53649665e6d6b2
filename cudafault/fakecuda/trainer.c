// A sample workload that behaves like a training program on PyTorch, at the driver API: it finds the driver as cudart does (dlopen, dlsym of
// cuGetProcAddress_v2, everything else through that pointer), asks NVML for the devices, captures its step as a graph, and loops: copy a batch
// in, launch, launch the graph, wait for an event, copy out, verify the sums. On the first error it says what PyTorch would and exits 1.
//
//	trainer [-steps N] [-interval MS] [-report N] [-bytes N] [-device N] [-no-graph]
//
// The environment has the same names: TRAINER_STEPS (0 = endless), TRAINER_INTERVAL (ms between steps, 100), TRAINER_REPORT (steps per line, 10),
// TRAINER_BYTES (held in addition, as weights would be, 0), TRAINER_DEVICE (0). SIGTERM ends it after the step, with exit code 0.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*lookup_t)(const char *, void **, int, uint64_t, int *);

// X(name asked for, version asked for, parameters): the versions are those that cudart 12.4 asks for.
#define DRIVER(X) \
	X(cuGetErrorString, 6000, (int, const char **)) \
	X(cuDriverGetVersion, 2020, (int *)) \
	X(cuInit, 2000, (unsigned)) \
	X(cuDeviceGetCount, 2000, (int *)) \
	X(cuDeviceGet, 2000, (int *, int)) \
	X(cuDeviceGetName, 2000, (char *, int, int)) \
	X(cuDeviceTotalMem, 3020, (size_t *, int)) \
	X(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
	X(cuCtxSetCurrent, 4000, (void *)) \
	X(cuCtxSynchronize, 2000, (void)) \
	X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
	X(cuMemAlloc, 3020, (uint64_t *, size_t)) \
	X(cuModuleLoadData, 2000, (void **, const void *)) \
	X(cuModuleGetFunction, 2000, (void **, void *, const char *)) \
	X(cuStreamCreate, 2000, (void **, unsigned)) \
	X(cuEventCreate, 2000, (void **, unsigned)) \
	X(cuEventRecord, 2000, (void *, void *)) \
	X(cuEventSynchronize, 2000, (void *)) \
	X(cuMemcpyHtoDAsync, 3020, (uint64_t, const void *, size_t, void *)) \
	X(cuMemcpyDtoH, 3020, (void *, uint64_t, size_t)) \
	X(cuMemsetD8Async, 3020, (uint64_t, unsigned char, size_t, void *)) \
	X(cuLaunchKernel, 4000, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuStreamBeginCapture, 10010, (void *, int)) \
	X(cuStreamEndCapture, 10000, (void *, void **)) \
	X(cuGraphInstantiateWithFlags, 11040, (void **, void *, uint64_t)) \
	X(cuGraphLaunch, 10000, (void *, void *))

static struct {
#define FIELD(name, version, parameters) int (*name) parameters;
	DRIVER(FIELD)
} cu;

enum { ELEMENTS = 4096, BYTES = ELEMENTS * sizeof(float) };
static volatile sig_atomic_t stop;
static void on_term(int signal) { stop = signal; }

// check ends the program as an uncaught torch.AcceleratorError would.
static void check(int code, const char *call)
{
	const char *text = NULL;
	if (code == 0) return;
	if (cu.cuGetErrorString) cu.cuGetErrorString(code, &text);
	fflush(stdout);
	fprintf(stderr, "RuntimeError: CUDA error: %s (%d)\n  in %s\n", text ? text : "unrecognized error code", code, call);
	exit(1);
}
#define CHECK(call) check(cu.call, #call)

static long setting(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static int load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return fprintf(stderr, "RuntimeError: Found no NVIDIA driver on your system: %s\n", dlerror()), 0;
	lookup_t lookup = (lookup_t)dlsym(library, "cuGetProcAddress_v2");
	if (!lookup) return fprintf(stderr, "RuntimeError: the NVIDIA driver on your system is too old\n"), 0;
	int status = 0;
#define LOOK(name, version, parameters) \
	if (lookup(#name, (void **)&cu.name, version, 0, &status) || !cu.name) return fprintf(stderr, "trainer: the driver lacks %s\n", #name), 0;
	DRIVER(LOOK)
	return 1;
}

// NVML's count, as torch.cuda.device_count() asks it before CUDA is initialised; -1 without NVML.
static int nvml_count(void)
{
	unsigned count = 0;
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library) return -1;
	int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2"), (*get)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
	const char *(*text)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
	if (!init || !get || !text) return -1;
	int code = init();
	if (!code) code = get(&count);
	if (code) fprintf(stderr, "UserWarning: Can't initialize NVML: %s (%d)\n", text(code), code);
	return code ? -1 : (int)count;
}

static void pause_ms(long ms)
{
	struct timespec left = {ms / 1000, ms % 1000 * 1000000};
	while (ms > 0 && !stop && nanosleep(&left, &left) && errno == EINTR) {}
}

int main(int argc, char **argv)
{
	long steps = setting("TRAINER_STEPS", 0), interval = setting("TRAINER_INTERVAL", 100), report = setting("TRAINER_REPORT", 10);
	long bytes = setting("TRAINER_BYTES", 0), device = setting("TRAINER_DEVICE", 0), graphs = 1;
	const struct { const char *flag; long *value; } flags[] = {
		{"-steps", &steps}, {"-interval", &interval}, {"-report", &report}, {"-bytes", &bytes}, {"-device", &device},
	};
	for (int i = 1; i < argc; i++) {
		size_t f = 0;
		if (!strcmp(argv[i], "-no-graph")) { graphs = 0; continue; }
		while (f < sizeof flags / sizeof *flags && strcmp(argv[i], flags[f].flag)) f++;
		if (f == sizeof flags / sizeof *flags || i + 1 == argc) return fprintf(stderr, "trainer: unknown argument %s\n", argv[i]), 2;
		*flags[f].value = strtol(argv[++i], NULL, 0);
	}
	if (report < 1) report = 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, on_term);
	signal(SIGINT, on_term);

	if (!load_driver()) return 1;
	int nvml = nvml_count(), count = 0, version = 0, handle = 0;
	CHECK(cuDriverGetVersion(&version));
	CHECK(cuInit(0));
	CHECK(cuDeviceGetCount(&count));
	CHECK(cuDeviceGet(&handle, (int)device));
	char name[64] = "";
	size_t total = 0, available = 0;
	void *context, *module, *add, *fill, *stream, *event, *graph = NULL, *exec = NULL;
	CHECK(cuDeviceGetName(name, sizeof name, handle));
	CHECK(cuDeviceTotalMem(&total, handle));
	CHECK(cuDevicePrimaryCtxRetain(&context, handle));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemGetInfo(&available, &total));
	printf("device: cuda:%ld %s, driver %d, %d of %d devices, %zu of %zu MiB free\n", device, name, version, count, nvml, available >> 20, total >> 20);

	uint64_t a, b, sum, weights = 0;
	if (bytes > 0) CHECK(cuMemAlloc(&weights, (size_t)bytes));
	CHECK(cuMemAlloc(&a, BYTES));
	CHECK(cuMemAlloc(&b, BYTES));
	CHECK(cuMemAlloc(&sum, BYTES));
	CHECK(cuModuleLoadData(&module, "kernels"));
	CHECK(cuModuleGetFunction(&add, module, "vectorAdd"));
	CHECK(cuModuleGetFunction(&fill, module, "fill"));
	CHECK(cuStreamCreate(&stream, 1));
	CHECK(cuEventCreate(&event, 2));

	int n = ELEMENTS;
	float half = 0.5f;
	void *fill_arguments[] = {&b, &half, &n}, *add_arguments[] = {&a, &b, &sum, &n};
#define ADD CHECK(cuLaunchKernel(add, ELEMENTS / 256, 1, 1, 256, 1, 1, 0, stream, add_arguments, NULL))
	if (graphs) {
		CHECK(cuStreamBeginCapture(stream, 0));
		ADD;
		CHECK(cuStreamEndCapture(stream, &graph));
		CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	}

	static float in[ELEMENTS], out[ELEMENTS];
	for (long step = 1; !stop && (steps == 0 || step <= steps); step++) {
		for (int i = 0; i < ELEMENTS; i++) in[i] = (float)((step + i) % 1000);
		CHECK(cuMemcpyHtoDAsync(a, in, BYTES, stream));
		CHECK(cuMemsetD8Async(sum, 0, BYTES, stream));
		CHECK(cuLaunchKernel(fill, ELEMENTS / 256, 1, 1, 256, 1, 1, 0, stream, fill_arguments, NULL));
		if (graphs) CHECK(cuGraphLaunch(exec, stream));
		else ADD;
		CHECK(cuEventRecord(event, stream));
		CHECK(cuEventSynchronize(event));
		CHECK(cuMemcpyDtoH(out, sum, BYTES));
		double loss = 0;
		for (int i = 0; i < ELEMENTS; i++) {
			loss += out[i];
			if (out[i] == in[i] + half) continue;
			fflush(stdout);
			fprintf(stderr, "AssertionError: step %ld: element %d is %.9g, not %.9g\n", step, i, out[i], in[i] + half);
			return 1;
		}
		if (step % report == 0) printf("step %ld loss %.3f\n", step, loss / ELEMENTS);
		pause_ms(interval);
	}
	CHECK(cuCtxSynchronize());
	printf("done\n");
	return 0;
}
