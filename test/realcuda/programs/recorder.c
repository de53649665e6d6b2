/*
 * A libcuda.so.1 of two functions that writes down what a runtime asks the real driver for, and what it gets: RECORD names the file, REAL_DRIVER the
 * driver. Nothing is changed. It has no cuInit, so that the shim takes the real driver for the driver.
 */
#include "where.h"
#include <stdint.h>
#include <stdlib.h>

static void *real(const char *name)
{
	static void *driver;

	if (!driver) driver = dlopen(getenv("REAL_DRIVER"), RTLD_NOW);
	return driver ? dlsym(driver, name) : NULL;
}

static void note(const char *name, int version, uint64_t flags, int rc, int status, void *p)
{
	static FILE *file;
	static char place[512];

	if (!file) file = fopen(getenv("RECORD"), "a");
	if (!file) return;
	where(p, place, sizeof place);
	fprintf(file, "%s %d %lu\t%d %d %s\n", *name ? name : "(empty)", version, (unsigned long)flags, rc, status, place);
	fflush(file);
}

/* The runtime asks for these two by themselves as well, and must come back here. */
int cuGetProcAddress(const char *name, void **p, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t flags, int *status);

static void keep(const char *name, void **p, int version)
{
	if (!strcmp(name, "cuGetProcAddress")) *p = version < 12000 ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
}

int cuGetProcAddress(const char *name, void **p, int version, uint64_t flags)
{
	int (*next)(const char *, void **, int, uint64_t), rc;

	*(void **)&next = real("cuGetProcAddress");
	if (!next) return 3;
	*p = UNTOUCHED;
	rc = next(name, p, version, flags);
	note(name, version, flags, rc, 0, *p);
	if (*p == UNTOUCHED) *p = NULL;
	else keep(name, p, version);
	return rc;
}

int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t flags, int *status)
{
	int (*next)(const char *, void **, int, uint64_t, int *), rc;

	*(void **)&next = real("cuGetProcAddress_v2");
	if (!next) return 3;
	*p = UNTOUCHED;
	rc = next(name, p, version, flags, status);
	note(name, version, flags, rc, status ? *status : -7, *p);
	if (*p == UNTOUCHED) *p = NULL;
	else keep(name, p, version);
	return rc;
}
