/*
 * A smaller device memory (mem_limit): allocations that would bring the device's use above the limit fail with 2, and everything that tells of
 * memory tells of a device of that size. What is in use is the driver's own answer, so other processes on the device count as they really do.
 */
#include "shim.h"

enum { OUT_OF_MEMORY = 2 };

/* Bytes in use on the current device; -1 if the driver does not say (no context). */
static int64_t used(void)
{
	uint32_t (*info)(size_t *, size_t *) =
		(uint32_t (*)(size_t *, size_t *))gf_driver_function(GF_FILE_IS_RUNTIME ? "cudaMemGetInfo" : "cuMemGetInfo_v2");
	size_t available = 0, total = 0;

	return info && info(&available, &total) == 0 && total >= available ? (int64_t)(total - available) : -1;
}

/* Bytes of an array: width, height and depth in elements of 1, 2 or 4 bytes and some channels. 0 heights and depths mean one. */
static uint64_t array_size(uint64_t width, uint64_t height, uint64_t depth, uint32_t format, uint32_t channels)
{
	/* CU_AD_FORMAT: 0x01/0x08 8 bit, 0x02/0x09/0x10 16 bit, 0x03/0x0a/0x20 32 bit; block formats are rarer and smaller. */
	uint64_t bytes = format == 0x02 || format == 0x09 || format == 0x10 ? 2 : format == 0x03 || format == 0x0a || format == 0x20 ? 4 : 1;

	return width * (height ? height : 1) * (depth ? depth : 1) * bytes * (channels ? channels : 1);
}

/* What the call asks for, in bytes. */
static uint64_t asked(unsigned n, const uint64_t *a)
{
	const uint64_t *d = (const uint64_t *)a[1];

	switch (gf_info[n].special) {
	case GF_MEM_PITCH: return (a[2] + 511) / 512 * 512 * a[3];
	case GF_MEM_ARRAY: return d ? array_size(d[0], d[1], 1, (uint32_t)d[2], (uint32_t)(d[2] >> 32)) : 0;
	case GF_MEM_ARRAY3D: return d ? array_size(d[0], d[1], d[2], (uint32_t)d[3], (uint32_t)(d[3] >> 32)) : 0;
	}
	return a[1];
}

/* Bytes that a pool (0: the current device's) holds and does not use: an allocation takes these first. */
static uint64_t in_pool(uint64_t pool)
{
	uint32_t (*current)(uint64_t *, int) = (uint32_t (*)(uint64_t *, int))gf_driver_function("cuDeviceGetMemPool");
	uint32_t (*device)(int *) = (uint32_t (*)(int *))gf_driver_function("cuCtxGetDevice");
	uint32_t (*attribute)(uint64_t, int, uint64_t *) = (uint32_t (*)(uint64_t, int, uint64_t *))gf_driver_function("cuMemPoolGetAttribute");
	uint64_t reserved = 0, taken = 0;
	int d = 0;

	if (!pool && (!current || !device || device(&d) || current(&pool, d)))
		return 0;
	/* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT and _USED_MEM_CURRENT */
	if (!attribute || attribute(pool, 5, &reserved) || attribute(pool, 7, &taken) || reserved < taken)
		return 0;
	return reserved - taken;
}

/*
 * From a pool: what the pool must grow by counts. How it will grow is the driver's matter, so afterwards the use is looked at again, and the
 * memory given back if the device is above the limit.
 */
static uint32_t from_pool(const struct gf_state *s, unsigned n, uint64_t *a)
{
	const char *name = gf_hook_name(n);
	int ptsz = name[gf_length(name) - 1] == 'z', pool = name[10] == 'F';
	uint32_t (*release)(uint64_t, uint64_t);
	uint64_t *p = (uint64_t *)a[0];
	uint32_t code;
	int64_t use;

	if (p && !gf_captures() && (use = used()) >= 0) {
		uint64_t spare = in_pool(pool ? a[2] : 0), grows = a[1] > spare ? a[1] - spare : 0;

		if (a[1] > s->mem_limit || (uint64_t)use + grows > s->mem_limit)
			return OUT_OF_MEMORY;
	}
	code = gf_call_real(n, a);
	if (code || !p || gf_captures() || used() <= (int64_t)s->mem_limit)
		return code;
	if (GF_FILE_IS_RUNTIME)
		release = (uint32_t (*)(uint64_t, uint64_t))gf_driver_function(ptsz ? "cudaFreeAsync_ptsz" : "cudaFreeAsync");
	else
		release = (uint32_t (*)(uint64_t, uint64_t))gf_driver_function(ptsz ? "cuMemFreeAsync_ptsz" : "cuMemFreeAsync");
	if (!release || release(*p, pool ? a[3] : a[2]))
		return code; /* cannot be given back: then it is the program's */
	*p = 0;
	return OUT_OF_MEMORY;
}

/* cuMemGetInfo(free, total): either may be NULL for a driver that allows it. */
static uint32_t info(const struct gf_state *s, unsigned n, uint64_t *a)
{
	uint32_t code = gf_call_real(n, a);
	size_t available = 0, total = 0, limit, use;
	uint64_t both[6] = { (uint64_t)&available, (uint64_t)&total };

	if (code || gf_call_real(n, both))
		return code;
	use = total - available;
	limit = total < s->mem_limit ? total : s->mem_limit;
	if (a[0])
		*(size_t *)a[0] = use < limit ? limit - use : 0;
	if (a[1])
		*(size_t *)a[1] = limit;
	return code;
}

int gf_memory(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint8_t what = gf_info[n].special;
	int64_t use;

	if (what < GF_MEM_TOTAL || what > GF_MEM_ARRAY3D || !s->mem_limit || (what != GF_MEM_TOTAL && !gf_device_matches(s)))
		return 0;
	switch (what) {
	case GF_MEM_TOTAL:
		*code = gf_call_real(n, a);
		if (*code == 0 && a[0] && *(size_t *)a[0] > s->mem_limit)
			*(size_t *)a[0] = s->mem_limit;
		return 1;
	case GF_MEM_INFO:
		*code = info(s, n, a);
		return 1;
	case GF_MEM_POOL:
		*code = from_pool(s, n, a);
		break;
	case GF_MEM_MANAGED: /* may exceed the device: the driver then moves pages */
		*code = a[1] > s->mem_limit ? OUT_OF_MEMORY : 0;
		if (!*code)
			return 0;
		break;
	default:
		if (!a[0] || (what == GF_MEM_CREATE && a[2] && ((const uint32_t *)a[2])[2] != 1)) /* not in device memory (location.type) */
			return 0;
		if ((use = used()) < 0 || (asked(n, a) <= s->mem_limit && (uint64_t)use + asked(n, a) <= s->mem_limit))
			return 0;
		*code = OUT_OF_MEMORY;
	}
	if (*code == OUT_OF_MEMORY)
		gf_tripped(s, GF_BY_LIMIT, gf_hook_name(n), "CUDA error", gf_peek(&gf_calls), OUT_OF_MEMORY);
	return 1;
}
