// The design of the systems that this one is compared with, made anew: an interposer that opens, reads and closes its toggle file on each call.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static int faulty(void)
{
	char text = '0';
	int file = open(getenv("TOGGLE_FILE"), O_RDONLY);
	if (file < 0) return 0;
	if (read(file, &text, 1) != 1) text = '0';
	close(file);
	return text == '1';
}

int cuMemAlloc_v2(uint64_t *at, size_t size)
{
	static int (*next)(uint64_t *, size_t);
	if (!next) next = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	return faulty() ? 999 : next(at, size);
}

typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
	void **params, void **extra)
{
	static launch_t next;
	if (!next) next = (launch_t)dlsym(RTLD_NEXT, "cuLaunchKernel");
	return faulty() ? 999 : next(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
