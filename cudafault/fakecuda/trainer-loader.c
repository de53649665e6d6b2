// The data loader, as PyTorch's: NUM_WORKERS processes write batches of BATCH_SIZE samples of SAMPLE_SIZE each to shared memory in /dev/shm,
// PREFETCH_FACTOR batches ahead, and the training reads them. Without workers, the training makes its batches itself, in its own memory.
#define _GNU_SOURCE
#include "trainer.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORKERS = 64, MOST_AHEAD = 64 };
static struct worker { pid_t pid; int ready, wanted; unsigned char *batches; } all[MOST_WORKERS];
static struct { size_t batch; long workers, ahead, next; unsigned char *own; } loader;

static long number(const char *name, long otherwise, long least, long most)
{
	const char *text = getenv(name);
	long value = text && *text ? strtol(text, NULL, 10) : otherwise;
	if (value >= least && value <= most) return value;
	fprintf(stderr, "ValueError: %s must be from %ld to %ld, but got %s\n", name, least, most, text);
	exit(1);
}

// The words are those of torch's DataLoader.cpp.
static void on_bus_error(int signal)
{
	static const char text[] = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n";
	ssize_t written = write(2, text, sizeof text - 1);
	(void)written;
	struct sigaction otherwise = {.sa_handler = SIG_DFL};
	sigaction(signal, &otherwise, NULL);
	raise(signal);
}

// A batch is written whole, whatever is in it: a file in a full tmpfs has no page to write to, which is SIGBUS.
static void work(struct worker *w, int wanted, int ready)
{
	struct sigaction bus = {.sa_handler = on_bus_error, .sa_flags = SA_NODEFER};
	unsigned char slot;
	sigaction(SIGBUS, &bus, NULL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned char value = 1; read(wanted, &slot, 1) == 1; value++) {
		memset(w->batches + slot * loader.batch, value, loader.batch);
		if (write(ready, &slot, 1) != 1) break;
	}
	_exit(0);
}

static void fail(const char *what)
{
	fprintf(stderr, "RuntimeError: %s: %s\n", what, strerror(errno));
	exit(1);
}

// Has no name once it is mapped, so that nothing stays behind.
static unsigned char *share(size_t size)
{
	static int count;
	char name[64];
	snprintf(name, sizeof name, "/torch_%d_%d", (int)getpid(), count++);
	int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
	if (fd < 0) fail("unable to open shared memory object in read-write mode");
	if (ftruncate(fd, (off_t)size)) fail("unable to resize file to the right size");
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) fail("unable to mmap shared memory");
	shm_unlink(name);
	close(fd);
	return at;
}

static void start(struct worker *w)
{
	int wanted[2], ready[2];
	w->batches = share(loader.batch * (size_t)loader.ahead);
	if (pipe2(wanted, O_CLOEXEC) || pipe2(ready, O_CLOEXEC)) fail("pipe");
	fflush(stdout);
	if ((w->pid = fork()) < 0) fail("fork");
	if (!w->pid) close(wanted[1]), close(ready[0]), work(w, wanted[0], ready[1]);
	close(wanted[0]), close(ready[1]); // so that the next worker does not keep them open
	w->wanted = wanted[1], w->ready = ready[0];
	for (unsigned char slot = 0; slot < loader.ahead; slot++)
		if (write(w->wanted, &slot, 1) != 1) fail("write to worker");
}

void start_loader(void)
{
	if (!(loader.batch = bytes_of("SAMPLE_SIZE"))) return;
	loader.batch *= (size_t)number("BATCH_SIZE", 1, 1, 1 << 20);
	loader.workers = number("NUM_WORKERS", 0, 0, MOST_WORKERS);
	loader.ahead = number("PREFETCH_FACTOR", 2, 1, MOST_AHEAD);
	printf("data loader: num_workers=%ld prefetch_factor=%ld, batches of %zu MiB\n", loader.workers, loader.ahead, loader.batch >> 20);
	if (!loader.workers && !(loader.own = malloc(loader.batch))) fail("malloc");
	signal(SIGPIPE, SIG_IGN);
	for (long i = 0; i < loader.workers; i++) start(&all[i]);
	progress.workers = loader.workers;
}

// The words are those of torch's DataLoader.cpp, which looks at the workers whenever one ends.
static void worker_died(const struct worker *w)
{
	int status = 0;
	fflush(stdout);
	if (waitpid(w->pid, &status, 0) == w->pid && WIFSIGNALED(status))
		fprintf(stderr, "RuntimeError: DataLoader worker (pid %d) is killed by signal: %s. %s\n", (int)w->pid, strsignal(WTERMSIG(status)),
			WTERMSIG(status) != SIGBUS ? "" : "It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.");
	else fprintf(stderr, "RuntimeError: DataLoader worker (pid %d) exited unexpectedly with exit code %d.\n", (int)w->pid, WEXITSTATUS(status));
	exit(1);
}

void next_batch(void)
{
	unsigned char slot;
	if (!loader.batch) return;
	if (loader.own) { memset(loader.own, (int)++loader.next, loader.batch); return; }
	struct worker *w = &all[loader.next++ % loader.workers];
	if (read(w->ready, &slot, 1) != 1) worker_died(w);
	const unsigned char *batch = w->batches + slot * loader.batch;
	if (batch[0] != batch[loader.batch - 1]) exit((fprintf(stderr, "AssertionError: a batch is not whole\n"), 1));
	if (write(w->wanted, &slot, 1) != 1) worker_died(w);
	progress.loaded += (double)loader.batch;
}
