// What every probe does with a driver, whatever way it found it: it adds two vectors and prints the result of each call.
//
//	CALL name code    a call that an armed shim fails (here: ALLOC, COPY, LAUNCH, SYNC)
//	NOTE name code    a call that must succeed always
//
// Nothing is skipped after an error, so that each line says whether its own function was reached.
#pragma once
#include "image.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { N = 1024 };

// X(function, exported symbol, its twin for per-thread default streams, version asked of cuGetProcAddress, of the twin, parameters)
#define DRIVER(X) \
	X(cuInit, cuInit, cuInit, 2000, 2000, (unsigned)) \
	X(cuDeviceGetCount, cuDeviceGetCount, cuDeviceGetCount, 2000, 2000, (int *)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 7000, (void **, int)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, cuCtxSetCurrent, 4000, 4000, (void *)) \
	X(cuModuleLoadData, cuModuleLoadData, cuModuleLoadData, 2000, 2000, (void **, const void *)) \
	X(cuModuleGetFunction, cuModuleGetFunction, cuModuleGetFunction, 2000, 2000, (void **, void *, const char *)) \
	X(cuMemAlloc, cuMemAlloc_v2, cuMemAlloc_v2, 3020, 3020, (uint64_t *, size_t)) \
	X(cuMemFree, cuMemFree_v2, cuMemFree_v2, 3020, 3020, (uint64_t)) \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, 3020, 7000, (uint64_t, const void *, size_t)) \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, 3020, 7000, (void *, uint64_t, size_t)) \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, 3020, 7000, (uint64_t, const void *, size_t, void *)) \
	X(cuLaunchKernel, cuLaunchKernel, cuLaunchKernel_ptsz, 4000, 7000, \
		(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuStreamSynchronize, cuStreamSynchronize, cuStreamSynchronize_ptsz, 2000, 7000, (void *)) \
	X(cuCtxSynchronize, cuCtxSynchronize, cuCtxSynchronize, 2000, 2000, (void)) \
	X(cuStreamCreate, cuStreamCreate, cuStreamCreate, 2000, 2000, (void **, unsigned)) \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, 10010, 10010, (void *, int)) \
	X(cuStreamEndCapture, cuStreamEndCapture, cuStreamEndCapture_ptsz, 10000, 10000, (void *, void **)) \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 11040, (void **, void *, uint64_t)) \
	X(cuGraphLaunch, cuGraphLaunch, cuGraphLaunch_ptsz, 10000, 10000, (void *, void *))

struct driver {
#define FIELD(name, symbol, twin, version, twin_version, parameters) int (*name) parameters;
	DRIVER(FIELD)
};

// find_symbols fills d by exported names: find(name) is dlsym, or what comes near it.
#define FIND(name, symbol, twin, version, twin_version, parameters) d->name = (int (*) parameters)find(twins ? #twin : #symbol);
static inline void find_symbols(struct driver *d, void *(*find)(const char *), int twins)
{
	DRIVER(FIND)
}

// find_entries fills d by unsuffixed names and versions, as cuGetProcAddress takes them.
#define ENTRY(name, symbol, twin, version, twin_version, parameters) \
	d->name = (int (*) parameters)find(#name, twins ? twin_version : version, twins ? 2 : 0);
static inline void find_entries(struct driver *d, void *(*find)(const char *, int, uint64_t), int twins)
{
	DRIVER(ENTRY)
}

// A program that is linked to the driver calls it by name, through its own PLT: -DLINKED, with -DTWINS as nvcc --default-stream per-thread makes it.
// With -DADDRESSES too it takes the functions' addresses first (so do programs built with -fno-plt).
#ifdef LINKED
#ifdef TWINS
#define DECLARE(name, symbol, twin, version, twin_version, parameters) extern int name parameters __asm__(#twin);
#else
#define DECLARE(name, symbol, twin, version, twin_version, parameters) extern int name parameters __asm__(#symbol);
#endif
DRIVER(DECLARE)
#define ADDRESS(name, symbol, twin, version, twin_version, parameters) name,
#endif
#if defined(LINKED) && !defined(ADDRESSES)
#define INVOKE(name) name
#else
#define INVOKE(name) d->name
#endif

struct results { FILE *to; const char *prefix; void *add; };

static inline int say(const struct results *r, const char *kind, const char *name, int code)
{
	if (r->to) fprintf(r->to, "%s%s %s %d\n", r->prefix, kind, name, code);
	return code;
}
#define CALL(name, ...) say(r, "CALL", #name, INVOKE(name)(__VA_ARGS__))
#define NOTE(name, ...) say(r, "NOTE", #name, INVOKE(name)(__VA_ARGS__))

// start initialises the driver and makes the primary context current.
static inline void start(const struct driver *d, struct results *r)
{
	(void)d;
	int count = 0;
	void *context = NULL, *module = NULL;
	NOTE(cuInit, 0);
	NOTE(cuDeviceGetCount, &count);
	NOTE(cuDevicePrimaryCtxRetain, &context, 0);
	NOTE(cuCtxSetCurrent, context);
	NOTE(cuModuleLoadData, &module, IMAGE);
	NOTE(cuModuleGetFunction, &r->add, module, "vectorAdd");
	if (r->to) fprintf(r->to, "%sdevices %d\n", r->prefix, count);
}

// add copies two vectors in, adds them, copies the sum out. It returns the first error, or -1 for a wrong sum.
static inline int add(const struct driver *d, const struct results *r)
{
	(void)d;
	float a[N], b[N], sum[N];
	uint64_t da = 0, db = 0, dsum = 0;
	int n = N, first = 0, code;
	void *arguments[] = {&da, &db, &dsum, &n};
	for (int i = 0; i < N; i++) a[i] = (float)i, b[i] = (float)(2 * i), sum[i] = -1;
#define STEP(call) if ((code = call) && !first) first = code
	STEP(CALL(cuMemAlloc, &da, sizeof a));
	STEP(CALL(cuMemAlloc, &db, sizeof b));
	STEP(CALL(cuMemAlloc, &dsum, sizeof sum));
	STEP(CALL(cuMemcpyHtoD, da, a, sizeof a));
	STEP(CALL(cuMemcpyHtoDAsync, db, b, sizeof b, NULL));
	STEP(CALL(cuLaunchKernel, r->add, N / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
	STEP(CALL(cuStreamSynchronize, NULL));
	STEP(CALL(cuCtxSynchronize));
	STEP(CALL(cuMemcpyDtoH, sum, dsum, sizeof sum));
	if (!first)
		for (int i = 0; i < N; i++)
			if (sum[i] != (float)(3 * i)) first = -1;
	if (r->to) fprintf(r->to, "%ssum %s\n", r->prefix, first ? "none" : "ok");
	if (da) INVOKE(cuMemFree)(da), INVOKE(cuMemFree)(db), INVOKE(cuMemFree)(dsum);
	return first;
}

static inline int work(const struct driver *d, FILE *to, const char *prefix)
{
	struct results results = {to, prefix, NULL};
	start(d, &results);
	return add(d, &results);
}

// work_graph captures the addition and launches the graph. During the capture nothing may fail.
static inline void work_graph(const struct driver *d, FILE *to)
{
	struct results results = {to, "", NULL}, *r = &results;
	start(d, r);
	uint64_t da = 0, db = 0, dsum = 0;
	int n = N;
	void *arguments[] = {&da, &db, &dsum, &n}, *stream = NULL, *graph = NULL, *exec = NULL;
	CALL(cuMemAlloc, &da, N * sizeof(float));
	CALL(cuMemAlloc, &db, N * sizeof(float));
	CALL(cuMemAlloc, &dsum, N * sizeof(float));
	NOTE(cuStreamCreate, &stream, 1);
	NOTE(cuStreamBeginCapture, stream, 0);
	for (int i = 0; i < 3; i++) NOTE(cuLaunchKernel, r->add, N / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
	NOTE(cuStreamEndCapture, stream, &graph);
	NOTE(cuGraphInstantiateWithFlags, &exec, graph, 0);
	for (int i = 0; i < 3; i++) CALL(cuGraphLaunch, exec, stream);
	CALL(cuStreamSynchronize, stream);
}
