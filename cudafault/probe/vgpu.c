// An interposer that shares out a GPU, as HAMi-core does: its own dlsym hands out its functions, and prepares them when it is first asked for one of
// the driver's. Its other functions take that for done, and jump to nothing if it was not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static void *(*real_dlsym)(void *, const char *);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int allocations;
static struct {
	int (*cuInit)(unsigned), (*cuMemAlloc_v2)(uint64_t *, size_t);
	int (*cuGetProcAddress)(const char *, void **, int, uint64_t), (*cuGetProcAddress_v2)(const char *, void **, int, uint64_t, int *);
} driver;

static void prepare(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return;
	driver.cuInit = (int (*)(unsigned))real_dlsym(library, "cuInit");
	driver.cuMemAlloc_v2 = (int (*)(uint64_t *, size_t))real_dlsym(library, "cuMemAlloc_v2");
	driver.cuGetProcAddress = (int (*)(const char *, void **, int, uint64_t))real_dlsym(library, "cuGetProcAddress");
	driver.cuGetProcAddress_v2 = (int (*)(const char *, void **, int, uint64_t, int *))real_dlsym(library, "cuGetProcAddress_v2");
}

int cuInit(unsigned flags)
{
	pthread_once(&once, prepare);
	return driver.cuInit(flags);
}

int cuMemAlloc_v2(uint64_t *at, size_t size)
{
	allocations++;
	return driver.cuMemAlloc_v2(at, size);
}

static int own(const char *name, void **address)
{
	if (!strcmp(name, "cuMemAlloc") || !strcmp(name, "cuMemAlloc_v2")) *address = (void *)cuMemAlloc_v2;
	else if (!strcmp(name, "cuInit")) *address = (void *)cuInit;
	else return 0;
	return 1;
}

int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
	int code = driver.cuGetProcAddress(name, address, version, flags);
	if (!code) own(name, address);
	return code;
}

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	int code = driver.cuGetProcAddress_v2(name, address, version, flags, status);
	if (!code) own(name, address);
	return code;
}

void *dlsym(void *handle, const char *name)
{
	void *address;
	if (!real_dlsym) real_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLDEST);
	if (name[0] == 'c' && name[1] == 'u' && handle != RTLD_NEXT) {
		pthread_once(&once, prepare);
		if (own(name, &address)) return address;
		if (!strcmp(name, "cuGetProcAddress")) return (void *)cuGetProcAddress;
		if (!strcmp(name, "cuGetProcAddress_v2")) return (void *)cuGetProcAddress_v2;
	}
	return real_dlsym(handle, name);
}

int neighbor_seen(void) { return allocations; }
