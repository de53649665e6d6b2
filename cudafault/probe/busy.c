// Many calls, and nothing else: busy N. Launches of nothing, with a synchronisation every 100.
#include "work.h"
#include <dlfcn.h>
#include <stdlib.h>

static void *library;
static void *find(const char *name) { return dlsym(library, name); }

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 0;
	struct driver d;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return 2;
	find_symbols(&d, find, 0);
	struct results r = {NULL, "", NULL};
	start(&d, &r);
	uint64_t at = 0;
	int elements = 0, code = d.cuMemAlloc(&at, 4096);
	void *arguments[] = {&at, &at, &at, &elements};
	for (long i = 0; i < n && !code; i++) {
		code = d.cuLaunchKernel(r.add, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
		if (!code && i % 100 == 99) code = d.cuCtxSynchronize();
	}
	return code != 0;
}
