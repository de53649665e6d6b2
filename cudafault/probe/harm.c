// What a shim must not do to a program: harm WAY [...]. Each way prints what it saw, which is the same with and without a shim unless said otherwise.
//	environ      calls of the driver and of NVML beside a thread that changes the environment
//	jump         jumps out of a call that hangs, then calls again: "first N then N" are the codes, -1 for a jump
//	pageable N   N asynchronous copies into pageable memory that is used for something else, or unmapped, as soon as the call returns: "touched N"
//	starts       16 threads make their first calls at once: "seen N", the calls that an interposer behind the shim got of the 16 allocations
#define _GNU_SOURCE
#include "actor.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static volatile int stop;

static void *change(void *unused)
{
	char name[32];
	for (unsigned i = 0; !stop; i++) {
		snprintf(name, sizeof name, "HARM_%u", i % 5000);
		if (i / 5000 % 2) unsetenv(name);
		else setenv(name, "a value that has some length, so that the old one is not used again", 1);
	}
	return unused;
}

static void in_environ(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *gpu = NULL;
	unsigned temperature;
	pthread_t id;
	double until;
	int code = prepare(0);
	((int (*)(void))dlsym(nvml, "nvmlInit_v2"))();
	// The fake driver and libc read the environment too, but only above.
	pthread_create(&id, NULL, change, NULL);
	until = seconds(CLOCK_MONOTONIC) + 3;
	while (seconds(CLOCK_MONOTONIC) < until) {
		for (int i = 0; i < 1000; i++) call("launch");
		((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &gpu);
		((int (*)(void *, int, unsigned *))dlsym(nvml, "nvmlDeviceGetTemperature"))(gpu, 0, &temperature);
	}
	stop = 1;
	pthread_join(id, NULL);
	printf("start %d\n", code);
}

static sigjmp_buf back;
static void out(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

__attribute__((noinline)) static int deeper(int depth)
{
	volatile char room[512];
	room[0] = (char)depth;
	return depth ? deeper(depth - 1) + room[0] * 0 : call("sync");
}

static void jump(void)
{
	volatile int first = -1, then = -1;
	int code = prepare(0);
	signal(SIGALRM, out);
	if (!sigsetjmp(back, 1)) {
		alarm(1);
		first = call("sync");
	}
	if (!sigsetjmp(back, 1)) {
		alarm(1);
		then = deeper(8); // in a frame below the one that was left
	}
	alarm(0);
	printf("start %d first %d then %d\n", code, first, then);
}

static void pageable(long n)
{
	long touched = 0;
	int code = prepare(0);
	for (long i = 0; i < n && !code; i++) {
		unsigned char *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		code = cu.cuMemcpyDtoHAsync(page, buffer, BYTES, stream);
		if (i % 2) {
			memset(page, 0x55, BYTES);
			cu.cuStreamSynchronize(stream);
			for (int k = 0; k < BYTES; k++) touched += page[k] != 0x55;
		}
		munmap(page, BYTES);
	}
	cu.cuStreamSynchronize(stream);
	printf("code %d touched %ld\n", code, touched);
}

static pthread_barrier_t barrier;
static void *one_start(void *unused)
{
	uint64_t at = 0;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	pthread_barrier_wait(&barrier);
	int (*allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(library, "cuMemAlloc_v2");
	if (allocate) allocate(&at, 16);
	return unused;
}

static void starts(void)
{
	pthread_t ids[16];
	pthread_barrier_init(&barrier, NULL, 16);
	for (int i = 0; i < 16; i++) pthread_create(&ids[i], NULL, one_start, NULL);
	for (int i = 0; i < 16; i++) pthread_join(ids[i], NULL);
	int (*seen)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "neighbor_seen");
	printf("seen %d\n", seen ? seen() : -1);
}

int main(int argc, char **argv)
{
	if (argc < 2) return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(argv[1], "starts")) return starts(), 0;
	if (!load()) return 2;
	if (!strcmp(argv[1], "environ")) in_environ();
	else if (!strcmp(argv[1], "jump")) jump();
	else if (!strcmp(argv[1], "pageable")) pageable(argc > 2 ? atol(argv[2]) : 100);
	else return 2;
	return 0;
}
