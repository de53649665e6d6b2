// A plugin (a Python extension, an engine's back end) that is linked to the driver; with -DSTATIC it holds a static cudart of its own and is linked
// to nothing.
#define _GNU_SOURCE
#ifndef STATIC
#define LINKED
#endif
#include "work.h"
#include <dlfcn.h>

#ifdef STATIC
static int (*lookup)(const char *, void **, int, uint64_t, int *);
static void *find(const char *name, int version, uint64_t flags)
{
	void *address = NULL;
	int status;
	return lookup(name, &address, version, flags, &status) ? NULL : address;
}
int plugin_work(void)
{
	struct driver d;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	lookup = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
	find_entries(&d, find, 0);
	return work(&d, stdout, "");
}
#else
int plugin_work(void) { return work(NULL, stdout, ""); }
#endif
