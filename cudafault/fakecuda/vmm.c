// Allocation in stream order (pools), virtual memory management, arrays, and memory of other processes.
#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct pool { int device; uint64_t threshold; };
struct array { uintptr_t at; };
struct physical { int device; size_t size; int fd; int references; uint64_t used; }; // a cuMemCreate handle: pages without an address

static CUresult allocate_async(CUdeviceptr *at, size_t size, struct pool *pool, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!at) RETURN(INVALID_VALUE);
	uintptr_t address = 0;
	result = device_memory(pool ? pool->device : stream->context->device, size, ALLOC_DEVICE, 0, &address);
	if (!result) *at = address;
	RETURN(result);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *at, size_t size, void *stream) { return allocate_async(at, size, NULL, stream); }

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t size, struct pool *pool, void *stream)
{
	return pool ? allocate_async(at, size, pool, stream) : INVALID_VALUE;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!allocation_of(at, 1)) RETURN(INVALID_VALUE);
	struct op op = {.kind = OP_FREE, .dst = (unsigned char *)(uintptr_t)at};
	RETURN(submit(stream, &op));
}

EXPORT CUresult cuMemPoolCreate(struct pool **pool, const int *properties) // properties: type, handle types, location type, device
{
	ENTER;
	if (!pool || !properties || no_device(properties[3])) RETURN(INVALID_VALUE);
	*pool = calloc(1, sizeof **pool);
	(*pool)->device = properties[3];
	RETURN(OK);
}

EXPORT CUresult cuMemPoolDestroy(struct pool *pool)
{
	ENTER;
	if (!pool) RETURN(INVALID_VALUE);
	free(pool);
	RETURN(OK);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(struct pool **pool, CUdevice device)
{
	ENTER;
	if (!pool) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	if (!devices[device].pool) {
		devices[device].pool = calloc(1, sizeof(struct pool));
		devices[device].pool->device = device;
	}
	*pool = devices[device].pool;
	RETURN(OK);
}
EXPORT CUresult cuDeviceGetMemPool(struct pool **pool, CUdevice device) { return cuDeviceGetDefaultMemPool(pool, device); }

EXPORT CUresult cuMemPoolTrimTo(struct pool *pool, size_t keep)
{
	(void)keep;
	return pool ? OK : INVALID_VALUE;
}

EXPORT CUresult cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value)
{
	ENTER;
	if (!pool || !value) RETURN(INVALID_VALUE);
	if (attribute == 4) pool->threshold = *(uint64_t *)value;
	RETURN(OK);
}

EXPORT CUresult cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value)
{
	ENTER;
	if (!pool || !value) RETURN(INVALID_VALUE);
	if (attribute < 4) *(int *)value = 1;
	else *(uint64_t *)value = attribute == 4 ? pool->threshold : devices[pool->device].used;
	RETURN(OK);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option)
{
	(void)option;
	ENTER;
	if (!granularity || !properties) RETURN(INVALID_VALUE);
	*granularity = 2 << 20;
	RETURN(OK);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr wanted, uint64_t flags)
{
	(void)alignment;
	ENTER;
	if (!at || !size || flags) RETURN(INVALID_VALUE);
	void *pages = mmap((void *)(uintptr_t)wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pages == MAP_FAILED) RETURN(OUT_OF_MEMORY);
	*at = (uintptr_t)pages;
	RETURN(OK);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
	ENTER;
	RETURN(at && !munmap((void *)(uintptr_t)at, size) ? OK : INVALID_VALUE);
}

EXPORT CUresult cuMemCreate(struct physical **handle, size_t size, const int *properties, uint64_t flags) // properties as for a pool
{
	ENTER;
	if (!handle || !size || size % (2 << 20) || !properties || flags || no_device(properties[3])) RETURN(INVALID_VALUE);
	struct device *device = &devices[properties[3]];
	if (size > device->total || device->used + size > device->total) RETURN(OUT_OF_MEMORY);
	int fd = memfd_create("fakecuda", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size)) RETURN(OUT_OF_MEMORY);
	struct physical *p = calloc(1, sizeof *p);
	*p = (struct physical){properties[3], size, fd, 1, size};
	device->used += size;
	*handle = p;
	RETURN(OK);
}

static void put(struct physical *p)
{
	if (--p->references) return;
	devices[p->device].used -= p->used;
	close(p->fd);
	free(p);
}

EXPORT CUresult cuMemRelease(struct physical *handle)
{
	ENTER;
	if (!handle) RETURN(INVALID_VALUE);
	put(handle);
	RETURN(OK);
}

static struct mapping { uintptr_t at; size_t size; struct physical *physical; struct mapping *next; } *mappings;

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, struct physical *handle, uint64_t flags)
{
	ENTER;
	if (!at || !handle || flags || offset + size > handle->size) RETURN(INVALID_VALUE);
	if (mmap((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle->fd, (off_t)offset) == MAP_FAILED)
		RETURN(OUT_OF_MEMORY);
	struct mapping *m = calloc(1, sizeof *m);
	*m = (struct mapping){at, size, handle, mappings};
	mappings = m;
	handle->references++;
	allocation_add(at, size, handle->device, ALLOC_VMM);
	RETURN(OK);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	ENTER;
	for (struct mapping **p = &mappings; *p; p = &(*p)->next) {
		struct mapping *m = *p;
		if (m->at != at || m->size != size) continue;
		mmap((void *)m->at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
		device_memory_free(at);
		put(m->physical);
		*p = m->next;
		free(m);
		RETURN(OK);
	}
	RETURN(INVALID_VALUE);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const void *description, size_t count)
{
	ENTER;
	RETURN(at && size && description && count ? OK : INVALID_VALUE);
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, struct physical *handle, int type, uint64_t flags)
{
	ENTER;
	if (!out || !handle || type != 1 || flags) RETURN(INVALID_VALUE);
	*(int *)out = dup(handle->fd);
	RETURN(OK);
}

EXPORT CUresult cuMemImportFromShareableHandle(struct physical **handle, void *os, int type)
{
	ENTER;
	if (!handle || type != 1) RETURN(INVALID_VALUE);
	int fd = dup((int)(intptr_t)os);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	if (size <= 0) RETURN(INVALID_VALUE);
	*handle = calloc(1, sizeof **handle);
	**handle = (struct physical){0, (size_t)size, fd, 1, 0};
	RETURN(OK);
}

static CUresult create_array(struct array **array, size_t width, size_t height, size_t depth, unsigned format, unsigned channels)
{
	static const unsigned char sizes[] = {[1] = 1, [2] = 2, [3] = 4, [8] = 1, [9] = 2, [10] = 4, [16] = 2, [32] = 4};
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	unsigned unit = format < sizeof sizes ? sizes[format] : 0;
	if (!array || !width || !unit || !channels) RETURN(INVALID_VALUE);
	uintptr_t at = 0;
	result = device_memory(context->device, width * (height ? height : 1) * (depth ? depth : 1) * unit * channels, ALLOC_DEVICE, 0, &at);
	if (!result) {
		*array = calloc(1, sizeof **array);
		(*array)->at = at;
	}
	RETURN(result);
}

struct array_2d { size_t width, height; unsigned format, channels; };
struct array_3d { size_t width, height, depth; unsigned format, channels, flags; };

EXPORT CUresult cuArrayCreate_v2(struct array **array, const struct array_2d *d)
{
	return d ? create_array(array, d->width, d->height, 1, d->format, d->channels) : INVALID_VALUE;
}

EXPORT CUresult cuArray3DCreate_v2(struct array **array, const struct array_3d *d)
{
	return d ? create_array(array, d->width, d->height, d->depth, d->format, d->channels) : INVALID_VALUE;
}

EXPORT CUresult cuArrayDestroy(struct array *array)
{
	ENTER;
	if (!array) RETURN(INVALID_HANDLE);
	CUresult result = device_memory_free(array->at);
	free(array);
	RETURN(result);
}

// A handle holds process and address. A process cannot open its own, as with the real driver; another one's memory cannot be reached here.
EXPORT CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr at)
{
	ENTER;
	struct allocation *a = allocation_of(at, 1);
	if (!handle || !a) RETURN(INVALID_VALUE);
	memset(handle, 0, 64);
	((uint64_t *)handle)[0] = (uint64_t)getpid();
	((uint64_t *)handle)[1] = a->at;
	RETURN(OK);
}
