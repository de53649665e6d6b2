// A little HTTP: metrics for Prometheus, a store for checkpoints (what an object store is for), and its client. No keep-alive, no TLS.
#define _GNU_SOURCE
#include "trainer.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

volatile struct progress progress;

static void timeouts(int fd)
{
	struct timeval wait = {5, 0};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
}

static void put(int fd, const char *text)
{
	for (size_t n = strlen(text); n;) {
		ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
		if (sent <= 0) return;
		text += sent, n -= (size_t)sent;
	}
}

// On IPv6 and IPv4, or on the only one that there is.
static int listen_on(int port)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons((uint16_t)port)};
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int on = 1, off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), bound = -1;
	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
		bound = bind(fd, (struct sockaddr *)&six, sizeof six);
		if (bound) close(fd);
	}
	if (bound) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		bound = bind(fd, (struct sockaddr *)&four, sizeof four);
	}
	if (bound || listen(fd, 16)) {
		fprintf(stderr, "OSError: cannot listen on port %d: %s\n", port, strerror(errno));
		exit(1);
	}
	return fd;
}

// Reads a request whose body is as long as its Content-Length says, up to what fits.
static int read_request(int fd, struct request *r)
{
	char text[4096];
	size_t n = 0;
	for (;;) {
		ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
		if (got <= 0) return 0;
		text[n += (size_t)got] = 0;
		char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length:");
		if (!end && n < sizeof text - 1) continue;
		if (!end) return 0;
		size_t want = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
		if (want >= sizeof r->body) return 0;
		if (n - (size_t)(end + 4 - text) < want) continue;
		snprintf(r->body, sizeof r->body, "%.*s", (int)want, end + 4);
		return sscanf(text, "%7s %255s", r->method, r->path) == 2;
	}
}

void answer(int fd, const char *status, const char *body)
{
	char head[160];
	snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
		status, strlen(body));
	put(fd, head);
	put(fd, body);
}

void serve(int port, void (*handle)(int, struct request *))
{
	int fd = listen_on(port);
	for (;;) {
		int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		struct request r;
		if (client < 0) continue;
		timeouts(client);
		if (read_request(client, &r)) handle(client, &r);
		close(client);
	}
}

static void metric(char *text, size_t size, const char *name, const char *type, const char *labels, double value, const char *help)
{
	size_t n = strlen(text);
	snprintf(text + n, size - n, "# HELP %s %s\n# TYPE %s %s\n%s%s %.15g\n", name, help, name, type, name, labels, value);
}

// The share of the periods in which the container was throttled, as container_cpu_cfs_throttled_periods_total and container_cpu_cfs_periods_total
// of cAdvisor tell it; 0 without a CPU limit.
static double throttled(void)
{
	static const char *const files[] = {"/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"};
	double periods = 0, spent = 0;
	for (size_t i = 0; !periods && i < sizeof files / sizeof *files; i++) {
		char line[128];
		FILE *file = fopen(files[i], "re");
		while (file && fgets(line, sizeof line, file)) {
			sscanf(line, "nr_periods %lf", &periods);
			sscanf(line, "nr_throttled %lf", &spent);
		}
		if (file) fclose(file);
	}
	return periods > 0 ? spent / periods : 0;
}

static void metrics(char *text, size_t size)
{
	struct reading r;
	char labels[160];
	*text = 0;
	metric(text, size, "training_steps_total", "counter", "", (double)progress.step, "Steps that were done, with those of the checkpoint.");
	metric(text, size, "training_resumed_step", "gauge", "", (double)progress.first, "Step of the checkpoint that it began with, 0 without one.");
	metric(text, size, "training_samples_total", "counter", "", (double)progress.samples, "Samples that this process has seen.");
	metric(text, size, "training_effective_batch_size", "gauge", "", (double)progress.batch, "Samples between two updates of the weights.");
	metric(text, size, "training_loss", "gauge", "", progress.loss, "Loss of the last step.");
	metric(text, size, "training_step_seconds", "gauge", "", progress.seconds, "Duration of a step with its collective operation, mean of about 8.");
	metric(text, size, "container_cpu_throttled_ratio", "gauge", "", throttled(), "Share of the periods in which the CPU limit throttled the container.");
	metric(text, size, "training_rank", "gauge", "", (double)progress.rank, "Rank of this process.");
	metric(text, size, "training_world_size", "gauge", "", (double)progress.ranks, "Ranks that train together.");
	metric(text, size, "dataloader_workers", "gauge", "", (double)progress.workers, "Worker processes of the data loader.");
	metric(text, size, "dataloader_shared_memory_read_bytes_total", "counter", "", progress.loaded, "Bytes of the batches that workers passed in shared memory.");
	snprintf(labels, sizeof labels, "{device=\"%s\"}", progress.device);
	metric(text, size, "training_device", "gauge", labels, 1, "Where steps are done.");
	if (!nvml_read((unsigned)progress.ordinal, &r)) return;
	snprintf(labels, sizeof labels, "{gpu=\"%d\",uuid=\"%s\"}", progress.ordinal, r.uuid);
	metric(text, size, "gpu_utilization_percent", "gauge", labels, r.percent, "Utilization as NVML says.");
	metric(text, size, "gpu_memory_used_bytes", "gauge", labels, (double)r.used, "Memory in use as NVML says.");
	metric(text, size, "gpu_memory_total_bytes", "gauge", labels, (double)r.total, "Memory as NVML says.");
}

// A step was done, and not long ago: a training that hangs is not ready.
static int ready(void) { return progress.step > progress.first && now_ms() - progress.at < 10000; }

static void handle_metrics(int fd, struct request *r)
{
	char text[4096];
	if (strcmp(r->method, "GET")) answer(fd, "405 Method Not Allowed", "");
	else if (!strcmp(r->path, "/metrics")) metrics(text, sizeof text), answer(fd, "200 OK", text);
	else if (!strcmp(r->path, "/healthz")) answer(fd, "200 OK", "ok\n");
	else if (strcmp(r->path, "/readyz")) answer(fd, "404 Not Found", "");
	else if (ready()) answer(fd, "200 OK", "ok\n");
	else answer(fd, "503 Service Unavailable", "no step was done in the last 10 s\n");
}

static void *metrics_thread(void *port)
{
	serve((int)(intptr_t)port, handle_metrics);
	return NULL;
}

void serve_metrics(int port)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, metrics_thread, (void *)(intptr_t)port) == 0) pthread_detach(thread);
}

// The step in a checkpoint, or 0.
static long saved(const char *body)
{
	long step = 0;
	return sscanf(body, "step %ld", &step) == 1 ? step : 0;
}

static void handle_store(int fd, struct request *r)
{
	static struct { char path[256], body[512]; } kept[64];
	static int count;
	int i = 0;
	while (i < count && strcmp(kept[i].path, r->path)) i++;
	if (!strcmp(r->method, "GET") && (!strcmp(r->path, "/healthz") || !strcmp(r->path, "/readyz"))) { answer(fd, "200 OK", "ok\n"); return; }
	if (!strcmp(r->method, "GET")) answer(fd, i < count ? "200 OK" : "404 Not Found", i < count ? kept[i].body : "");
	else if (strcmp(r->method, "PUT")) answer(fd, "405 Method Not Allowed", "");
	else if (i == sizeof kept / sizeof *kept) answer(fd, "507 Insufficient Storage", "");
	else if (i < count && saved(r->body) < saved(kept[i].body))
		answer(fd, "409 Conflict", "the stored checkpoint has more steps\n");
	else {
		if (i == count) count++;
		strcpy(kept[i].path, r->path);
		strcpy(kept[i].body, r->body);
		answer(fd, "204 No Content", "");
	}
	printf("%s %s\n", r->method, r->path);
}

int serve_store(int port)
{
	printf("store on port %d\n", port);
	serve(port, handle_store);
	return 0;
}

// One request to http://HOST[:PORT]/PATH; the answer's body goes to body.
static int ask(const char *method, const char *url, const char *sent, char *body, size_t size)
{
	char host[256] = "", port[8] = "80", path[512] = "/", text[4096];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	int status = 0, fd = -1;
	if (sscanf(url, "http://%255[^:/]:%7[0-9]%511s", host, port, path) < 2) sscanf(url, "http://%255[^:/]%511s", host, path);
	if (getaddrinfo(host, port, &hints, &found)) return 0;
	for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
		if ((fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) continue;
		timeouts(fd);
		if (connect(fd, a->ai_addr, a->ai_addrlen)) close(fd), fd = -1;
	}
	freeaddrinfo(found);
	if (fd < 0) return 0;
	snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
		method, path, host, strlen(sent), sent);
	put(fd, text);
	size_t n = 0;
	for (ssize_t got; n < sizeof text - 1 && (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;) n += (size_t)got;
	text[n] = 0;
	close(fd);
	char *end = strstr(text, "\r\n\r\n");
	if (!end || sscanf(text, "HTTP/%*s %d", &status) != 1) return 0;
	if (body) snprintf(body, size, "%s", end + 4);
	return status;
}

int http_get(const char *url, char *body, size_t size) { return ask("GET", url, "", body, size); }
int http_put(const char *url, const char *body) { return ask("PUT", url, body, NULL, 0); }
