// A program that finds the driver at run time: loaded WAY. The ways are listed in main.
#define _GNU_SOURCE
#include "work.h"
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static void *library;

static void *by_dlsym(const char *name) { return dlsym(library, name); }
static void *by_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
static void *by_next(const char *name) { return dlsym(RTLD_NEXT, name); }

// As a binary that was linked with an old glibc: the reference is to the oldest version of dlsym there is.
#ifdef __x86_64__
void *old_dlsym(void *, const char *);
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");
static void *by_old_dlsym(const char *name) { return old_dlsym(library, name); }
#endif

static int (*lookup_v1)(const char *, void **, int, uint64_t);
static int (*lookup_v2)(const char *, void **, int, uint64_t, int *);
static void *by_v1(const char *name, int version, uint64_t flags)
{
	void *address = NULL;
	return lookup_v1(name, &address, version, flags) ? NULL : address;
}
static void *by_v2(const char *name, int version, uint64_t flags)
{
	void *address = NULL;
	int status;
	return lookup_v2(name, &address, version, flags, &status) ? NULL : address;
}

static void open_driver(int mode)
{
	library = dlopen("libcuda.so.1", mode);
	if (!library) {
		fprintf(stderr, "loaded: %s\n", dlerror());
		exit(2);
	}
	lookup_v1 = (int (*)(const char *, void **, int, uint64_t))dlsym(library, "cuGetProcAddress");
	lookup_v2 = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
}

static void work_symbols(void *(*find)(const char *), const char *prefix)
{
	struct driver d;
	find_symbols(&d, find, 0);
	work(&d, stdout, prefix);
}

// cudaGetDriverEntryPoint, as NCCL uses it: each function is asked for when it is needed, of a cuGetProcAddress that was itself asked of
// cuGetProcAddress; the status is not wanted.
static void *by_entry_point(const char *name, int version, uint64_t flags)
{
	void *self = NULL, *address = NULL;
	if (lookup_v2("cuGetProcAddress", &self, 12000, 0, NULL)) return NULL;
	int (*again)(const char *, void **, int, uint64_t, int *) = (int (*)(const char *, void **, int, uint64_t, int *))self;
	return again(name, &address, version, flags, NULL) ? NULL : address;
}

// After a dlclose the driver may come back at another address: its old place is taken here.
static void reopen(void)
{
	Dl_info info;
	open_driver(RTLD_NOW);
	void *former = dlsym(library, "cuInit");
	work_symbols(by_dlsym, "");
	if (!dladdr(former, &info)) return;
	dlclose(library);
	void *gone = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (gone) dlclose(gone);
	else mmap(info.dli_fbase, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	open_driver(RTLD_NOW);
	work_symbols(by_dlsym, "again ");
}

// libc's own dlsym, asked of libc: it would lead past whoever is preloaded.
static void *(*libc_dlsym)(void *, const char *);
static void *by_libc(const char *name) { return libc_dlsym(library, name); }

#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

// libc's dlsym, as dlsym or dlvsym return it.
static void through(void *found)
{
	libc_dlsym = (void *(*)(void *, const char *))found;
	open_driver(RTLD_NOW);
	work_symbols(by_libc, "");
}

// The same library again: by a handle for what is loaded already, or by its full path.
static void once_more(int by_path)
{
	Dl_info info;
	open_driver(RTLD_NOW);
	if (!dladdr(dlsym(library, "cuGetErrorString"), &info)) exit(2);
	library = by_path ? dlopen(info.dli_fname, RTLD_NOW) : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!library) exit(2);
	work_symbols(by_dlsym, "");
}

// When a thread ends, and when the program does.
static void late(void *unused)
{
	(void)unused;
	work_symbols(by_dlsym, "");
}
static void at_exit(void) { late(NULL); }
static pthread_key_t key;
static void *ending(void *unused)
{
	pthread_setspecific(key, &key);
	return unused;
}

// The driver in a namespace of its own, as plugins and tracers are loaded.
static void own_namespace(void)
{
	library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "loaded: %s\n", dlerror());
		exit(2);
	}
}

// A second copy of the driver's file beside the first, which is used too.
static void copies(void)
{
	char name[] = "/tmp/libcuda.so.XXXXXX", block[65536];
	Dl_info info;
	open_driver(RTLD_NOW);
	if (!dladdr(dlsym(library, "cuGetErrorString"), &info)) exit(2);
	FILE *from = fopen(info.dli_fname, "r");
	int to = mkstemp(name);
	for (size_t n; from && (n = fread(block, 1, sizeof block, from)) > 0;)
		if (write(to, block, n) != (ssize_t)n) exit(2);
	work_symbols(by_dlsym, "");
	library = dlopen(name, RTLD_NOW);
	unlink(name);
	if (!library) {
		fprintf(stderr, "loaded: %s\n", dlerror());
		exit(2);
	}
	work_symbols(by_dlsym, "second ");
	lookup_v2 = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
	struct driver d;
	find_entries(&d, by_v2, 0);
	work(&d, stdout, "second, by cuGetProcAddress ");
}

// What a child needs of the environment to find the driver, and nothing else.
static char *only[16];
static void clean(void)
{
	int n = 0;
	for (char **e = environ; *e && n < 15; e++)
		if (!strncmp(*e, "LD_LIBRARY_PATH=", 16) || !strncmp(*e, "PATH=", 5) || !strncmp(*e, "FAKECUDA_", 9)) only[n++] = *e;
}

static void plugin(const char *file, int mode)
{
	void *handle = dlopen(file, mode);
	if (!handle) {
		fprintf(stderr, "loaded: %s\n", dlerror());
		exit(2);
	}
	((int (*)(void))dlsym(handle, "plugin_work"))();
}

static void child(const char *prefix)
{
	open_driver(RTLD_NOW);
	work_symbols(by_dlsym, prefix);
	fflush(stdout);
}

static void forked(void)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		child("child ");
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	child("parent ");
}

enum { THREADS = 64, ROUNDS = 20 };
static struct driver shared;
static pthread_barrier_t barrier;

static void *one_thread(void *codes)
{
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < ROUNDS; i++) ((int *)codes)[i] = work(&shared, NULL, "");
	return NULL;
}

static void threads(void)
{
	static int codes[THREADS][ROUNDS];
	pthread_t ids[THREADS];
	pthread_barrier_init(&barrier, NULL, THREADS);
	open_driver(RTLD_NOW);
	find_symbols(&shared, by_dlsym, 0);
	for (int i = 0; i < THREADS; i++) pthread_create(&ids[i], NULL, one_thread, codes[i]);
	for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
	for (int i = 0; i < THREADS; i++)
		for (int j = 0; j < ROUNDS; j++)
			if (codes[i][j] != codes[0][0]) printf("NOTE thread-%d-round-%d %d\n", i, j, codes[i][j]);
	printf("CALL threads %d\n", codes[0][0]);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	struct driver d;
	setvbuf(stdout, NULL, _IOLBF, 0);
#define WAY(name) else if (!strcmp(way, name))
	if (!*way) return fprintf(stderr, "usage: loaded WAY [PLUGIN]\n"), 2;
	WAY("dlsym") { open_driver(RTLD_NOW); work_symbols(by_dlsym, ""); }
	WAY("lazy") { open_driver(RTLD_LAZY | RTLD_LOCAL); work_symbols(by_dlsym, ""); }
	WAY("default") { open_driver(RTLD_NOW | RTLD_GLOBAL); work_symbols(by_default, ""); }
#ifdef __x86_64__
	WAY("old-dlsym") { open_driver(RTLD_NOW); work_symbols(by_old_dlsym, ""); }
#endif
	WAY("v1") { open_driver(RTLD_NOW); find_entries(&d, by_v1, 0); work(&d, stdout, ""); }
	WAY("v2") { open_driver(RTLD_NOW); find_entries(&d, by_v2, 0); work(&d, stdout, ""); }
	WAY("v1-twins") { open_driver(RTLD_NOW); find_entries(&d, by_v1, 1); work(&d, stdout, ""); }
	WAY("v2-twins") { open_driver(RTLD_NOW); find_entries(&d, by_v2, 1); work(&d, stdout, ""); }
	WAY("dlsym-twins") { open_driver(RTLD_NOW); find_symbols(&d, by_dlsym, 1); work(&d, stdout, ""); }
	WAY("entry-point") { open_driver(RTLD_NOW); find_entries(&d, by_entry_point, 0); work(&d, stdout, ""); }
	WAY("graph") { open_driver(RTLD_NOW); find_entries(&d, by_v2, 0); work_graph(&d, stdout); }
	WAY("reopen") reopen();
	WAY("fork") forked();
	WAY("threads") threads();
	WAY("plugin") plugin(argv[2], RTLD_NOW | RTLD_LOCAL);
	WAY("deepbind") plugin(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	WAY("spawn") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		pid_t pid;
		if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ)) return 2;
		waitpid(pid, NULL, 0);
	}
	WAY("exec") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		execv("/proc/self/exe", arguments);
		return 2;
	}
	WAY("libc-dlsym") {
		libc_dlsym = (void *(*)(void *, const char *))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
		open_driver(RTLD_NOW);
		work_symbols(by_libc, "");
	}
	WAY("next") { open_driver(RTLD_NOW | RTLD_GLOBAL); work_symbols(by_next, ""); }
	WAY("deepbind-driver") { open_driver(RTLD_NOW | RTLD_DEEPBIND); work_symbols(by_dlsym, ""); }
	WAY("dlsym-of-dlsym") through(dlsym(RTLD_DEFAULT, "dlsym"));
	WAY("dlvsym-of-dlsym") through(dlvsym(RTLD_DEFAULT, "dlsym", OLDEST));
	WAY("no-load") once_more(0);
	WAY("full-path") once_more(1);
	WAY("thread-exit") {
		pthread_t id;
		open_driver(RTLD_NOW);
		pthread_key_create(&key, late);
		pthread_create(&id, NULL, ending, NULL);
		pthread_join(id, NULL);
	}
	WAY("at-exit") { open_driver(RTLD_NOW); atexit(at_exit); }
	WAY("vfork") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		pid_t pid = vfork();
		if (pid == 0) {
			execv("/proc/self/exe", arguments);
			_exit(2);
		}
		waitpid(pid, NULL, 0);
	}
	WAY("namespace") { own_namespace(); work_symbols(by_dlsym, ""); }
	WAY("copies") copies();
	WAY("clean-exec") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		clean();
		execve("/proc/self/exe", arguments, only);
		return 2;
	}
	WAY("clean-fork") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		int status = 0;
		clean();
		if (fork() == 0) {
			environ = only;
			execvp(argv[0], arguments);
			_exit(2);
		}
		wait(&status);
		return WEXITSTATUS(status);
	}
	WAY("clean-spawn") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		pid_t pid;
		clean();
		if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, only)) return 2;
		waitpid(pid, NULL, 0);
	}
	WAY("unset-exec") {
		char *arguments[] = {argv[0], "dlsym", NULL};
		unsetenv("LD_PRELOAD");
		execv("/proc/self/exe", arguments);
		return 2;
	}
	WAY("env-i") {
		char path[4096], *arguments[] = {"env", "-i", path, argv[0], "dlsym", NULL};
		snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH"));
		execvp("env", arguments);
		return 2;
	}
	else return fprintf(stderr, "loaded: unknown way %s\n", way), 2;
	return 0;
}
