// A program linked to the driver (-lcuda): how it calls it is in work.h.
#define _GNU_SOURCE
#define LINKED
#include "work.h"
#include <dlfcn.h>

int main(void)
{
	const struct driver d = {
#ifdef ADDRESSES
		DRIVER(ADDRESS)
#else
		.cuInit = NULL
#endif
	};
	work(&d, stdout, "");
	// Beside neighbor.so: what it saw of the three allocations.
	int (*seen)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "neighbor_seen");
	if (seen) printf("neighbor saw %d\n", seen());
	return 0;
}
