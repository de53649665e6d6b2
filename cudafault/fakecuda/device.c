// Initialisation and devices: what a CUDA program asks first.
#define _GNU_SOURCE
#include "fake.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device devices[MAX_DEVICES];
int device_count, driver_version = 12040;

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int initialised, forked, broken_by_environment;

// The real driver does not work in the child of a process that has initialised it.
static void in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	mutex = fresh;
	forked = initialised;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

// What build.sh defines for the library of a cuda-compat package.
#ifndef INIT
#define DRIVER_VERSION 12040
#define INIT 0
#endif

// FAKECUDA_DEVICES (1), FAKECUDA_MEMORY (bytes per device, 16 GiB), FAKECUDA_DRIVER_VERSION (12040), FAKECUDA_INIT (result of cuInit, 0),
// and CUDA_VISIBLE_DEVICES, by index, as the real driver reads it: the list ends at the first entry that is no device.
static void configure(void)
{
	int physical = (int)number("FAKECUDA_DEVICES", 1);
	if (physical > MAX_DEVICES) physical = MAX_DEVICES;
	driver_version = (int)number("FAKECUDA_DRIVER_VERSION", DRIVER_VERSION);
	broken_by_environment = (int)number("FAKECUDA_INIT", INIT);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	for (int i = 0; i < physical; i++) {
		int which = i;
		if (visible) {
			char *end;
			long value = strtol(visible, &end, 10);
			if (end == visible || value < 0 || value >= physical) break;
			which = (int)value;
			visible = *end == ',' ? end + 1 : end;
		}
		devices[device_count].physical = which;
		devices[device_count++].total = number("FAKECUDA_MEMORY", 16ull << 30);
	}
	pthread_atfork(NULL, NULL, in_child);
}

void lock(void)
{
	pthread_once(&once, configure);
	pthread_mutex_lock(&mutex);
}

CUresult enter(void)
{
	lock();
	return initialised && !forked ? OK : NOT_INITIALIZED;
}

CUresult leave(CUresult result)
{
	pthread_mutex_unlock(&mutex);
	return result;
}

EXPORT CUresult cuInit(unsigned flags)
{
	lock();
	if (flags) RETURN(INVALID_VALUE);
	if (forked) RETURN(NOT_INITIALIZED);
	if (broken_by_environment) RETURN(broken_by_environment);
	if (device_count == 0) RETURN(NO_DEVICE);
	initialised = 1;
	RETURN(OK);
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	lock();
	if (!version) RETURN(INVALID_VALUE);
	*version = driver_version;
	RETURN(OK);
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	ENTER;
	if (!count) RETURN(INVALID_VALUE);
	*count = device_count;
	RETURN(OK);
}

int no_device(CUdevice device) { return device < 0 || device >= device_count; }

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER;
	if (!device) RETURN(INVALID_VALUE);
	if (no_device(ordinal)) RETURN(INVALID_DEVICE);
	*device = ordinal;
	RETURN(OK);
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	ENTER;
	if (!name || size < 1) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	snprintf(name, (size_t)size, "Fake CUDA Device");
	RETURN(OK);
}

// Device n has the UUID 66616b65-6375-6461-0000-00000000000n ("fakecuda"); the fake NVML says the same.
EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device)
{
	ENTER;
	if (!uuid) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	memset(uuid, 0, 16);
	memcpy(uuid, "fakecuda", 8);
	uuid[15] = (unsigned char)devices[device].physical;
	RETURN(OK);
}
EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	ENTER;
	if (!bytes) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	*bytes = devices[device].total;
	RETURN(OK);
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t total = 0;
	CUresult result = cuDeviceTotalMem_v2(&total, device);
	if (!result && bytes) *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
	return result;
}

// The attributes of an A100, as far as programs look at them; all others are 0.
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	static const struct { int attribute, value; } known[] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32}, {11, 2147483647},
		{12, 65536}, {13, 1410000}, {14, 512}, {15, 1}, {16, 108}, {19, 1}, {31, 1}, {36, 1215000}, {37, 5120}, {38, 41943040}, {39, 2048},
		{40, 3}, {41, 1}, {75, 8}, {76, 0}, {78, 1}, {79, 1}, {81, 167936}, {82, 65536}, {83, 1}, {86, 1}, {88, 1}, {89, 1}, {95, 1}, {97, 166912},
		{102, 1}, {103, 1}, {106, 32}, {111, 1024}, {115, 1}, {119, 9},
	};
	ENTER;
	if (!value || attribute < 1 || attribute > 255) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	*value = 0;
	if (attribute == 33) *value = 0x17 + devices[device].physical; // PCI bus
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].attribute == attribute) *value = known[i].value;
	RETURN(OK);
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	ENTER;
	if (!major || !minor) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	*major = 8, *minor = 0;
	RETURN(OK);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	ENTER;
	if (!id || size < 1) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	snprintf(id, (size_t)size, "0000:%02X:00.0", 0x17 + devices[device].physical);
	RETURN(OK);
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	ENTER;
	unsigned domain, bus;
	if (!device || !id || sscanf(id, "%x:%x:", &domain, &bus) != 2) RETURN(INVALID_VALUE);
	for (int i = 0; i < device_count; i++)
		if (domain == 0 && (int)bus == 0x17 + devices[i].physical) { *device = i; RETURN(OK); }
	RETURN(INVALID_DEVICE);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER;
	if (!can) RETURN(INVALID_VALUE);
	if (no_device(device) || no_device(peer)) RETURN(INVALID_DEVICE);
	*can = device != peer;
	RETURN(OK);
}
