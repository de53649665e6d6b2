/* Starts NCCL, which brings a cudart of its own: nccl FILE. Prints the version, and how a communicator for one GPU fails, with NCCL's own words. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	static char id[128];
	void *lib = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *communicator = NULL;
	int (*get)(int *), (*unique)(void *), (*all)(void **, int, const int *), version = -1, device = 0, rc;

	if (!lib) return fprintf(stderr, "nccl: %s\n", argc == 2 ? dlerror() : "which file?"), 1;
	*(void **)&get = dlsym(lib, "ncclGetVersion");
	*(void **)&unique = dlsym(lib, "ncclGetUniqueId");
	*(void **)&all = dlsym(lib, "ncclCommInitAll");
	if (!get || !unique || !all) return fprintf(stderr, "nccl: %s\n", dlerror()), 1;
	rc = get(&version);
	printf("ncclGetVersion %d %d\n", rc, version);
	printf("ncclGetUniqueId %d\n", unique(id));
	printf("ncclCommInitAll %d\n", all(&communicator, 1, &device));
	return 0;
}
