// The driver as actor.c uses it: what it looks up, what it prepares, and the calls that have one word for a name.
#pragma once
#define _GNU_SOURCE
#include "image.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DRIVER(X) \
	X(cuInit, 2000, (unsigned)) X(cuDriverGetVersion, 2020, (int *)) X(cuGetErrorString, 6000, (int, const char **)) \
	X(cuDeviceGetCount, 2000, (int *)) X(cuDeviceGet, 2000, (int *, int)) X(cuDeviceTotalMem, 3020, (size_t *, int)) \
	X(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
	X(cuCtxSetCurrent, 4000, (void *)) X(cuCtxSynchronize, 2000, (void)) X(cuModuleLoadData, 2000, (void **, const void *)) \
	X(cuModuleGetFunction, 2000, (void **, void *, const char *)) X(cuStreamCreate, 2000, (void **, unsigned)) \
	X(cuStreamSynchronize, 2000, (void *)) X(cuStreamQuery, 2000, (void *)) X(cuEventCreate, 2000, (void **, unsigned)) \
	X(cuEventRecord, 2000, (void *, void *)) X(cuEventSynchronize, 2000, (void *)) X(cuEventQuery, 2000, (void *)) \
	X(cuMemGetInfo, 3020, (size_t *, size_t *)) X(cuMemAlloc, 3020, (uint64_t *, size_t)) X(cuMemFree, 3020, (uint64_t)) \
	X(cuMemAllocAsync, 11020, (uint64_t *, size_t, void *)) X(cuMemAllocFromPoolAsync, 11020, (uint64_t *, size_t, void *, void *)) \
	X(cuDeviceGetDefaultMemPool, 11020, (void **, int)) X(cuMemFreeAsync, 11020, (uint64_t, void *)) \
	X(cuMemCreate, 10020, (uint64_t *, size_t, const void *, uint64_t)) X(cuMemRelease, 10020, (uint64_t)) \
	X(cuMemAllocManaged, 6000, (uint64_t *, size_t, unsigned)) X(cuMemAllocPitch, 3020, (uint64_t *, size_t *, size_t, size_t, unsigned)) \
	X(cuMemHostAlloc, 2020, (void **, size_t, unsigned)) X(cuMemFreeHost, 2000, (void *)) X(cuArrayCreate, 3020, (void **, const void *)) \
	X(cuArrayDestroy, 2000, (void *)) X(cuMemcpyHtoD, 3020, (uint64_t, const void *, size_t)) X(cuMemcpyDtoH, 3020, (void *, uint64_t, size_t)) \
	X(cuMemcpyDtoHAsync, 3020, (void *, uint64_t, size_t, void *)) X(cuMemsetD8, 3020, (uint64_t, unsigned char, size_t)) \
	X(cuLaunchHostFunc, 10000, (void *, void (*)(void *), void *)) \
	X(cuLaunchKernel, 4000, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuStreamBeginCapture, 10010, (void *, int)) X(cuStreamEndCapture, 10000, (void *, void **)) \
	X(cuGraphInstantiateWithFlags, 11040, (void **, void *, uint64_t)) X(cuGraphLaunch, 10000, (void *, void *))

static struct {
#define FIELD(name, version, parameters) int (*name) parameters;
	DRIVER(FIELD)
} cu;

enum { BYTES = 1 << 16 };
static void *context, *module, *kernel, *stream, *event;
static void *graph __attribute__((unused)), *exec __attribute__((unused));
static uint64_t buffer;
static unsigned char host[BYTES];
static char answer[4096] __attribute__((unused));

static int load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return fprintf(stderr, "actor: %s\n", dlerror()), 0;
	int (*lookup)(const char *, void **, int, uint64_t, int *);
	lookup = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
	int status;
#define LOOK(name, version, parameters) \
	if (lookup(#name, (void **)&cu.name, version, 0, &status) || !cu.name) return fprintf(stderr, "actor: no %s\n", #name), 0;
	DRIVER(LOOK)
	return 1;
}

static double seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int use_device(int ordinal)
{
	int device, code = cu.cuDeviceGet(&device, ordinal);
	if (!code) code = cu.cuDevicePrimaryCtxRetain(&context, device);
	return code ? code : cu.cuCtxSetCurrent(context);
}

static int prepare(int device)
{
	int code;
	if ((code = cu.cuInit(0)) || (code = use_device(device))) return code;
	if ((code = cu.cuModuleLoadData(&module, IMAGE)) || (code = cu.cuModuleGetFunction(&kernel, module, "noop"))) return code;
	if ((code = cu.cuStreamCreate(&stream, 1)) || (code = cu.cuEventCreate(&event, 0))) return code;
	return cu.cuMemAlloc(&buffer, BYTES);
}

static int call(const char *name)
{
#define IS(word) !strcmp(name, word)
	if (IS("launch")) return cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
	if (IS("sync")) return cu.cuCtxSynchronize();
	if (IS("streamsync")) return cu.cuStreamSynchronize(stream);
	if (IS("eventsync")) return cu.cuEventSynchronize(event);
	if (IS("query")) return cu.cuStreamQuery(stream);
	if (IS("eventquery")) return cu.cuEventQuery(event);
	if (IS("record")) return cu.cuEventRecord(event, stream);
	if (IS("h2d")) return cu.cuMemcpyHtoD(buffer, host, BYTES);
	if (IS("d2h")) return cu.cuMemcpyDtoH(host, buffer, BYTES);
	if (IS("set")) return cu.cuMemsetD8(buffer, 7, BYTES);
	if (IS("graph")) return cu.cuGraphLaunch(exec, stream);
	if (IS("init")) return cu.cuInit(0);
	return -1;
}
