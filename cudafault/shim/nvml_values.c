/*
 * What NVML's counters say once the fault has struck: uncorrectable ECC errors and remapped rows, the same by whatever function they are asked for.
 * Layouts as in nvml.h of CUDA 12.
 */
#include "shim.h"

enum { UNCORRECTED = 1, DEVICE_MEMORY = 2 };                  /* nvmlMemoryErrorType_t, nvmlMemoryLocation_t */
enum { RESET_REQUIRED = 16 };                                 /* nvmlReturn_t */
enum { REMAPPED = 1, PENDING = 2, FAILED = 4 };                /* gf_state.nvml_rows */
struct field { uint32_t id, scope; int64_t at, latency; uint32_t type, code; uint64_t value; }; /* nvmlFieldValue_t */
_Static_assert(sizeof(struct field) == 40 && offsetof(struct field, value) == 32, "layout");

static uint32_t remapped(const struct gf_state *s) { return s->nvml_rows & REMAPPED ? 1 : 0; }

static void add(uint64_t counter, uint64_t errors)
{
	if (counter)
		*(uint64_t *)counter += errors;
}

/* nvmlDeviceGetRemappedRows(device, corrected, uncorrected, pending, failed) */
static void rows(const struct gf_state *s, uint64_t *a)
{
	if (a[2])
		*(uint32_t *)a[2] += remapped(s);
	if (a[3] && (s->nvml_rows & PENDING))
		*(uint32_t *)a[3] = 1;
	if (a[4] && (s->nvml_rows & FAILED))
		*(uint32_t *)a[4] = 1;
}

/* nvmlRemappedRowsInfo_v2_t: corrected active, inactive, uncorrected active, inactive, pending, failed */
static void rows_v2(const struct gf_state *s, uint32_t *info)
{
	info[3] += remapped(s); /* inactive until the GPU is reset */
	if (s->nvml_rows & PENDING)
		info[4] = 1;
	if (s->nvml_rows & FAILED)
		info[5] = 1;
}

/* nvmlRowRemapperHistogramValues_t: banks with all spare rows, with many, some, few, none. One has lost its first. */
static void histogram(const struct gf_state *s, uint32_t *banks)
{
	if (remapped(s) && banks[0]) {
		banks[0]--;
		banks[1]++;
	}
}

static void field(const struct gf_state *s, struct field *f)
{
	uint64_t value = f->type == 1 ? (uint32_t)f->value : f->value; /* NVML_VALUE_TYPE_UNSIGNED_INT */

	if (f->code)
		return;
	switch (f->id) {
	case 4: case 6:   /* uncorrectable errors, volatile and aggregate */
	case 12: case 23: /* those of device memory */
		value += s->nvml_ecc;
		break;
	case 143:
		value += remapped(s);
		break;
	case 144:
		value = s->nvml_rows & PENDING ? 1 : value;
		break;
	case 145:
		value = s->nvml_rows & FAILED ? 1 : value;
		break;
	case 226: case 230: /* reset status; recovery action, where 1 is a reset of the GPU */
		value = s->nvml_error == RESET_REQUIRED ? 1 : value;
		break;
	default:
		return;
	}
	f->value = f->type == 1 ? (f->value & ~(uint64_t)UINT32_MAX) | (uint32_t)value : value;
}

/* Returns 1 if the call returns *code. */
int gf_nvml_values(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint8_t what = gf_info[n].special;
	int uncorrected = (uint32_t)a[1] == UNCORRECTED; /* the upper half of a register with an int is undefined */

	if (what < GF_NV_ECC_TOTAL || what > GF_NV_FIELDS || !(s->nvml_ecc || s->nvml_rows || s->nvml_error == RESET_REQUIRED))
		return 0;
	if (!gf_init_condition(s) || !gf_nvml_handle_struck(s, a[0]))
		return 0;
	*code = gf_call_real(n, a);
	if (*code)
		return 1;
	switch (what) {
	case GF_NV_ECC_TOTAL:  /* (device, error type, counter, count) */
		if (uncorrected)
			add(a[3], s->nvml_ecc);
		break;
	case GF_NV_ECC_PLACE:  /* (device, error type, counter, location, count) */
		if (uncorrected && (uint32_t)a[3] == DEVICE_MEMORY)
			add(a[4], s->nvml_ecc);
		break;
	case GF_NV_ECC_DETAIL: /* (device, error type, counter, {L1, L2, device memory, registers}) */
		if (uncorrected && a[3])
			add(a[3] + 16, s->nvml_ecc);
		break;
	case GF_NV_ROWS:
		rows(s, a);
		break;
	case GF_NV_ROWS2:
		if (a[1])
			rows_v2(s, (uint32_t *)a[1]);
		break;
	case GF_NV_HISTOGRAM:
		if (a[1])
			histogram(s, (uint32_t *)a[1]);
		break;
	case GF_NV_FIELDS:     /* (device, how many, values) */
		for (int32_t i = 0; a[2] && i < (int32_t)a[1]; i++)
			field(s, (struct field *)a[2] + i);
		break;
	}
	return 1;
}
