/* Calls cuInit and cuMemAlloc_v2, each as a program does that is linked to the driver, one that uses dlsym, and one that uses cuGetProcAddress_v2. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int cuInit(unsigned flags);
int cuMemAlloc_v2(uint64_t *address, size_t size);

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init[3])(unsigned) = { cuInit }, (*alloc[3])(uint64_t *, size_t) = { cuMemAlloc_v2 };
	int (*entry)(const char *, void **, int, uint64_t, int *);
	int status;
	uint64_t address;

	if (!driver) return fprintf(stderr, "calls: %s\n", dlerror()), 1;
	*(void **)&init[1] = dlsym(driver, "cuInit");
	*(void **)&alloc[1] = dlsym(driver, "cuMemAlloc_v2");
	*(void **)&entry = dlsym(driver, "cuGetProcAddress_v2");
	if (!entry || entry("cuInit", (void **)&init[2], 2000, 0, &status) || entry("cuMemAlloc", (void **)&alloc[2], 3020, 0, &status)) return 1;
	printf("cuMemAlloc before cuInit");
	for (int i = 0; i < 3; i++) printf(" %d", alloc[i](&address, 4096));
	printf("\ncuInit");
	for (int i = 0; i < 3; i++) printf(" %d", init[i](0));
	printf("\n");
	return 0;
}
