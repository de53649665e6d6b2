// Finding the driver: NVIDIA's where there is one, else the simulated one that the image brings along, and saying so.
#define _GNU_SOURCE
#include "trainer.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver cu;

// Where NVIDIA's container runtime (Debian, others), GKE's device plugin and WSL put the driver's libraries, where ld.so does not look by itself.
static const char *const folders[] = {
	"/usr/local/nvidia/lib64/", "/usr/lib64/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib/wsl/lib/",
};
#define SIMULATION "/usr/local/fakecuda/"
static enum found found;

static void *open_real(const char *name)
{
	char path[128];
	void *library = dlopen(name, RTLD_NOW);
	for (size_t i = 0; !library && i < sizeof folders / sizeof *folders; i++) {
		snprintf(path, sizeof path, "%s%s", folders[i], name);
		library = dlopen(path, RTLD_NOW);
	}
	return library;
}

// The container runtime gives a container with void or none no device, and with void no driver either. The simulation stands for both. A
// container that the device plugin gave no device has no such variable, and no driver.
static int kept_out(void)
{
	const char *devices = getenv("NVIDIA_VISIBLE_DEVICES"), *simulation = getenv("TRAINER_SIMULATION");
	if (!devices) return simulation && !strcmp(simulation, "allocated");
	return (!strcmp(devices, "void") || !strcmp(devices, "none") || !*devices);
}

static int bind(void *library)
{
	lookup_t lookup = (lookup_t)dlsym(library, "cuGetProcAddress_v2");
	if (!lookup) return fprintf(stderr, "RuntimeError: the NVIDIA driver on your system is too old\n"), 0;
	int status = 0;
#define LOOK(name, version, parameters) \
	if (lookup(#name, (void **)&cu.name, version, 0, &status) || !cu.name) return fprintf(stderr, "trainer: the driver lacks %s\n", #name), 0;
	DRIVER(LOOK)
	return 1;
}

enum found load_driver(void)
{
	void *library = open_real("libcuda.so.1");
	found = library ? REAL : NONE;
	if (!library && !kept_out() && (library = dlopen(SIMULATION "libcuda.so.1", RTLD_NOW))) {
		found = SIMULATED;
		fprintf(stderr, "trainer: no NVIDIA driver: simulated GPU\n");
	}
	if (library && !bind(library)) exit(1);
	return found;
}

void *nvml_library(void)
{
	static void *library;
	if (!library && found != SIMULATED) library = open_real("libnvidia-ml.so.1");
	if (!library && found != REAL && !kept_out()) library = dlopen(SIMULATION "libnvidia-ml.so.1", RTLD_NOW);
	return library;
}

int nvml_count(void)
{
	unsigned count = 0;
	void *library = nvml_library();
	if (!library) return -1;
	int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2"), (*get)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
	const char *(*text)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
	if (!init || !get || !text) return -1;
	int code = init();
	if (!code) code = get(&count);
	if (code) fprintf(stderr, "UserWarning: Can't initialize NVML: %s (%d)\n", text(code), code);
	return code ? -1 : (int)count;
}

int nvml_read(unsigned device, struct reading *r)
{
	struct { unsigned gpu, memory; } rates = {0, 0};
	struct { uint64_t total, available, used; } memory = {0, 0, 0};
	void *library = nvml_library(), *gpu = NULL;
	if (!library) return 0;
	int (*handle)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	int (*name)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))dlsym(library, "nvmlDeviceGetUUID");
	int (*use)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetUtilizationRates");
	int (*info)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
	if (!handle || !name || !use || !info || handle(device, &gpu)) return 0;
	if (name(gpu, r->uuid, sizeof r->uuid) || use(gpu, &rates) || info(gpu, &memory)) return 0;
	r->percent = rates.gpu, r->used = memory.used, r->total = memory.total;
	return 1;
}

int hidden_by_environment(int devices)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	if (kept_out()) return 1;
	if (!visible || !strncmp(visible, "GPU-", 4) || !strncmp(visible, "MIG-", 4)) return 0;
	char *end;
	long first = strtol(visible, &end, 10);
	return end == visible || first < 0 || (devices >= 0 && first >= devices);
}

// What the step launches, for a real GPU; the simulation knows kernels by their names.
const char kernels[] =
	".version 6.0\n.target sm_60\n.address_size 64\n"
	".visible .entry vectorAdd(.param .u64 a, .param .u64 b, .param .u64 s, .param .u32 n)\n{\n"
	"\t.reg .pred %p<2>;\n\t.reg .f32 %f<4>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %rd<11>;\n"
	"\tld.param.u64 %rd1, [a];\n\tld.param.u64 %rd2, [b];\n\tld.param.u64 %rd3, [s];\n\tld.param.u32 %r2, [n];\n"
	"\tmov.u32 %r3, %ctaid.x;\n\tmov.u32 %r4, %ntid.x;\n\tmov.u32 %r5, %tid.x;\n\tmad.lo.s32 %r1, %r3, %r4, %r5;\n"
	"\tsetp.ge.s32 %p1, %r1, %r2;\n\t@%p1 bra DONE;\n"
	"\tcvta.to.global.u64 %rd4, %rd1;\n\tcvta.to.global.u64 %rd5, %rd2;\n\tcvta.to.global.u64 %rd6, %rd3;\n\tmul.wide.s32 %rd7, %r1, 4;\n"
	"\tadd.s64 %rd8, %rd4, %rd7;\n\tadd.s64 %rd9, %rd5, %rd7;\n\tadd.s64 %rd10, %rd6, %rd7;\n"
	"\tld.global.f32 %f1, [%rd8];\n\tld.global.f32 %f2, [%rd9];\n\tadd.f32 %f3, %f1, %f2;\n\tst.global.f32 [%rd10], %f3;\nDONE:\n\tret;\n}\n"
	".visible .entry fill(.param .u64 at, .param .f32 value, .param .u32 n)\n{\n"
	"\t.reg .pred %p<2>;\n\t.reg .f32 %f<2>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %rd<5>;\n"
	"\tld.param.u64 %rd1, [at];\n\tld.param.f32 %f1, [value];\n\tld.param.u32 %r2, [n];\n"
	"\tmov.u32 %r3, %ctaid.x;\n\tmov.u32 %r4, %ntid.x;\n\tmov.u32 %r5, %tid.x;\n\tmad.lo.s32 %r1, %r3, %r4, %r5;\n"
	"\tsetp.ge.s32 %p1, %r1, %r2;\n\t@%p1 bra DONE;\n"
	"\tcvta.to.global.u64 %rd2, %rd1;\n\tmul.wide.s32 %rd3, %r1, 4;\n\tadd.s64 %rd4, %rd2, %rd3;\n\tst.global.f32 [%rd4], %f1;\nDONE:\n\tret;\n}\n";
