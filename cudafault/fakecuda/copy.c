// Copies and sets: each is one op, done at once or queued.
#include "fake.h"
#include <stdlib.h>
#include <string.h>

static int pageable(const void *at, size_t size)
{
	return allocation_of((uintptr_t)at, size) == NULL;
}

// copy checks both ends and submits. An end on a device must lie in an allocation. A copy out of pageable host memory takes the bytes at once,
// one into it ends before the call does, as with the real driver.
static CUresult copy(struct op op, int dst_device, int src_device, int async, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (!result && !async) result = unsafe_in_capture();
	if (result) RETURN(result);
	if (op.width == 0 || op.height == 0 || op.depth == 0) RETURN(OK);
	size_t dst_size = op.dst_slice * (op.depth - 1) + op.dst_pitch * (op.height - 1) + op.width;
	size_t src_size = op.src_slice * (op.depth - 1) + op.src_pitch * (op.height - 1) + op.width;
	int to_pageable = pageable(op.dst, dst_size), from_pageable = pageable(op.src, src_size);
	if ((dst_device && to_pageable) || (src_device && from_pageable) || !op.dst || !op.src) RETURN(INVALID_VALUE);
	op.kind = OP_COPY;
	if (async && from_pageable && !stream->capture) {
		op.staged = malloc(src_size);
		memcpy(op.staged, op.src, src_size);
		op.src = op.staged;
	}
	result = submit(stream, &op);
	if (!result && (!async || to_pageable) && !stream->capture) result = drain(stream, NULL);
	RETURN(result);
}

static struct op plain(uintptr_t dst, uintptr_t src, size_t size)
{
	return (struct op){.dst = (unsigned char *)dst, .src = (unsigned char *)src, .width = size, .height = 1, .depth = 1};
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) { return copy(plain(dst, src, size), 0, 0, 0, NULL); }
EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, void *stream) { return copy(plain(dst, src, size), 0, 0, 1, stream); }
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size) { return copy(plain(dst, (uintptr_t)src, size), 1, 0, 0, NULL); }
EXPORT CUresult cuMemcpyHtoD(unsigned dst, const void *src, unsigned size) { return cuMemcpyHtoD_v2(dst, src, size); }
EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size) { return copy(plain((uintptr_t)dst, src, size), 0, 1, 0, NULL); }
EXPORT CUresult cuMemcpyDtoH(void *dst, unsigned src, unsigned size) { return cuMemcpyDtoH_v2(dst, src, size); }
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size) { return copy(plain(dst, src, size), 1, 1, 0, NULL); }
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, void *stream)
{
	return copy(plain(dst, (uintptr_t)src, size), 1, 0, 1, stream);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, void *stream)
{
	return copy(plain((uintptr_t)dst, src, size), 0, 1, 1, stream);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, void *stream)
{
	return copy(plain(dst, src, size), 1, 1, 1, stream);
}
EXPORT CUresult cuMemcpyPeer(CUdeviceptr dst, void *to, CUdeviceptr src, void *from, size_t size)
{
	return to && from ? copy(plain(dst, src, size), 1, 1, 0, NULL) : INVALID_CONTEXT;
}
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, void *to, CUdeviceptr src, void *from, size_t size, void *stream)
{
	return to && from ? copy(plain(dst, src, size), 1, 1, 1, stream) : INVALID_CONTEXT;
}

// One end of a 2D or 3D copy as the driver's structs have it; memory type 1 host, 2 device, 3 array (none here), 4 unified.
struct end_2d { size_t x, y; unsigned type, pad; void *host; CUdeviceptr device; void *array; size_t pitch; };
struct copy_2d { struct end_2d src, dst; size_t width, height; };
struct end_3d { size_t x, y, z, lod; unsigned type, pad; void *host; CUdeviceptr device; void *array, *reserved; size_t pitch, height; };
struct copy_3d { struct end_3d src, dst; size_t width, height, depth; };

static unsigned char *base(unsigned type, void *host, CUdeviceptr device) { return type == 1 ? host : (unsigned char *)(uintptr_t)device; }

static CUresult copy_2d(const struct copy_2d *c, int async, void *stream)
{
	if (!c || c->src.type == 3 || c->dst.type == 3) return c ? NOT_SUPPORTED : INVALID_VALUE;
	struct op op = {.width = c->width, .height = c->height, .depth = 1};
	op.src_pitch = c->src.pitch ? c->src.pitch : c->width;
	op.dst_pitch = c->dst.pitch ? c->dst.pitch : c->width;
	op.src = base(c->src.type, c->src.host, c->src.device) + c->src.y * op.src_pitch + c->src.x;
	op.dst = base(c->dst.type, c->dst.host, c->dst.device) + c->dst.y * op.dst_pitch + c->dst.x;
	return copy(op, c->dst.type == 2, c->src.type == 2, async, stream);
}

static CUresult copy_3d(const struct copy_3d *c, int async, void *stream)
{
	if (!c || c->src.type == 3 || c->dst.type == 3) return c ? NOT_SUPPORTED : INVALID_VALUE;
	struct op op = {.width = c->width, .height = c->height, .depth = c->depth};
	op.src_pitch = c->src.pitch ? c->src.pitch : c->width;
	op.dst_pitch = c->dst.pitch ? c->dst.pitch : c->width;
	op.src_slice = op.src_pitch * (c->src.height ? c->src.height : c->height);
	op.dst_slice = op.dst_pitch * (c->dst.height ? c->dst.height : c->height);
	op.src = base(c->src.type, c->src.host, c->src.device) + c->src.z * op.src_slice + c->src.y * op.src_pitch + c->src.x;
	op.dst = base(c->dst.type, c->dst.host, c->dst.device) + c->dst.z * op.dst_slice + c->dst.y * op.dst_pitch + c->dst.x;
	return copy(op, c->dst.type == 2, c->src.type == 2, async, stream);
}

EXPORT CUresult cuMemcpy2D_v2(const struct copy_2d *c) { return copy_2d(c, 0, NULL); }
EXPORT CUresult cuMemcpy2DUnaligned_v2(const struct copy_2d *c) { return copy_2d(c, 0, NULL); }
EXPORT CUresult cuMemcpy2DAsync_v2(const struct copy_2d *c, void *stream) { return copy_2d(c, 1, stream); }
EXPORT CUresult cuMemcpy3D_v2(const struct copy_3d *c) { return copy_3d(c, 0, NULL); }
EXPORT CUresult cuMemcpy3DAsync_v2(const struct copy_3d *c, void *stream) { return copy_3d(c, 1, stream); }

static CUresult set(CUdeviceptr dst, size_t pitch, unsigned value, unsigned unit, size_t width, size_t height, int async, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (!result && !async) result = unsafe_in_capture();
	if (result) RETURN(result);
	if (width == 0 || height == 0) RETURN(OK);
	if (dst % unit || pageable((void *)(uintptr_t)dst, pitch * (height - 1) + width * unit)) RETURN(INVALID_VALUE);
	struct op op = {.kind = OP_SET, .dst = (unsigned char *)(uintptr_t)dst, .width = width, .height = height, .depth = 1,
		.dst_pitch = pitch, .value = value, .unit = unit};
	RETURN(submit(stream, &op)); // also without Async it need not have happened when the call returns, as with the real driver
}

#define SETS(bits, type) \
	EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t n) { return set(dst, 0, value, bits / 8, n, 1, 0, NULL); } \
	EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t n, void *stream) \
	{ return set(dst, 0, value, bits / 8, n, 1, 1, stream); } \
	EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) \
	{ return set(dst, pitch, value, bits / 8, width, height, 0, NULL); } \
	EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, void *stream) \
	{ return set(dst, pitch, value, bits / 8, width, height, 1, stream); }
SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned)
