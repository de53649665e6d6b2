// A program that does what it is told, line by line on stdin, and answers each line with one: so a test can change the state between two calls
// of one process. It finds the driver as cudart 12 does. A line is a command and its arguments:
//
//	init | start [DEVICE]          cuInit; with start also the primary context, a module, a stream, an event, a buffer
//	CALL [N]                       launch sync streamsync eventsync query eventquery record h2d d2h set graph: N times (1);
//	                               "0*37 999*3" says: 37 were 0
//	until CALL CODE MS             calls every ms until it returns CODE, at most for MS ms; answers with the last code, how many calls, and the ms
//	alloc KIND BYTES | free        KIND: plain async pool create managed pitch host array; free frees all of them
//	info | total DEVICE | count    cuMemGetInfo, cuDeviceTotalMem, cuDeviceGetCount
//	infonull                       cuMemGetInfo with NULLs
//	capture begin | end            end also instantiates
//	copies sync|async|pinned BYTES N   copies a pattern back N times; answers with the copies and the bits that differ
//	order N                        N asynchronous copies into pinned memory, each followed by a host function that looks at it
//	nulls                          calls of CUDA and NVML with pointers NULL that should not be, and their codes
//	nvml                           init, count, handle and memory by NVML
//	identity DEVICE                its minor, PCI address, UUID and name by NVML; whether its UUID leads to it; the code of a query of the topology
//	events NAME DEVICE...          makes an event set and registers the devices for XID events (NAME other: for others); answers with the codes
//	wait NAME MS [v1]              waits; answers with the code, the ms, and the event: its device, type, data, instances (- without an event)
//	noevents NAME                  frees the set
//	counters DEVICE                uncorrectable errors: total, in device memory, detailed, as field; rows remapped, pending, failed, and as
//	                               fields; banks
//	recovery DEVICE                the codes of its utilization and its name; reset status and recovery action, as fields
//	everything DEVICE              how often which code came of all queries of NVML that hooks.def has
//	device N                       makes the primary context of device N current
//	errno CALL                     what errno is after the call when it was 4321 before
//	time CALL                      its code, wall ms and CPU ms
//	background CALL | background | join   the call in a thread of its own; whether it runs still; its code when it has ended
//	thread COMMAND                 the command in a new thread
//	fork COMMAND[; COMMAND]...     the commands in a forked child; answers with its process ID and their answers
//	storm N CALLS                  N threads, each CALLS launches with a synchronisation after every eighth; answers with how often which code came
//	driver | text CODE             cuDriverGetVersion; cuGetErrorString
#define _GNU_SOURCE
#include "actor.h"

// repeated answers with runs of equal codes.
static void repeated(const char *name, long n)
{
	int last = 0;
	long run = 0;
	size_t at = 0;
	for (long i = 0; i <= n && at < sizeof answer - 32; i++) {
		int code = i < n ? call(name) : -2;
		if (run && (code != last)) at += (size_t)snprintf(answer + at, sizeof answer - at, "%s%d*%ld", at ? " " : "", last, run), run = 0;
		last = code;
		run++;
	}
}

static void until(const char *name, int wanted, double ms)
{
	double from = seconds(CLOCK_MONOTONIC);
	long calls = 0;
	int code;
	const struct timespec pause = {0, 1000000};
	for (;;) {
		code = call(name), calls++;
		if (code == wanted || (seconds(CLOCK_MONOTONIC) - from) * 1000 >= ms) break;
		nanosleep(&pause, NULL);
	}
	snprintf(answer, sizeof answer, "%d %ld %.0f", code, calls, (seconds(CLOCK_MONOTONIC) - from) * 1000);
}

static struct { char kind[64]; uint64_t at; } held[64];
static int holds;

static int allocate(const char *kind, size_t bytes)
{
	uint64_t at = 0;
	size_t pitch;
	void *pool, *pointer = NULL;
	int code = -1, place[16] = {1, 0, 1, 0}; // pinned, on device 0
	struct { size_t width, height; unsigned format, channels; } array = {bytes / 4096, 1024, 0x20, 1};
#define KIND(word) !strcmp(kind, word)
	if (KIND("plain")) code = cu.cuMemAlloc(&at, bytes);
	if (KIND("async")) code = cu.cuMemAllocAsync(&at, bytes, stream);
	if (KIND("pool") && !(code = cu.cuDeviceGetDefaultMemPool(&pool, 0))) code = cu.cuMemAllocFromPoolAsync(&at, bytes, pool, stream);
	if (KIND("create")) code = cu.cuMemCreate(&at, bytes, place, 0);
	if (KIND("managed")) code = cu.cuMemAllocManaged(&at, bytes, 1);
	if (KIND("pitch")) code = cu.cuMemAllocPitch(&at, &pitch, bytes / 1024, 1024, 4);
	if (KIND("host")) code = cu.cuMemHostAlloc(&pointer, bytes, 0), at = (uint64_t)(uintptr_t)pointer;
	if (KIND("array")) code = cu.cuArrayCreate(&pointer, &array), at = (uint64_t)(uintptr_t)pointer;
	if (!code && holds < 64) {
		snprintf(held[holds].kind, sizeof held[holds].kind, "%s", kind);
		held[holds++].at = at;
	}
	return code;
}

static int release(void)
{
	int first = 0;
	while (holds) {
		const char *kind = held[--holds].kind;
		uint64_t at = held[holds].at;
		int code = KIND("create") ? cu.cuMemRelease(at) : KIND("host") ? cu.cuMemFreeHost((void *)(uintptr_t)at) :
			KIND("array") ? cu.cuArrayDestroy((void *)(uintptr_t)at) : KIND("async") || KIND("pool") ? cu.cuMemFreeAsync(at, stream) : cu.cuMemFree(at);
		if (!first) first = code;
	}
	int code = cu.cuStreamSynchronize(stream);
	return first ? first : code;
}

static int differing_bits(const unsigned char *got, const unsigned char *want, size_t bytes)
{
	int bits = 0;
	for (size_t i = 0; i < bytes; i++) bits += __builtin_popcount(got[i] ^ want[i]);
	return bits;
}

static void copies(const char *way, size_t bytes, long n)
{
	static unsigned char pattern[BYTES], pageable[BYTES];
	unsigned char *to = pageable;
	void *pinned = NULL;
	long bits = 0, hit = 0;
	int code, async = strcmp(way, "sync") != 0;
	if (bytes > BYTES) bytes = BYTES;
	for (size_t i = 0; i < bytes; i++) pattern[i] = (unsigned char)(i * 31 + 7);
	code = cu.cuMemcpyHtoD(buffer, pattern, bytes);
	if (!code) code = cu.cuCtxSynchronize(); // it may still be on its way to the device, and the stream does not wait for it
	if (!code && !strcmp(way, "pinned") && !(code = cu.cuMemHostAlloc(&pinned, BYTES, 0))) to = pinned;
	for (long i = 0; i < n && !code; i++) {
		memset(to, 0, bytes);
		code = async ? cu.cuMemcpyDtoHAsync(to, buffer, bytes, stream) : cu.cuMemcpyDtoH(to, buffer, bytes);
		if (!code && async) code = cu.cuStreamSynchronize(stream);
		int differ = code ? 0 : differing_bits(to, pattern, bytes);
		bits += differ;
		hit += differ != 0;
	}
	if (pinned) cu.cuMemFreeHost(pinned);
	snprintf(answer, sizeof answer, "%d copies %ld hit %ld bits %ld", code, n, hit, bits);
}

// A host function after a copy must see all that the copy brought, and what an injected error in the data does must have been done by then too:
// what it saw and what is there at the end are compared.
// The copies wait in the stream until all are there.
struct look { const unsigned char *at; unsigned char seen[256]; };
static void nap(void *unused)
{
	const struct timespec pause = {0, 300000000};
	(void)unused;
	nanosleep(&pause, NULL);
}
static void look(void *data)
{
	struct look *l = data;
	memcpy(l->seen, l->at, sizeof l->seen);
}

static void order(long n)
{
	enum { MOST = 512 };
	static struct look looks[MOST];
	static unsigned char *pinned[MOST];
	unsigned char pattern[256];
	long late = 0, bits = 0;
	int code = 0;
	if (n > MOST) n = MOST;
	for (int i = 0; i < 256; i++) pattern[i] = (unsigned char)(i * 31 + 7);
	code = cu.cuMemcpyHtoD(buffer, pattern, sizeof pattern);
	if (!code) code = cu.cuCtxSynchronize();
	for (long i = 0; i < n && !code; i++) {
		void *at = NULL;
		code = cu.cuMemHostAlloc(&at, 256, 0);
		pinned[i] = at;
	}
	if (!code) code = cu.cuLaunchHostFunc(stream, nap, NULL);
	for (long i = 0; i < n && !code; i++) {
		looks[i].at = pinned[i];
		code = cu.cuMemcpyDtoHAsync(pinned[i], buffer, 256, stream);
		if (!code) code = cu.cuLaunchHostFunc(stream, look, &looks[i]);
	}
	if (!code) code = cu.cuStreamSynchronize(stream);
	for (long i = 0; i < n && !code; i++) {
		late += memcmp(looks[i].seen, pinned[i], 256) != 0;
		bits += differing_bits(looks[i].seen, pattern, 256);
		cu.cuMemFreeHost(pinned[i]);
	}
	snprintf(answer, sizeof answer, "%d copies %ld late %ld bits %ld", code, n, late, bits);
}

static void nvml(void)
{
	static void *library;
	void *gpu = NULL;
	unsigned count = 0;
	unsigned long long memory[3] = {0, 0, 0}, memory2[5] = {40 | 2u << 24, 0, 0, 0, 0};
	if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library) { snprintf(answer, sizeof answer, "no library"); return; }
	int init = ((int (*)(void))dlsym(library, "nvmlInit_v2"))();
	int counted = ((int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2"))(&count);
	int handle = ((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &gpu);
	int info = gpu ? ((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo"))(gpu, memory) : -1;
	int info2 = gpu ? ((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo_v2"))(gpu, memory2) : -1;
	snprintf(answer, sizeof answer, "init %d count %d:%u handle %d memory %d:%llu:%llu:%llu memory2 %d:%llu:%llu:%llu", init, counted, count, handle,
		info, memory[0], memory[1], memory[2], info2, memory2[1], memory2[3], memory2[4]);
}

// NVML by name: what is missing is -1, as a code.
#define NVML(name, ...) nvml_call(#name, (uint64_t[6]){__VA_ARGS__})
#define AT(pointer) (uint64_t)(uintptr_t)(pointer)
static int nvml_call(const char *name, const uint64_t a[6])
{
	static void *library;
	if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*f)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) =
		library ? (int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))dlsym(library, name) : NULL;
	return f ? f(a[0], a[1], a[2], a[3], a[4], a[5]) : -1;
}

static void *nvml_device(unsigned index)
{
	void *device = NULL;
	return NVML(nvmlDeviceGetHandleByIndex_v2, index, AT(&device)) ? NULL : device;
}

static void identity(unsigned index)
{
	char uuid[96] = "", name[96] = "", pci[68] = ""; // nvmlPciInfo_t: the address is at 36
	unsigned minor = 0, level = 0;
	NVML(nvmlInit_v2, 0);
	uint64_t d = AT(nvml_device(index)), found = 0;
	NVML(nvmlDeviceGetMinorNumber, d, AT(&minor));
	NVML(nvmlDeviceGetPciInfo_v3, d, AT(pci));
	NVML(nvmlDeviceGetUUID, d, AT(uuid), sizeof uuid);
	NVML(nvmlDeviceGetName, d, AT(name), sizeof name);
	NVML(nvmlDeviceGetHandleByUUID, AT(uuid), AT(&found));
	snprintf(answer, sizeof answer, "%u %s %s %s, %d %d", minor, pci + 36, uuid, name, found == d,
		NVML(nvmlDeviceGetTopologyCommonAncestor, d, AT(nvml_device(0)), AT(&level)));
}

static struct { char name[16]; void *set; } sets[8];
static void **set_named(const char *name)
{
	for (int i = 0; i < 8; i++)
		if (!strcmp(sets[i].name, name)) return &sets[i].set;
	for (int i = 0; i < 8; i++)
		if (!*sets[i].name) {
			snprintf(sets[i].name, sizeof sets[i].name, "%s", name);
			return &sets[i].set;
		}
	return &sets[0].set;
}

static void event_set(char *line)
{
	char *word = strtok(line, " "), *name = strtok(NULL, " ");
	void **set = set_named(name);
	size_t at = 0;
	NVML(nvmlInit_v2, 0);
	at += (size_t)snprintf(answer, sizeof answer, "%d", NVML(nvmlEventSetCreate, AT(set)));
	while ((word = strtok(NULL, " ")))
		at += (size_t)snprintf(answer + at, sizeof answer - at, " %d", NVML(nvmlDeviceRegisterEvents, AT(nvml_device((unsigned)atoi(word))),
			strcmp(name, "other") ? 8 : 2, AT(*set)));
}

static void wait_for_event(const char *name, unsigned ms, int v1)
{
	struct { void *device; uint64_t type, data, instances, behind; } e = {NULL, 0, 0, 0x7777, 0x7777};
	void *set = *set_named(name);
	double from = seconds(CLOCK_MONOTONIC);
	int code = v1 ? NVML(nvmlEventSetWait, AT(set), AT(&e), ms) : NVML(nvmlEventSetWait_v2, AT(set), AT(&e), ms);
	size_t at = (size_t)snprintf(answer, sizeof answer, "%d %.0f", code, (seconds(CLOCK_MONOTONIC) - from) * 1000);
	int index = -1;
	if (code == 0)
		for (unsigned i = 0; i < 4; i++) index = e.device == nvml_device(i) ? (int)i : index;
	if (code == 0) snprintf(answer + at, sizeof answer - at, " %d %llu %llu %llx", index, (unsigned long long)e.type, (unsigned long long)e.data,
		(unsigned long long)e.instances);
	else snprintf(answer + at, sizeof answer - at, " -");
	if (e.behind != 0x7777) snprintf(answer, sizeof answer, "wrote behind the struct");
}

static void counters(unsigned index)
{
	struct field { unsigned id, scope; long long at, latency; unsigned type, code; unsigned long long value; };
	struct field f[5] = {{.id = 4}, {.id = 143}, {.id = 144}, {.id = 145}, {.id = 5}};
	unsigned long long total = 0, memory = 0, detail[4] = {0, 0, 0, 0}, corrected = 0;
	unsigned rows[4] = {0, 0, 0, 0}, rows2[6] = {0, 0, 0, 0, 0, 0}, banks[5] = {0, 0, 0, 0, 0};
	uint64_t d = AT(nvml_device(index));
	int code = NVML(nvmlDeviceGetTotalEccErrors, d, 1, 0, AT(&total));
	NVML(nvmlDeviceGetTotalEccErrors, d, 0, 0, AT(&corrected));
	NVML(nvmlDeviceGetMemoryErrorCounter, d, 1, 1, 2, AT(&memory));
	NVML(nvmlDeviceGetDetailedEccErrors, d, 1, 0, AT(detail));
	NVML(nvmlDeviceGetFieldValues, d, 5, AT(f));
	NVML(nvmlDeviceGetRemappedRows, d, AT(&rows[0]), AT(&rows[1]), AT(&rows[2]), AT(&rows[3]));
	NVML(nvmlDeviceGetRemappedRows_v2, d, AT(rows2));
	NVML(nvmlDeviceGetRowRemapperHistogram, d, AT(banks));
	snprintf(answer, sizeof answer,
		"%d errors %llu %llu %llu %llu corrected %llu %llu rows %u %u %u, %u %u %u, %llu %llu %llu banks %u %u", code, total, memory, detail[2],
		f[0].value, corrected, f[4].value, rows[1], rows[2], rows[3], rows2[2] + rows2[3], rows2[4], rows2[5], f[1].value & 0xffffffff,
		f[2].value & 0xffffffff, f[3].value & 0xffffffff, banks[0], banks[1]);
}

static void recovery(unsigned index)
{
	struct field { unsigned id, scope; long long at, latency; unsigned type, code; unsigned long long value; };
	struct field f[2] = {{.id = 226}, {.id = 230}};
	unsigned rates[2];
	char name[96];
	uint64_t d = AT(nvml_device(index));
	int utilization = NVML(nvmlDeviceGetUtilizationRates, d, AT(rates)), named = NVML(nvmlDeviceGetName, d, AT(name), sizeof name);
	NVML(nvmlDeviceGetFieldValues, d, 2, AT(f));
	snprintf(answer, sizeof answer, "utilization %d name %d reset %llu action %llu", utilization, named, f[0].value & 0xffffffff, f[1].value & 0xffffffff);
}

#define HOOK(name, classes, flags, special) {#name, #special},
static const struct { const char *name, *special; } hooks[] = {
#include "../shim/hooks.def"
};
static void everything(unsigned index)
{
	struct { int code, n; } found[8] = {{0, 0}};
	static void *kept[4]; // a monitor holds its handles
	if (!kept[index % 4]) kept[index % 4] = nvml_device(index);
	const uint64_t a[6] = {AT(kept[index % 4]), 0, 0, 0, 0, 0}; // outputs are NULL: the library returns 2
	size_t at = 0;
	for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
		const char *s = hooks[i].special;
		int query = !strncmp(s, "NV_ECC", 6) || !strncmp(s, "NV_ROWS", 7) || !strncmp(s, "NV_MEM", 6) || !strcmp(s, "NV_HISTOGRAM") ||
			!strcmp(s, "NV_FIELDS") || !strcmp(s, "NV_GET") || !strcmp(s, "NV_LIVE");
		if (!query) continue;
		int code = nvml_call(hooks[i].name, a), f = 0;
		if (code == -1) continue; // this library does not have it
		while (found[f].n && found[f].code != code && f < 7) f++;
		found[f].code = code;
		found[f].n++;
	}
	*answer = 0;
	for (int f = 0; f < 8 && found[f].n; f++)
		at += (size_t)snprintf(answer + at, sizeof answer - at, "%s%d*%d", f ? " " : "", found[f].code, found[f].n);
}

static void nulls(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *gpu = NULL;
	size_t total = 0;
	if (!library) return;
	((int (*)(void))dlsym(library, "nvmlInit_v2"))();
	((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &gpu);
	snprintf(answer, sizeof answer, "%d %d %d %d %d %d %d %d %d %d", cu.cuDeviceGetCount(NULL), cu.cuDeviceGet(NULL, 0), cu.cuDeviceTotalMem(NULL, 0),
		cu.cuMemGetInfo(NULL, &total), cu.cuMemAlloc(NULL, 16), cu.cuMemAllocAsync(NULL, 16, stream), cu.cuMemcpyDtoH(NULL, buffer, 16),
		((int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2"))(NULL),
		((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, NULL),
		((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo"))(gpu, NULL));
}

static void capture(const char *what)
{
	int code = !strcmp(what, "begin") ? cu.cuStreamBeginCapture(stream, 0) : cu.cuStreamEndCapture(stream, &graph);
	if (!code && strcmp(what, "begin")) code = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
	snprintf(answer, sizeof answer, "%d", code);
}

static void obey(char *line);

static void *in_thread(void *line)
{
	if (context) cu.cuCtxSetCurrent(context);
	obey(line);
	return NULL;
}

static void forked(char *line)
{
	int ends[2];
	ssize_t n;
	size_t at = 0;
	if (pipe(ends)) exit(3);
	pid_t pid = fork();
	if (pid == 0) {
		dprintf(ends[1], "%d", (int)getpid());
		for (char *rest = line, *command; (command = strsep(&rest, ";"));) {
			obey(command + strspn(command, " "));
			dprintf(ends[1], "; %s", answer);
		}
		_exit(0);
	}
	close(ends[1]);
	while ((n = read(ends[0], answer + at, sizeof answer - 1 - at)) > 0) at += (size_t)n;
	answer[at] = 0;
	close(ends[0]);
	waitpid(pid, NULL, 0);
}

static struct { char name[64]; int code; volatile int done; pthread_t id; } background;
// The context is that of the command's time: the next command may choose another one before the thread runs.
static void *in_background(void *context_then)
{
	if (context_then) cu.cuCtxSetCurrent(context_then);
	background.code = call(background.name);
	background.done = 1;
	return NULL;
}

enum { STORM = 64, CODES = 1000 };
static long storm_calls;
static pthread_barrier_t storm_begins;
static void *in_storm(void *counts)
{
	cu.cuCtxSetCurrent(context);
	pthread_barrier_wait(&storm_begins);
	for (long i = 0; i < storm_calls; i++) {
		int code = i % 8 == 7 ? call("sync") : call("launch");
		((long *)counts)[code >= 0 && code < CODES ? code : 0]++;
	}
	return NULL;
}

static void storm(int threads, long calls)
{
	static long counts[STORM][CODES];
	pthread_t ids[STORM];
	size_t at = 0;
	if (threads > STORM) threads = STORM;
	memset(counts, 0, sizeof counts);
	storm_calls = calls;
	pthread_barrier_init(&storm_begins, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, in_storm, counts[i]);
	for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
	pthread_barrier_destroy(&storm_begins);
	for (int code = 0; code < CODES && at < sizeof answer - 40; code++) {
		long sum = 0;
		for (int i = 0; i < threads; i++) sum += counts[i][code];
		if (sum) at += (size_t)snprintf(answer + at, sizeof answer - at, "%s%d*%ld", at ? " " : "", code, sum);
	}
}

static void obey(char *line)
{
	char word[3][64] = {"", "", ""};
	long long number = 0;
	int device = 0, code = 0;
	size_t available = 0, total = 0;
	const char *text = NULL;
	*answer = 0;
	sscanf(line, "%63s %63s %63s", word[0], word[1], word[2]);
	const char *name = word[0];
#define ANSWER(...) snprintf(answer, sizeof answer, __VA_ARGS__)
	if (IS("thread") || IS("fork")) {
		char *rest = strchr(line, ' ') + 1;
		pthread_t id;
		if (IS("fork")) forked(rest);
		else if (!pthread_create(&id, NULL, in_thread, rest)) pthread_join(id, NULL);
	} else if (IS("start")) ANSWER("%d", prepare(atoi(word[1])));
	else if (IS("background") && *word[1]) {
		background.done = 0;
		snprintf(background.name, sizeof background.name, "%s", word[1]);
		ANSWER("%d", pthread_create(&background.id, NULL, in_background, context));
	} else if (IS("background")) ANSWER("%s", background.done ? "ended" : "running");
	else if (IS("join")) pthread_join(background.id, NULL), ANSWER("%d", background.code);
	else if (IS("device")) ANSWER("%d", use_device(atoi(word[1])));
	else if (IS("until")) sscanf(line, "%*s %*s %*s %lld", &number), until(word[1], atoi(word[2]), (double)number);
	else if (IS("alloc")) ANSWER("%d", allocate(word[1], strtoull(word[2], NULL, 0)));
	else if (IS("free")) ANSWER("%d", release());
	else if (IS("info")) code = cu.cuMemGetInfo(&available, &total), ANSWER("%d %zu %zu", code, available, total);
	else if (IS("infonull")) ANSWER("%d", cu.cuMemGetInfo(NULL, NULL));
	else if (IS("total")) {
		code = cu.cuDeviceGet(&device, atoi(word[1]));
		if (!code) code = cu.cuDeviceTotalMem(&total, device);
		ANSWER("%d %zu", code, total);
	}
	else if (IS("count")) code = cu.cuDeviceGetCount(&device), ANSWER("%d %d", code, device);
	else if (IS("driver")) code = cu.cuDriverGetVersion(&device), ANSWER("%d %d", code, device);
	else if (IS("text")) code = cu.cuGetErrorString(atoi(word[1]), &text), ANSWER("%d %s", code, text ? text : "(none)");
	else if (IS("capture")) capture(word[1]);
	else if (IS("copies")) sscanf(line, "%*s %*s %*s %lld", &number), copies(word[1], strtoull(word[2], NULL, 0), (long)number);
	else if (IS("order")) order(atol(word[1]));
	else if (IS("nulls")) nulls();
	else if (IS("storm")) storm(atoi(word[1]), atol(word[2]));
	else if (IS("nvml")) nvml();
	else if (IS("identity")) identity((unsigned)atoi(word[1]));
	else if (IS("events")) event_set(line);
	else if (IS("noevents")) ANSWER("%d", NVML(nvmlEventSetFree, AT(*set_named(word[1]))));
	else if (IS("wait")) wait_for_event(word[1], (unsigned)atoi(word[2]), strstr(line, " v1") != NULL);
	else if (IS("counters")) counters((unsigned)atoi(word[1]));
	else if (IS("everything")) everything((unsigned)atoi(word[1]));
	else if (IS("recovery")) recovery((unsigned)atoi(word[1]));
	else if (IS("errno")) errno = 4321, code = call(word[1]), ANSWER("%d errno %d", code, errno);
	else if (IS("time")) {
		double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
		code = call(word[1]);
		ANSWER("%d %.0f %.0f", code, (seconds(CLOCK_MONOTONIC) - wall) * 1000, (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1000);
	} else repeated(name, *word[1] ? atol(word[1]) : 1);
}

int main(void)
{
	static char line[512];
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!load()) return 2;
	printf("ready %d\n", (int)getpid());
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		obey(line);
		printf("%s\n", answer);
	}
	return 0;
}
