// Several ranks, as with torch.distributed: RANK (or a Job's JOB_COMPLETION_INDEX) of WORLD_SIZE meet at MASTER_ADDR:MASTER_PORT, and wait for
// each other in every step, as in an all-reduce. Data goes through rank 0, over TCP. Whoever waits too long ends as PyTorch does: the rendezvous
// after RENDEZVOUS_TIMEOUT (1800), a collective operation after COLLECTIVE_TIMEOUT (600), in seconds.
#define _GNU_SOURCE
#include "trainer.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, REPORT_MS = 15000, ABORTED = 134 };
static struct { long rank, size, joined, operations; int64_t patience; int peers[MOST_RANKS]; } group; // rank 0 has a peer for each rank, others one

static long number(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

// A connection that is closed is one whose process is gone.
static void remote_error(void)
{
	fflush(stdout);
	fprintf(stderr, "[rank%ld]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, "
		"NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n", group.rank);
	exit(1);
}

static void quit(void) { printf("terminated\n"); exit(128 + SIGTERM); }

// 1: a number came; 0: not within ms.
static int take(int peer, int32_t *value, int64_t until)
{
	for (;;) {
		int64_t left = until - now_ms();
		struct pollfd wait = {.fd = peer, .events = POLLIN};
		if (stopping()) quit();
		if (left < 0) return 0;
		if (poll(&wait, 1, left < 500 ? (int)left : 500) <= 0) continue;
		// poll may report a socket that has nothing to read.
		ssize_t got = recv(peer, value, sizeof *value, MSG_DONTWAIT);
		if (got == sizeof *value) return 1;
		if (got >= 0 || (errno != EAGAIN && errno != EINTR)) remote_error();
		usleep(20000);
	}
}

static void give(int peer, int32_t value)
{
	if (send(peer, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) remote_error();
}

static int listen_for_ranks(long port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, MOST_RANKS)) return fd;
	fprintf(stderr, "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: %ld, %s\n", port, strerror(errno));
	exit(1);
}

// A rank that joins again replaces its process that is gone.
static void welcome(int peer)
{
	int32_t rank = 0;
	if (!take(peer, &rank, now_ms() + 5000) || rank < 1 || rank >= group.size) { close(peer); return; }
	if (group.peers[rank]) close(group.peers[rank]), group.joined--;
	group.peers[rank] = peer, group.joined++;
	printf("rendezvous: rank %d joined, %ld/%ld clients joined\n", rank, group.joined, group.size);
}

static void gather(long port, int64_t until)
{
	int64_t said = now_ms();
	int fd = listen_for_ranks(port);
	for (group.joined = 1; group.joined < group.size;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		if (stopping()) quit();
		if (poll(&wait, 1, 500) > 0) {
			int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
			if (peer >= 0) welcome(peer);
		} else if (now_ms() >= until) {
			fflush(stdout);
			fprintf(stderr, "torch.distributed.DistStoreError: Timed out after %ld seconds waiting for clients. %ld/%ld clients joined.\n",
				number("RENDEZVOUS_TIMEOUT", 1800) + 1, group.joined, group.size);
			exit(1);
		} else if (now_ms() - said >= REPORT_MS) {
			printf("rendezvous: waiting for clients. %ld/%ld clients joined\n", group.joined, group.size);
			said = now_ms();
		}
	}
	close(fd);
	for (long rank = 1; rank < group.size; rank++) give(group.peers[rank], 0);
}

// -1: the name is not known, or nothing listens; why has the words of torch's socket.cpp.
static int dial(const char *host, long port, char *why, size_t size)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
	char text[16];
	snprintf(text, sizeof text, "%d", (int)port);
	int fd, code = getaddrinfo(host, text, &hints, &found);
	if (code) {
		snprintf(why, size, "[W socket.cpp:464] [c10d] The IPv4 network addresses of (%s, %ld) cannot be retrieved (gai error: %d - %s).", host, port, code, gai_strerror(code));
		return -1;
	}
	// Without a limit, a connection to the address of a pod that is gone is tried for two minutes, and the name is not resolved again.
	struct timeval most = {.tv_sec = 3};
	if ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) ||
		connect(fd, found->ai_addr, found->ai_addrlen))) {
		errno = errno == EINPROGRESS ? ETIMEDOUT : errno;
		close(fd), fd = -1;
	}
	if (fd < 0) snprintf(why, size, "[W socket.cpp:752] [c10d] The client socket has failed to connect to [%s]:%ld (errno: %d - %s).", host, port, errno, strerror(errno));
	freeaddrinfo(found);
	return fd;
}

static void join(const char *host, long port, int64_t until)
{
	char why[512];
	int32_t begin;
	int64_t said = 0;
	while ((group.peers[0] = dial(host, port, why, sizeof why)) < 0) {
		if (stopping()) quit();
		if (!said || now_ms() - said >= REPORT_MS) fprintf(stderr, "%s\n", why), said = now_ms();
		if (now_ms() >= until) {
			fprintf(stderr, "torch.distributed.DistNetworkError: The client socket has timed out after %ldms while trying to connect to (%s, %ld).\n",
				number("RENDEZVOUS_TIMEOUT", 1800) * 1000, host, port);
			exit(1);
		}
		usleep(500000);
	}
	give(group.peers[0], (int32_t)group.rank);
	printf("rendezvous: connected to %s:%ld, waiting for %ld ranks\n", host, port, group.size);
	if (take(group.peers[0], &begin, until)) return;
	fflush(stdout);
	fprintf(stderr, "torch.distributed.DistStoreError: wait timeout after %ldms, keys: /default_pg/0//worker_count\n", number("RENDEZVOUS_TIMEOUT", 1800) * 1000);
	exit(1);
}

void join_ranks(void)
{
	const char *host = getenv("MASTER_ADDR");
	long port = number("MASTER_PORT", 29500);
	int64_t until = now_ms() + number("RENDEZVOUS_TIMEOUT", 1800) * 1000;
	group.size = number("WORLD_SIZE", 1), group.rank = number("RANK", number("JOB_COMPLETION_INDEX", 0));
	group.patience = number("COLLECTIVE_TIMEOUT", 600) * 1000;
	progress.rank = group.rank, progress.ranks = group.size;
	if (group.size == 1) return;
	if (group.size < 1 || group.size > MOST_RANKS || group.rank < 0 || group.rank >= group.size) {
		fprintf(stderr, "ValueError: rank %ld of WORLD_SIZE %ld\n", group.rank, group.size);
		exit(1);
	}
	if (!host || !*host) exit((fprintf(stderr, "ValueError: Error initializing torch.distributed using env:// rendezvous: "
		"environment variable MASTER_ADDR expected, but not set\n"), 1));
	printf("rendezvous: rank %ld of %ld at %s:%ld\n", group.rank, group.size, host, port);
	if (group.rank) join(host, port, until);
	else gather(port, until);
	printf("init_process_group: %ld ranks\n", group.size);
}

// As the watchdog thread of ProcessGroupNCCL, which then aborts the process.
static void expire(long operation, int64_t since)
{
	fflush(stdout);
	fprintf(stderr, "[rank%ld]:[E ProcessGroupNCCL.cpp:629] [Rank %ld] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%ld, OpType=ALLREDUCE, "
		"NumelIn=4096, NumelOut=4096, Timeout(ms)=%ld) ran for %ld milliseconds before timing out.\n"
		"terminate called after throwing an instance of 'c10::DistBackendError'\n", group.rank, group.rank, operation, (long)group.patience, (long)(now_ms() - since));
	_exit(ABORTED);
}

// Every rank has done the step when this returns.
void all_reduce(void)
{
	int64_t since = now_ms(), until = since + group.patience;
	int32_t number = (int32_t)++group.operations, other;
	if (group.size == 1) return;
	if (group.rank) give(group.peers[0], number);
	for (long rank = 1; rank < (group.rank ? 2 : group.size); rank++) {
		if (!take(group.peers[group.rank ? 0 : rank], &other, until)) expire(number, since);
		if (other != number) exit((fprintf(stderr, "RuntimeError: Detected mismatch between collectives on ranks: operation %d and %d\n", number, other), 1));
	}
	for (long rank = 1; !group.rank && rank < group.size; rank++) give(group.peers[rank], number);
}
