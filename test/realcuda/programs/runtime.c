/* Starts the CUDA runtime: runtime FILE, and prints what each of its first calls returns, and how the runtime names it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *lib = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *memory = NULL;
	int (*count)(int *), (*last)(void), (*peek)(void), (*take)(void **, size_t), (*set)(int), (*runtime)(int *), (*driver)(int *);
	const char *(*name)(int), *(*text)(int);
	int n = -1, version = -1, rc;

	if (!lib) return fprintf(stderr, "runtime: %s\n", argc == 2 ? dlerror() : "which file?"), 1;
	*(void **)&count = dlsym(lib, "cudaGetDeviceCount");
	*(void **)&last = dlsym(lib, "cudaGetLastError");
	*(void **)&peek = dlsym(lib, "cudaPeekAtLastError");
	*(void **)&take = dlsym(lib, "cudaMalloc");
	*(void **)&set = dlsym(lib, "cudaSetDevice");
	*(void **)&runtime = dlsym(lib, "cudaRuntimeGetVersion");
	*(void **)&driver = dlsym(lib, "cudaDriverGetVersion");
	*(void **)&name = dlsym(lib, "cudaGetErrorName");
	*(void **)&text = dlsym(lib, "cudaGetErrorString");
	if (!count || !last || !peek || !take || !set || !runtime || !driver || !name || !text) return fprintf(stderr, "runtime: %s\n", dlerror()), 1;

	rc = count(&n);
	printf("cudaGetDeviceCount %d\nname %s\ntext %s\n", rc, name(rc), text(rc));
	printf("peek %d\n", peek());
	printf("last %d\n", last());
	printf("last again %d\n", last());
	printf("cudaGetDeviceCount again %d\n", count(&n));
	printf("cudaSetDevice %d\n", set(0));
	printf("cudaMalloc %d\n", take(&memory, 4096));
	rc = runtime(&version);
	printf("cudaRuntimeGetVersion %d %d\n", rc, version);
	rc = driver(&version);
	printf("cudaDriverGetVersion %d %d\n", rc, version);
	return 0;
}
