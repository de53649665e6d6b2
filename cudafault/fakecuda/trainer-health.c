// Reading the health of GPUs by NVML, as device plugins do: it waits for critical XIDs of all GPUs, and prints each one;
// when NVML reports an error instead, it prints which GPUs have it. With a program to supervise, it ends when that does,
// as launchers do, or starts it again.
#define _GNU_SOURCE
#include "trainer.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

// From nvml.h.
enum { XID_CRITICAL = 8, TIMEOUT = 10, GPUS = 16, WAIT_MS = 1000 };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
struct event { void *gpu; unsigned long long type, data; unsigned instance, compute; };

#define NVML(X) \
	X(nvmlInit_v2, int, (void)) \
	X(nvmlErrorString, const char *, (int)) \
	X(nvmlDeviceGetCount_v2, int, (unsigned *)) \
	X(nvmlDeviceGetHandleByIndex_v2, int, (unsigned, void **)) \
	X(nvmlDeviceGetPciInfo_v3, int, (void *, struct pci *)) \
	X(nvmlDeviceGetUtilizationRates, int, (void *, void *)) \
	X(nvmlEventSetCreate, int, (void **)) \
	X(nvmlDeviceRegisterEvents, int, (void *, unsigned long long, void *)) \
	X(nvmlEventSetWait_v2, int, (void *, struct event *, unsigned))
#define DECLARE(name, type, parameters) static type (*name) parameters;
NVML(DECLARE)

static struct { void *handle; char address[32]; int code; } gpus[GPUS];
static unsigned count;
static pid_t child;
static volatile sig_atomic_t ended;

static void on_end(int signal)
{
	ended = signal;
	if (child > 0) kill(child, signal);
}

static int bind(void)
{
	void *library = nvml_library();
	if (!library) return fprintf(stderr, "NVML: libnvidia-ml.so.1 was not found\n"), 0;
#define LOOK(name, type, parameters) \
	if (!(name = (type (*) parameters)dlsym(library, #name))) \
		return fprintf(stderr, "NVML: the library lacks %s\n", #name), 0;
	NVML(LOOK)
	return 1;
}

// Prints the state of a GPU if it has changed.
static void report(unsigned i, int code)
{
	if (code != gpus[i].code) printf("NVML: GPU %u %s: %s (%d)\n", i, gpus[i].address, nvmlErrorString(code), code);
	gpus[i].code = code;
}

static void look(void)
{
	struct { unsigned gpu, memory; } rates;
	for (unsigned i = 0; i < count; i++)
		if (gpus[i].handle) report(i, nvmlDeviceGetUtilizationRates(gpus[i].handle, &rates));
}

// Returns the set of the events of all GPUs that can be read.
static void *subscribe(void)
{
	void *set = NULL;
	unsigned watched = 0;
	int code = nvmlInit_v2();
	if (!code) code = nvmlDeviceGetCount_v2(&count);
	if (!code) code = nvmlEventSetCreate(&set);
	if (code) return fprintf(stderr, "NVML: %s (%d)\n", nvmlErrorString(code), code), NULL;
	if (count > GPUS) count = GPUS;
	for (unsigned i = 0; i < count; i++) {
		struct pci pci = {.address = ""};
		code = nvmlDeviceGetHandleByIndex_v2(i, &gpus[i].handle);
		if (!code) code = nvmlDeviceGetPciInfo_v3(gpus[i].handle, &pci);
		snprintf(gpus[i].address, sizeof gpus[i].address, "%s", pci.address);
		if (!code) code = nvmlDeviceRegisterEvents(gpus[i].handle, XID_CRITICAL, set);
		report(i, code);
		if (code) gpus[i].handle = NULL;
		else watched++;
	}
	printf("NVML: watching %u of %u GPUs\n", watched, count);
	return set;
}

static void wait_once(void *set)
{
	struct event event = {0};
	int code = nvmlEventSetWait_v2(set, &event, WAIT_MS);
	if (code == 0)
		for (unsigned i = 0; i < count; i++)
			if (gpus[i].handle == event.gpu) printf("NVML: Xid=%llu on GPU %u %s\n", event.data, i, gpus[i].address);
	if (code != 0 && code != TIMEOUT) look();
}

// Starts the program to supervise: this one, without the supervision.
static int start(char **argv)
{
	if ((child = fork()) != 0) return child > 0;
	char path[4096] = "";
	unsetenv("TRAINER_HEALTH");
	if (readlink("/proc/self/exe", path, sizeof path - 1) > 0) execv(path, argv); // so that its name stays
	_exit(127);
}

// The exit code of the program if it has ended, else -1.
static int child_ended(void)
{
	int status;
	if (waitpid(child, &status, WNOHANG) != child) return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void watch_once(void *set)
{
	if (set) wait_once(set);
	else usleep(WAIT_MS * 1000);
}

int watch_health(void)
{
	signal(SIGTERM, on_end);
	signal(SIGINT, on_end);
	void *set = bind() ? subscribe() : NULL;
	if (!set) return 1;
	while (!ended) watch_once(set);
	return 0;
}

int supervise(char **argv, long restarts)
{
	signal(SIGTERM, on_end);
	signal(SIGINT, on_end);
	if (!start(argv)) return 1;
	void *set = bind() ? subscribe() : NULL;
	for (;;) {
		int code = child_ended();
		if (code == 0 || (code > 0 && (ended || restarts-- <= 0 || !start(argv)))) return code;
		watch_once(set);
	}
}
