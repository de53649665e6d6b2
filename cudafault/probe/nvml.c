// An NVML client: nvml WAY, with WAY = init, init-flags (as nvidia-smi), and with -DLINKED linked to the library, else by dlopen and dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct gpu;
struct memory { uint64_t total, available, used; };
struct utilization { unsigned gpu, memory; };
#define NVML(X) \
	X(nvmlInit_v2, (void)) X(nvmlInitWithFlags, (unsigned)) X(nvmlShutdown, (void)) X(nvmlDeviceGetCount_v2, (unsigned *)) \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, struct gpu **)) X(nvmlDeviceGetMemoryInfo, (struct gpu *, struct memory *)) \
	X(nvmlDeviceGetUtilizationRates, (struct gpu *, struct utilization *)) X(nvmlDeviceGetTemperature, (struct gpu *, int, unsigned *)) \
	X(nvmlDeviceGetTotalEccErrors, (struct gpu *, int, int, unsigned long long *))

#ifdef LINKED
#define DECLARE(name, parameters) extern int name parameters;
#else
#define DECLARE(name, parameters) static int (*name) parameters;
#endif
NVML(DECLARE)

#define SAY(kind, name, ...) printf("%s %s %d\n", kind, #name, name(__VA_ARGS__))

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
#ifndef LINKED
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library) return fprintf(stderr, "nvml: %s\n", dlerror()), 2;
#define FIND(name, parameters) name = (int (*) parameters)dlsym(library, #name);
	NVML(FIND)
#endif
	unsigned count = 0, temperature = 0;
	unsigned long long errors = 0;
	struct gpu *gpu = NULL;
	struct memory memory = {0, 0, 0};
	struct utilization rates = {0, 0};
	if (argc > 1 && !strcmp(argv[1], "init-flags")) SAY("NOTE", nvmlInitWithFlags, 0);
	else SAY("NOTE", nvmlInit_v2);
	SAY("NOTE", nvmlDeviceGetCount_v2, &count);
	SAY("CALL", nvmlDeviceGetHandleByIndex_v2, 0, &gpu);
	SAY("CALL", nvmlDeviceGetMemoryInfo, gpu, &memory);
	SAY("CALL", nvmlDeviceGetUtilizationRates, gpu, &rates);
	SAY("CALL", nvmlDeviceGetTemperature, gpu, 0, &temperature);
	SAY("CALL", nvmlDeviceGetTotalEccErrors, gpu, 0, 0, &errors);
	SAY("NOTE", nvmlShutdown);
	printf("devices %u total %llu free %llu used %llu temperature %u\n", count, (unsigned long long)memory.total, (unsigned long long)memory.available,
		(unsigned long long)memory.used, temperature);
	return 0;
}
