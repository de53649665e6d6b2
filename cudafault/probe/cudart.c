// What a static cudart does, look-up by look-up: cudart FILE v1|v2. It asks for everything in FILE (recorded from cudart 11.8, 12.4 and 13.0) before
// cuInit, by one pointer that it got from dlsym, checks that each answer is the function it asked for, and then works with what it got,
// first with the legacy default stream and then with the twins for per-thread ones.
#define _GNU_SOURCE
#include "work.h"
#include <dlfcn.h>
#include <stdlib.h>

typedef int (*first_t)(const char *, void **, int, uint64_t);
typedef int (*second_t)(const char *, void **, int, uint64_t, int *);

static first_t first;
static second_t second;

struct answer { char name[64], symbol[64]; int version, flags; void *address; };
static struct answer answers[512];
static int count, wrong, hooked;

static void complain(const struct answer *a, const char *what)
{
	printf("%s version %d flags %d: %s\n", a->name, a->version, a->flags, what);
	wrong++;
}

// ask repeats one recorded question.
static void ask(struct answer *a)
{
	void *untouched = &wrong;
	int status = -7, code;
	const char *name = strcmp(a->name, "(empty)") ? a->name : "";
	int none = !strcmp(a->symbol, "-");
	a->address = untouched;
	code = second ? second(name, &a->address, a->version, (uint64_t)a->flags, &status) : first(name, &a->address, a->version, (uint64_t)a->flags);
	if (none) {
		if (second ? code || a->address || status != (*name ? 2 : 1) : code != 500 || a->address != untouched) complain(a, "wrong answer for nothing");
		a->address = NULL;
		return;
	}
	if (code || a->address == untouched || !a->address || (second && status)) {
		complain(a, "not found");
		a->address = NULL;
		return;
	}
	// The function is the driver's own, or one of an interposer's under the same name (or none: an interposer may keep its names to itself).
	Dl_info info;
	if (!dladdr(a->address, &info)) complain(a, "an address in no library");
	else if (!strstr(info.dli_fname, "libcuda.so.1")) hooked++;
	else if (!info.dli_sname || strcmp(info.dli_sname, a->symbol)) complain(a, info.dli_sname ? info.dli_sname : "an address with no name");
	if (dladdr(a->address, &info) && info.dli_sname && !strstr(info.dli_fname, "libcuda.so.1") && info.dli_saddr == a->address
		&& strcmp(info.dli_sname, a->symbol)) complain(a, info.dli_sname);
}

static void *find(const char *name, int version, uint64_t flags)
{
	struct answer *twin = NULL;
	for (int i = 0; i < count; i++) {
		if (strcmp(answers[i].name, name)) continue;
		if (answers[i].version == version && answers[i].flags == (int)flags) return answers[i].address;
		if (answers[i].flags == 0) twin = &answers[i];
	}
	return flags && twin ? twin->address : NULL; // no twin: the function has no stream
}

static void self_lookups(void)
{
	void *one = NULL, *two = NULL, *by_one = NULL, *by_two = NULL, *left = &wrong;
	int status = -7;
	int one_code = second ? second("cuGetProcAddress", &one, 11030, 0, NULL) : first("cuGetProcAddress", &one, 11030, 0);
	int two_code = second ? second("cuGetProcAddress", &two, 12000, 0, &status) : first("cuGetProcAddress", &two, 12000, 0);
	printf("NOTE self(11030) %d\nNOTE self(12000) %d\n", one_code, two_code);
	if (!one || !two) return;
	// Four arguments and five: the fifth of the second is written, and nothing else is.
	int canary = 0x5a5a;
	printf("NOTE first-arity %d\n", ((first_t)one)("cuMemAlloc", &by_one, 3020, 0));
	printf("NOTE second-arity %d\n", ((second_t)two)("cuMemAlloc", &by_two, 3020, 0, &canary));
	printf("same address %d, status %d\n", by_one == by_two, canary);
	printf("unknown by first %d", ((first_t)one)("cuNoSuchFunction", &left, 12000, 0));
	printf(", untouched %d\n", left == (void *)&wrong);
	printf("unknown by second %d", ((second_t)two)("cuNoSuchFunction", &left, 12000, 0, NULL));
	printf(", NULL %d\n", left == NULL);
	left = &wrong;
	printf("wrong flag %d", ((second_t)two)("cuInit", &left, 12000, 8, &status));
	printf(", untouched %d\n", left == (void *)&wrong);
	printf("empty name %d", ((second_t)two)("", &left, 0, 0, &status));
	printf(", status %d, NULL %d\n", status, left == NULL);
}

int main(int argc, char **argv)
{
	FILE *file = argc == 3 ? fopen(argv[1], "r") : NULL;
	if (!file) return fprintf(stderr, "usage: cudart FILE v1|v2\n"), 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return fprintf(stderr, "cudart: %s\n", dlerror()), 2;
	if (!strcmp(argv[2], "v1")) first = (first_t)dlsym(library, "cuGetProcAddress");
	else second = (second_t)dlsym(library, "cuGetProcAddress_v2");

	char line[256];
	while (fgets(line, sizeof line, file) && count < 512) {
		struct answer *a = &answers[count];
		if (*line != '#' && sscanf(line, "%63[^\t]\t%d\t%d\t%63s", a->name, &a->version, &a->flags, a->symbol) == 4) ask(a), count++;
	}
	fclose(file);
	printf("lookups %d wrong %d\n", count, wrong);
	if (getenv("PROBE_HOOKED")) printf("hooked %d\n", hooked);
	self_lookups();

	// The recorded list has all that the work needs. Some functions have a twin from another version only: find knows.
	struct driver d;
	find_entries(&d, find, 0);
	int version = 0;
	int (*driver_version)(int *) = (int (*)(int *))find("cuDriverGetVersion", 2020, 0);
	printf("NOTE cuDriverGetVersion %d\n", driver_version ? driver_version(&version) : -1);
	printf("driver %d\n", version);
	work(&d, stdout, "");
	find_entries(&d, find, 1);
	work(&d, stdout, "twins ");
	return wrong != 0;
}
