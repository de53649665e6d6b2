// Memory: what a device has, pools, managed and host memory. A device pointer is a pointer, so that copies are copies; pages come from
// mmap and cost nothing until they are touched, so a device may have more memory than the machine.
#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct allocation *allocations;

void allocation_add(uintptr_t at, size_t size, int device, int kind)
{
	struct allocation *a = calloc(1, sizeof *a);
	*a = (struct allocation){at, size, device, kind, allocations};
	allocations = a;
}

static size_t rounded(size_t size) { return (size + 511) & ~(size_t)511; } // cuMemAlloc's granularity

static CUresult allocate(int device, size_t size, int kind, int low, uintptr_t *at)
{
	int counts = kind == ALLOC_DEVICE; // managed memory may exceed the device: the real driver moves its pages
	if (size == 0) return INVALID_VALUE;
	if (counts && (size > devices[device].total || devices[device].used + rounded(size) > devices[device].total)) return OUT_OF_MEMORY;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#ifdef MAP_32BIT
	if (low) flags |= MAP_32BIT;
#endif
	void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (pages == MAP_FAILED || (low && (uintptr_t)pages + size > UINT32_MAX)) return OUT_OF_MEMORY;
	allocation_add((uintptr_t)pages, size, device, kind);
	if (counts) devices[device].used += rounded(size);
	*at = (uintptr_t)pages;
	return OK;
}

CUresult device_memory(int device, size_t size, int kind, int low, uintptr_t *at) { return allocate(device, size, kind, low, at); }

struct allocation *allocation_of(uintptr_t at, size_t size)
{
	for (struct allocation *a = allocations; a; a = a->next)
		if (at >= a->at && at - a->at <= a->size && size <= a->size - (at - a->at)) return a;
	return NULL;
}

CUresult device_memory_free(uintptr_t at)
{
	for (struct allocation **p = &allocations; *p; p = &(*p)->next) {
		struct allocation *a = *p;
		if (a->at != at) continue;
		if (a->kind == ALLOC_DEVICE) devices[a->device].used -= rounded(a->size);
		if (a->kind != ALLOC_REGISTERED && a->kind != ALLOC_VMM) munmap((void *)a->at, a->size);
		*p = a->next;
		free(a);
		return OK;
	}
	return INVALID_VALUE;
}

// For the fake NVML, which lies in another library: bytes in use on a device, by its physical number; 0 where CUDA was not initialised.
EXPORT uint64_t fakecuda_used(int physical)
{
	for (int i = 0; i < device_count; i++)
		if (devices[i].physical == physical) return devices[i].used;
	return 0;
}

static CUresult allocate_here(uintptr_t *at, size_t size, int kind, int low)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (!result && kind != ALLOC_HOST) result = unsafe_in_capture();
	if (!result) result = at ? allocate(context->device, size, kind, low, at) : INVALID_VALUE;
	RETURN(result);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) { return allocate_here((uintptr_t *)at, size, ALLOC_DEVICE, 0); }

// The first version has pointers and sizes of 32 bits.
EXPORT CUresult cuMemAlloc(unsigned *at, unsigned size)
{
	uintptr_t address = 0;
	CUresult result = allocate_here(at ? &address : NULL, size, ALLOC_DEVICE, 1);
	if (!result) *at = (unsigned)address;
	return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return INVALID_VALUE;
	size_t row = (width + 511) & ~(size_t)511;
	CUresult result = allocate_here((uintptr_t *)at, row * height, ALLOC_DEVICE, 0);
	if (!result) *pitch = row;
	return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *at, size_t size, unsigned flags)
{
	return flags == 1 || flags == 2 ? allocate_here((uintptr_t *)at, size, ALLOC_MANAGED, 0) : INVALID_VALUE;
}

EXPORT CUresult cuMemHostAlloc(void **at, size_t size, unsigned flags)
{
	(void)flags;
	return allocate_here((uintptr_t *)at, size, ALLOC_HOST, 0);
}
EXPORT CUresult cuMemAllocHost_v2(void **at, size_t size) { return cuMemHostAlloc(at, size, 0); }
EXPORT CUresult cuMemAllocHost(void **at, unsigned size) { return cuMemHostAlloc(at, size, 0); }

EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result || !at) RETURN(result);
	result = drain_context(context); // it waits for all work, as the real one does
	if (!result) result = device_memory_free(at);
	RETURN(result);
}
EXPORT CUresult cuMemFree(unsigned at) { return cuMemFree_v2(at); }
EXPORT CUresult cuMemFreeHost(void *at) { return cuMemFree_v2((uintptr_t)at); }

EXPORT CUresult cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
	(void)flags;
	ENTER;
	if (!at || !size) RETURN(INVALID_VALUE);
	if (allocation_of((uintptr_t)at, 1)) RETURN(712); // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	allocation_add((uintptr_t)at, size, -1, ALLOC_REGISTERED);
	RETURN(OK);
}

EXPORT CUresult cuMemHostUnregister(void *at)
{
	ENTER;
	struct allocation *a = allocation_of((uintptr_t)at, 1);
	RETURN(a && a->kind == ALLOC_REGISTERED ? device_memory_free(a->at) : 713); // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned flags)
{
	ENTER;
	if (!device || flags || !allocation_of((uintptr_t)host, 1)) RETURN(INVALID_VALUE);
	*device = (uintptr_t)host;
	RETURN(OK);
}

// Either pointer may be NULL: programs do that, and the real driver takes it.
EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (available) *available = devices[context->device].total - devices[context->device].used;
	if (total) *total = devices[context->device].total;
	RETURN(OK);
}

EXPORT CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	size_t a = 0, t = 0;
	CUresult result = cuMemGetInfo_v2(&a, &t);
	if (available) *available = a > UINT32_MAX ? UINT32_MAX : (unsigned)a;
	if (total) *total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
	ENTER;
	struct allocation *a = allocation_of(at, 1);
	if (!a) RETURN(NOT_FOUND);
	if (base) *base = a->at;
	if (size) *size = a->size;
	RETURN(OK);
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr at)
{
	ENTER;
	struct allocation *a = allocation_of(at, 1);
	if (!a || !data) RETURN(INVALID_VALUE);
	switch (attribute) {
	case 1: *(void **)data = a->device < 0 ? NULL : (void *)devices[a->device].primary; break;
	case 2: *(unsigned *)data = a->kind == ALLOC_HOST || a->kind == ALLOC_REGISTERED ? 1 : 2; break; // host, device
	case 3: case 4: *(CUdeviceptr *)data = at; break;
	case 8: *(unsigned *)data = a->kind == ALLOC_MANAGED; break;
	case 9: *(int *)data = a->device; break;
	case 11: *(CUdeviceptr *)data = a->at; break;
	case 12: *(size_t *)data = a->size; break;
	default: RETURN(NOT_SUPPORTED);
	}
	RETURN(OK);
}
