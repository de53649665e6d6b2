// Rules that interposers broke, one per argument. What it prints must be the same with and without a shim.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cuInit(unsigned) __attribute__((weak));

// Names that only begin like the driver's are found where they are, by handle and by default, before and after the driver was loaded.
static void namesakes(const char *file)
{
	static const char *const names[] = {"cudnnConvolutionForward", "cudnnCreate", "cublasSgemm_v2", "cublasCreate_v2", "cufftExecC2C", "curandGenerate",
		"cusparseCreate", "cusolverDnCreate", "custom", "cu", "cuda", "cuMemAlloc_v2_of_ours", "cuMemAlloc_v22", "cuInitialise", "nvmlInit_v2000", "nvml",
		"nvmlite", "dlsym_of_ours", "cuCtxSynchronize", "nvmlInit_v2"};
	for (int round = 0; round < 2; round++) {
		void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
			int (*function)(void) = library ? (int (*)(void))dlsym(library, names[i]) : NULL;
			printf("%s %d\n", names[i], function ? function() : -1);
		}
		void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
		if (driver) printf("cuInit %d\n", ((int (*)(unsigned))dlsym(driver, "cuInit"))(0));
	}
}

// RTLD_NEXT is after the caller; versions of dlvsym; the loader's message for what is not there; dlsym of what has no library.
static void lookups(void)
{
	void *own = dlopen(NULL, RTLD_NOW);
	printf("next malloc %d, next of nothing %d\n", dlsym(RTLD_NEXT, "malloc") != NULL, dlsym(RTLD_NEXT, "cuInit") != NULL);
	printf("dlvsym %d %d\n", dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.34") != NULL, dlvsym(RTLD_DEFAULT, "malloc", "NO_SUCH_VERSION") != NULL);
	dlerror();
	printf("none %d", dlsym(own, "cuNoSuchFunction") == NULL);
	const char *text = dlerror();
	printf(": %s\n", text && strstr(text, "undefined symbol: cuNoSuchFunction") ? "undefined symbol" : text ? text : "no message");
	printf("again %s\n", dlerror() ? "a message" : "no message");
	printf("main %d\n", dlsym(own, "main") != NULL);
	static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2", "cuLaunchKernel_ptsz", "nvmlInit_v2", "cudaMalloc"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		printf("%s without a driver: default %d own %d\n", names[i], dlsym(RTLD_DEFAULT, names[i]) != NULL, dlsym(own, names[i]) != NULL);
}

// A program that asks by a weak reference whether there is a driver gets the shim's; calling it must give an error and not a crash.
static void weak(void)
{
	if (cuInit) printf("weak cuInit fails %d\n", cuInit(0) != 0);
	else printf("weak cuInit fails 1\n");
}

static pthread_barrier_t barrier;
static void *found[64];
static void *find(void *at)
{
	pthread_barrier_wait(&barrier);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)at = dlsym(library, "cuMemAlloc_v2");
	return NULL;
}

// The first look-ups of all threads happen at once, and all find the same.
static void race(void)
{
	pthread_t ids[64];
	int different = 0;
	pthread_barrier_init(&barrier, NULL, 64);
	for (int i = 0; i < 64; i++) pthread_create(&ids[i], NULL, find, &found[i]);
	for (int i = 0; i < 64; i++) pthread_join(ids[i], NULL);
	for (int i = 0; i < 64; i++) different += found[i] != found[0] || !found[i];
	printf("different %d\n", different);
}

int main(int argc, char **argv)
{
	if (argc < 2) return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(argv[1], "namesakes")) namesakes(argv[2]);
	else if (!strcmp(argv[1], "lookups")) lookups();
	else if (!strcmp(argv[1], "weak")) weak();
	else if (!strcmp(argv[1], "race")) race();
	else return 2;
	return 0;
}
