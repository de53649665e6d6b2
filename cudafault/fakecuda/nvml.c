// A libnvidia-ml.so.1 for own clients, coherent with the fake driver: the same devices, memory, UUIDs and PCI addresses. Real NVML knows nothing
// of CUDA_VISIBLE_DEVICES, nor does this. nvidia-smi refuses it (it asks for a private table), and that is left so.
// With FAKECUDA_PROC=DIRECTORY, a copy of a node's /proc/driver/nvidia, its GPUs are those of the node instead.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
typedef int nvmlReturn;
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
	VERSION_MISMATCH = 25, MAX_DEVICES = 16 };

struct gpu { int index; unsigned domain, bus, minor; char uuid[48], name[64]; };
static struct gpu gpus[MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users, count;

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void simulate(int n)
{
	for (count = 0; count < n && count < MAX_DEVICES; count++) {
		struct gpu *gpu = &gpus[count];
		*gpu = (struct gpu){.index = count, .bus = 0x17 + (unsigned)count, .minor = (unsigned)count, .name = "Fake CUDA Device"};
		snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-66616b65-6375-6461-0000-0000000000%02x", count);
	}
}

// Reads GPUs in the order of their PCI addresses, which is that of their indices.
static void read_node(const char *proc)
{
	char line[256];
	glob_t found;
	count = 0;
	snprintf(line, sizeof line, "%s/gpus/*/information", proc);
	if (glob(line, 0, NULL, &found)) return;
	for (size_t i = 0; i < found.gl_pathc && count < MAX_DEVICES; i++) {
		struct gpu gpu = {.index = count};
		FILE *file = fopen(found.gl_pathv[i], "re");
		if (sscanf(found.gl_pathv[i] + strlen(proc), "/gpus/%x:%x:", &gpu.domain, &gpu.bus) != 2 || !file) continue;
		while (fgets(line, sizeof line, file)) {
			(void)sscanf(line, "Model: %63[^\n]", gpu.name);
			(void)sscanf(line, "GPU UUID: %47s", gpu.uuid);
			(void)sscanf(line, "Device Minor: %u", &gpu.minor);
		}
		fclose(file);
		gpus[count++] = gpu;
	}
	globfree(&found);
}

EXPORT nvmlReturn nvmlInitWithFlags(unsigned flags)
{
	const char *proc = getenv("FAKECUDA_PROC");
	(void)flags;
	pthread_mutex_lock(&mutex);
	if (!users && proc) read_node(proc);
	else if (!users) simulate((int)number("FAKECUDA_DEVICES", 1));
	if (count) users++;
	pthread_mutex_unlock(&mutex);
	return count ? OK : DRIVER_NOT_LOADED;
}
EXPORT nvmlReturn nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn nvmlShutdown(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn result = users ? OK : UNINITIALIZED;
	if (users) users--;
	pthread_mutex_unlock(&mutex);
	return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn code)
{
	static const struct { int code; const char *text; } texts[] = {
		{0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"}, {4, "Insufficient Permissions"}, {6, "Not Found"},
		{7, "Insufficient Size"}, {9, "Driver Not Loaded"}, {10, "Timeout"}, {14, "Corrupted infoROM"}, {15, "GPU is lost"},
		{16, "GPU requires restart"}, {18, "Driver/library version mismatch"}, {28, "The requested GPU could not be found"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].code == code) return texts[i].text;
	return "Unknown Error";
}

static nvmlReturn text(char *to, unsigned size, const char *from)
{
	if (!users) return UNINITIALIZED;
	if (!to) return INVALID_ARGUMENT;
	if (strlen(from) >= size) return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return OK;
}

EXPORT nvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned size) { return text(version, size, "550.163.01"); }
EXPORT nvmlReturn nvmlSystemGetNVMLVersion(char *version, unsigned size) { return text(version, size, "12.550.163.01"); }
EXPORT nvmlReturn nvmlSystemGetCudaDriverVersion(int *version)
{
	if (!version) return INVALID_ARGUMENT;
	*version = (int)number("FAKECUDA_DRIVER_VERSION", 12040);
	return OK;
}
EXPORT nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

EXPORT nvmlReturn nvmlDeviceGetCount_v2(unsigned *n)
{
	if (!users) return UNINITIALIZED;
	if (!n) return INVALID_ARGUMENT;
	*n = (unsigned)count;
	return OK;
}
EXPORT nvmlReturn nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }

EXPORT nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu)
{
	if (!users) return UNINITIALIZED;
	if (!gpu || index >= (unsigned)count) return INVALID_ARGUMENT;
	*gpu = &gpus[index];
	return OK;
}
EXPORT nvmlReturn nvmlDeviceGetHandleByIndex(unsigned index, struct gpu **gpu) { return nvmlDeviceGetHandleByIndex_v2(index, gpu); }

static nvmlReturn check(const struct gpu *gpu, const void *out)
{
	if (!users) return UNINITIALIZED;
	return gpu < gpus || gpu >= gpus + count || !out ? INVALID_ARGUMENT : OK;
}

EXPORT nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **gpu)
{
	if (!users) return UNINITIALIZED;
	if (!uuid || !gpu) return INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		if (!strcmp(gpus[i].uuid, uuid)) { *gpu = &gpus[i]; return OK; }
	return NOT_FOUND;
}

EXPORT nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct gpu **gpu)
{
	unsigned domain, bus;
	if (!users) return UNINITIALIZED;
	if (!id || !gpu || sscanf(id, "%x:%x:", &domain, &bus) != 2) return INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		if (gpus[i].domain == domain && gpus[i].bus == bus) { *gpu = &gpus[i]; return OK; }
	return NOT_FOUND;
}
EXPORT nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *id, struct gpu **gpu) { return nvmlDeviceGetHandleByPciBusId_v2(id, gpu); }

EXPORT nvmlReturn nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned size)
{
	nvmlReturn result = check(gpu, uuid);
	return result ? result : text(uuid, size, gpu->uuid);
}

EXPORT nvmlReturn nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned size)
{
	nvmlReturn result = check(gpu, name);
	return result ? result : text(name, size, gpu->name);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

EXPORT nvmlReturn nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
	nvmlReturn result = check(gpu, pci);
	if (result) return result;
	memset(pci, 0, sizeof *pci);
	pci->domain = gpu->domain;
	pci->bus = gpu->bus;
	pci->id = 0x20b010de;
	snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:00.0", pci->domain & 0xffff, pci->bus & 0xff);
	snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", pci->domain, pci->bus);
	return OK;
}

// The fake driver's own count of this process's memory, if it is loaded here: NVML is another library and may not link to it.
static uint64_t used(int index)
{
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	uint64_t (*ask)(int) = driver ? (uint64_t (*)(int))dlsym(driver, "fakecuda_used") : NULL;
	uint64_t bytes = ask ? ask(index) : 0;
	if (driver) dlclose(driver);
	return bytes;
}

struct memory { uint64_t total, available, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, available, used; };

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory)
{
	nvmlReturn result = check(gpu, memory);
	if (result) return result;
	memory->total = number("FAKECUDA_MEMORY", 16ull << 30);
	memory->used = used(gpu->index);
	memory->available = memory->total - memory->used;
	return OK;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *memory)
{
	struct memory first;
	nvmlReturn result = check(gpu, memory);
	if (result) return result;
	if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
	nvmlDeviceGetMemoryInfo(gpu, &first);
	*memory = (struct memory_v2){memory->version, first.total, 0, first.available, first.used};
	return OK;
}

// Getters whose answer is one number.
#define NUMBER(name, value) EXPORT nvmlReturn name(struct gpu *gpu, unsigned *out) \
	{ nvmlReturn result = check(gpu, out); if (!result) *out = (unsigned)(value); return result; }
NUMBER(nvmlDeviceGetIndex, gpu->index)
NUMBER(nvmlDeviceGetMinorNumber, gpu->minor)
NUMBER(nvmlDeviceGetPowerUsage, 62000)     // mW
NUMBER(nvmlDeviceGetPerformanceState, 0)   // P0
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetFanSpeed, 0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)
NUMBER(nvmlDeviceGetArchitecture, 7)       // Ampere, as the compute capability
NUMBER(nvmlDeviceGetBrand, 2)              // Tesla
NUMBER(nvmlDeviceIsMigDeviceHandle, 0)

#define NUMBER_OF(name, value) EXPORT nvmlReturn name(struct gpu *gpu, unsigned which, unsigned *out) \
	{ (void)which; nvmlReturn result = check(gpu, out); if (!result) *out = (unsigned)(value); return result; }
NUMBER_OF(nvmlDeviceGetTemperature, 34)    // degrees Celsius
NUMBER_OF(nvmlDeviceGetClockInfo, 1410)    // MHz
NUMBER_OF(nvmlDeviceGetMaxClockInfo, 1410)
NUMBER_OF(nvmlDeviceGetNvLinkState, 1)

// Two GPUs of one CPU. What NVLinks lead to is not simulated.
EXPORT nvmlReturn nvmlDeviceGetTopologyCommonAncestor(struct gpu *gpu, struct gpu *other, int *level)
{
	nvmlReturn result = check(gpu, level) ? check(gpu, level) : check(other, level);
	if (!result) *level = 40; // NVML_TOPOLOGY_NODE
	return result;
}
EXPORT nvmlReturn nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *gpu, unsigned link, struct pci *pci)
{
	(void)link;
	return check(gpu, pci) ? check(gpu, pci) : NOT_SUPPORTED;
}

struct utilization { unsigned gpu, memory; };
EXPORT nvmlReturn nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *rates)
{
	nvmlReturn result = check(gpu, rates);
	if (!result) *rates = (struct utilization){used(gpu->index) ? 97 : 0, used(gpu->index) ? 40 : 0};
	return result;
}

EXPORT nvmlReturn nvmlDeviceGetTotalEccErrors(struct gpu *gpu, int type, int counter, unsigned long long *errors)
{
	(void)type, (void)counter;
	nvmlReturn result = check(gpu, errors);
	if (!result) *errors = 0;
	return result;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryErrorCounter(struct gpu *gpu, int type, int counter, int place, unsigned long long *errors)
{
	(void)place;
	return nvmlDeviceGetTotalEccErrors(gpu, type, counter, errors);
}

EXPORT nvmlReturn nvmlDeviceGetNvLinkErrorCounter(struct gpu *gpu, unsigned link, int counter, unsigned long long *errors)
{
	(void)link;
	return nvmlDeviceGetTotalEccErrors(gpu, 0, counter, errors);
}

EXPORT nvmlReturn nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	nvmlReturn result = check(gpu, corrected);
	if (result || !uncorrected || !pending || !failed) return result ? result : INVALID_ARGUMENT;
	*corrected = *uncorrected = *pending = *failed = 0;
	return OK;
}

EXPORT nvmlReturn nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor)
{
	nvmlReturn result = check(gpu, major);
	if (result || !minor) return result ? result : INVALID_ARGUMENT;
	*major = 8, *minor = 0;
	return OK;
}

EXPORT nvmlReturn nvmlDeviceGetRemappedRows_v2(struct gpu *gpu, unsigned rows[6])
{
	nvmlReturn result = check(gpu, rows);
	if (!result) memset(rows, 0, 6 * sizeof *rows);
	return result;
}

// An A100's 640 banks, all with all their spare rows.
struct histogram { unsigned max, high, partial, low, none; };
EXPORT nvmlReturn nvmlDeviceGetRowRemapperHistogram(struct gpu *gpu, struct histogram *banks)
{
	nvmlReturn result = check(gpu, banks);
	if (!result) *banks = (struct histogram){.max = 640};
	return result;
}

EXPORT nvmlReturn nvmlDeviceGetDetailedEccErrors(struct gpu *gpu, int type, int counter, unsigned long long errors[4])
{
	(void)type, (void)counter;
	nvmlReturn result = check(gpu, errors);
	if (!result) memset(errors, 0, 4 * sizeof *errors);
	return result;
}

EXPORT nvmlReturn nvmlDeviceGetEccMode(struct gpu *gpu, unsigned *current, unsigned *pending)
{
	nvmlReturn result = check(gpu, current);
	if (result || !pending) return result ? result : INVALID_ARGUMENT;
	*current = *pending = 1;
	return OK;
}

// Pages are retired by GPUs before Ampere only.
EXPORT nvmlReturn nvmlDeviceGetRetiredPages(struct gpu *gpu, int cause, unsigned *n, unsigned long long *addresses)
{
	(void)cause, (void)addresses;
	nvmlReturn result = check(gpu, n);
	return result ? result : NOT_SUPPORTED;
}
EXPORT nvmlReturn nvmlDeviceGetRetiredPages_v2(struct gpu *gpu, int cause, unsigned *n, unsigned long long *addresses, unsigned long long *times)
{
	(void)times;
	return nvmlDeviceGetRetiredPages(gpu, cause, n, addresses);
}
EXPORT nvmlReturn nvmlDeviceGetRetiredPagesPendingStatus(struct gpu *gpu, unsigned *pending)
{
	nvmlReturn result = check(gpu, pending);
	return result ? result : NOT_SUPPORTED;
}

// The counters of errors and rows, and whether the GPU needs a reset, as fields; the others are not supported.
struct field { unsigned id, scope; long long at, latency; unsigned type; nvmlReturn code; unsigned long long value; };
EXPORT nvmlReturn nvmlDeviceGetFieldValues(struct gpu *gpu, int n, struct field *values)
{
	nvmlReturn result = check(gpu, values);
	if (result || n < 1) return result ? result : INVALID_ARGUMENT;
	for (int i = 0; i < n; i++) {
		struct field *f = &values[i];
		f->code = (f->id >= 1 && f->id <= 28) || (f->id >= 142 && f->id <= 145) || f->id == 226 || f->id == 230 ? OK : NOT_SUPPORTED;
		f->at = f->latency = 0;
		f->type = f->id >= 142 ? 1 : 3;
		f->value = f->id <= 2 && !f->code;
	}
	return OK;
}

EXPORT nvmlReturn nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *n, void *processes)
{
	(void)processes;
	nvmlReturn result = check(gpu, n);
	if (!result) *n = 0;
	return result;
}

// Events: FAKECUDA_EVENT=XID:MS makes one, of the first GPU that was registered, MS after its registration.
enum { XID_EVENT = 8, EVENT_TYPES = 0x1f };
struct events { struct gpu *gpu; struct timespec at; unsigned xid; };
struct event { struct gpu *gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

static void add_ms(struct timespec *t, unsigned long ms)
{
	t->tv_sec += (time_t)(ms / 1000);
	t->tv_nsec += (long)(ms % 1000) * 1000000;
	if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
}
static int before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

EXPORT nvmlReturn nvmlDeviceGetSupportedEventTypes(struct gpu *gpu, unsigned long long *types)
{
	nvmlReturn result = check(gpu, types);
	if (!result) *types = EVENT_TYPES;
	return result;
}
EXPORT nvmlReturn nvmlEventSetCreate(struct events **set)
{
	if (!users || !set) return users ? INVALID_ARGUMENT : UNINITIALIZED;
	*set = calloc(1, sizeof **set);
	return OK;
}
EXPORT nvmlReturn nvmlEventSetFree(struct events *set)
{
	free(set);
	return OK;
}
EXPORT nvmlReturn nvmlDeviceRegisterEvents(struct gpu *gpu, unsigned long long types, struct events *set)
{
	nvmlReturn result = check(gpu, set);
	unsigned xid, ms;
	const char *event = getenv("FAKECUDA_EVENT");
	if (result) return result;
	if (types & ~(unsigned long long)EVENT_TYPES) return NOT_SUPPORTED;
	if ((types & XID_EVENT) && !set->gpu && event && sscanf(event, "%u:%u", &xid, &ms) == 2) {
		set->gpu = gpu;
		set->xid = xid;
		clock_gettime(CLOCK_MONOTONIC, &set->at);
		add_ms(&set->at, ms);
	}
	return OK;
}

static nvmlReturn wait_for(struct events *set, struct event *event, unsigned milliseconds, size_t size)
{
	struct timespec end;
	if (!users) return UNINITIALIZED;
	if (!set || !event) return INVALID_ARGUMENT;
	clock_gettime(CLOCK_MONOTONIC, &end);
	add_ms(&end, milliseconds);
	int comes = set->xid && before(&set->at, &end);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, comes ? &set->at : &end, NULL))
		;
	if (!comes) return TIMEOUT;
	struct event e = {set->gpu, XID_EVENT, set->xid, ~0u, ~0u};
	memcpy(event, &e, size);
	set->xid = 0;
	return OK;
}
EXPORT nvmlReturn nvmlEventSetWait_v2(struct events *set, struct event *event, unsigned milliseconds)
{
	return wait_for(set, event, milliseconds, sizeof *event);
}
EXPORT nvmlReturn nvmlEventSetWait(struct events *set, struct event *event, unsigned milliseconds)
{
	return wait_for(set, event, milliseconds, offsetof(struct event, gpu_instance)); // before _v2 there were no instances
}

// What monitors ask besides: a device has it, and its values are not simulated.
#define ASKED(name) EXPORT nvmlReturn name(struct gpu *gpu, void *out) { return check(gpu, out) ? check(gpu, out) : NOT_SUPPORTED; }
ASKED(nvmlDeviceGetEncoderUtilization)
ASKED(nvmlDeviceGetDecoderUtilization)
ASKED(nvmlDeviceGetProcessUtilization)
ASKED(nvmlDeviceGetFanSpeed_v2)
ASKED(nvmlDeviceGetThermalSettings)
ASKED(nvmlDeviceGetCurrentClocksEventReasons)
ASKED(nvmlDeviceGetBAR1MemoryInfo)
ASKED(nvmlDeviceGetPowerManagementLimit)
ASKED(nvmlDeviceGetViolationStatus)
ASKED(nvmlDeviceGetMigMode)
ASKED(nvmlDeviceGetGpuFabricInfo)
ASKED(nvmlDeviceGetGpuFabricInfoV)
ASKED(nvmlDeviceGetGraphicsRunningProcesses_v3)
ASKED(nvmlDeviceGetCurrPcieLinkWidth)
EXPORT nvmlReturn nvmlDeviceGetGpuInstanceProfileInfo(struct gpu *gpu, unsigned profile, void *out)
{
	(void)profile;
	return check(gpu, out) ? check(gpu, out) : NOT_SUPPORTED;
}
