/*
 * Asks a driver library for functions: lookups FILE [init] <QUESTIONS. One question per line, one answer per line, in the same order:
 *   d NAME                 dlsym
 *   1 NAME VERSION FLAGS   cuGetProcAddress
 *   2 NAME VERSION FLAGS   cuGetProcAddress_v2
 *   n NAME VERSION FLAGS   cuGetProcAddress_v2 that is not asked for a status
 * The empty name is (empty). With init, cuInit is called before.
 */
#include "where.h"
#include <stdint.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	static char line[512], name[256], place[512], buffer[1 << 16];
	void *driver = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int (*first)(const char *, void **, int, uint64_t), (*second)(const char *, void **, int, uint64_t, int *), (*init)(unsigned);

	if (!driver) return fprintf(stderr, "lookups: %s\n", argc > 1 ? dlerror() : "which file?"), 1;
	*(void **)&first = dlsym(driver, "cuGetProcAddress");
	*(void **)&second = dlsym(driver, "cuGetProcAddress_v2");
	*(void **)&init = dlsym(driver, "cuInit");
	setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
	if (argc > 2 && init) printf("cuInit %d\n", init(0));
	while (fgets(line, sizeof line, stdin)) {
		char way;
		int version = 0, rc = 0, status = -7;
		unsigned long flags = 0;
		void *p = UNTOUCHED;

		if (sscanf(line, "%c %255s %d %lu", &way, name, &version, &flags) < 2) continue;
		if (!strcmp(name, "(empty)")) *name = 0;
		if (way == 'd') p = dlsym(driver, name);
		else if (way == '1') rc = first ? first(name, &p, version, flags) : -1;
		else rc = second ? second(name, &p, version, flags, way == 'n' ? NULL : &status) : -1;
		where(p, place, sizeof place);
		printf("%d %d %s\n", rc, status, place);
	}
	return 0;
}
