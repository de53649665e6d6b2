/* NVML tells the same story as CUDA: lost devices, hidden devices, less memory. */
#include "shim.h"

enum { INVALID_ARGUMENT = 2, NOT_FOUND = 6, GPU_IS_LOST = 15, RESET_REQUIRED = 16 };

/* NVML's index of a device as the CUDA ordinal of this process; -1: CUDA does not see it. */
static int ordinal(uint32_t index) { return gf_ordinal(gf_visible_devices(), index); }

static int hidden(const struct gf_state *s, uint32_t index)
{
	int o = ordinal(index);

	return o >= 0 && o < 64 && (s->hide >> o & 1);
}

int gf_nvml_index(uint64_t handle, uint32_t *index)
{
	uint32_t (*real)(uint64_t, uint32_t *) = (uint32_t (*)(uint64_t, uint32_t *))gf_nvml_function("nvmlDeviceGetIndex");

	return real && real(handle, index) == 0;
}

/* Whether the fault is for this device. */
int gf_nvml_struck(const struct gf_state *s, uint32_t index)
{
	int o = ordinal(index);

	return !s->devices || (o >= 0 && o < 64 && (s->devices >> o & 1));
}

int gf_nvml_handle_struck(const struct gf_state *s, uint64_t handle)
{
	uint32_t index;

	return !s->devices || (gf_nvml_index(handle, &index) && gf_nvml_struck(s, index));
}

static uint32_t count(const struct gf_state *s)
{
	uint32_t (*real)(uint32_t *) = (uint32_t (*)(uint32_t *))gf_nvml_function("nvmlDeviceGetCount_v2");
	uint32_t n = 0, left = 0;

	if (!real || real(&n))
		return 0;
	for (uint32_t i = 0; i < n; i++)
		left += !hidden(s, i);
	return left;
}

/* nvmlDeviceGetHandleByIndex: hidden devices are skipped. */
static uint32_t by_index(const struct gf_state *s, unsigned n, uint64_t *a, int failing)
{
	uint64_t b[6] = { a[0], a[1] };
	uint32_t index = 0, wanted = (uint32_t)a[0];

	for (; index < 256 && (hidden(s, index) || wanted); index++)
		wanted -= !hidden(s, index);
	if (index == 256)
		return INVALID_ARGUMENT;
	if (failing && s->nvml_error == GPU_IS_LOST && gf_nvml_struck(s, index))
		return GPU_IS_LOST;
	b[0] = index;
	return gf_call_real(n, b);
}

/* Handles by UUID, PCI address or serial number. */
static uint32_t by_name(const struct gf_state *s, unsigned n, uint64_t *a, int failing)
{
	uint64_t handle = 0, b[6] = { a[0], a[1] ? (uint64_t)&handle : 0 };
	uint32_t code = gf_call_real(n, b), index;

	if (code || !a[1])
		return code;
	if (gf_nvml_index(handle, &index)) {
		if (hidden(s, index))
			return NOT_FOUND;
		if (failing && s->nvml_error == GPU_IS_LOST && gf_nvml_struck(s, index))
			return GPU_IS_LOST;
	}
	*(uint64_t *)a[1] = handle;
	return code;
}

/*
 * total, free, used; in version 2 behind a version and with `reserved` between. What others and the driver use may be more than the limit: then all is
 * used, and nothing free.
 */
static uint32_t memory(const struct gf_state *s, unsigned n, uint64_t *a)
{
	uint32_t code = gf_call_real(n, a);
	uint64_t *m = (uint64_t *)a[1];
	int v2 = gf_info[n].special == GF_NV_MEM2;

	if (code || !m || !s->mem_limit || !gf_nvml_handle_struck(s, a[0]))
		return code;
	m += v2;
	if (m[0] > s->mem_limit) {
		uint64_t used = m[2 + v2], reserved = v2 ? m[1] : 0;

		m[0] = s->mem_limit;
		if (v2 && reserved > m[0])
			m[1] = reserved = m[0];
		if (used > m[0] - reserved)
			m[2 + v2] = used = m[0] - reserved;
		m[1 + v2] = m[0] - used - reserved;
	}
	return code;
}

/* What takes effect also while nothing is armed: the event sets and those who wait for them. */
static int events(unsigned n, uint64_t *a, uint32_t *code)
{
	if (gf_off())
		return 0;
	switch (gf_info[n].special) {
	case GF_NV_WAIT:
		*code = gf_nvml_wait(n, a);
		return 1;
	case GF_NV_REGISTER:
		*code = gf_nvml_register(n, a);
		return 1;
	case GF_NV_FREE:
		*code = gf_nvml_free(n, a);
		return 1;
	}
	return 0;
}

/*
 * A call about a device that is lost. A device that requires a reset still has a name, counters and memory; only what is measured now fails (scitix/
 * sichek#121: the counters can be read; leptonai/gpud#1133: the utilization cannot).
 */
static int lost(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint8_t what = gf_info[n].special;

	if (what == GF_NV_WAIT || what == GF_NV_FREE || !s->nvml_error || (s->nvml_error == RESET_REQUIRED && what != GF_NV_LIVE))
		return 0;
	if (!gf_init_condition(s) || !gf_nvml_handle_struck(s, a[0]))
		return 0;
	*code = s->nvml_error;
	gf_tripped(s, GF_BY_NVML_CALL, gf_hook_name(n), "NVML error", 0, *code);
	return 1;
}

int gf_nvml(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	int failing;

	if (!s)
		return events(n, a, code);
	failing = (s->nvml_error || s->nvml_init_error) && gf_init_condition(s);
	switch (gf_info[n].special) {
	case GF_NV_INIT:
		*code = s->nvml_init_error;
		return failing && s->nvml_init_error;
	case GF_NV_COUNT:
		if (!s->hide)
			return 0;
		*code = gf_call_real(n, a);
		if (*code == 0 && a[0])
			*(uint32_t *)a[0] = count(s);
		return 1;
	case GF_NV_INDEX:
		*code = by_index(s, n, a, failing);
		return 1;
	case GF_NV_HANDLE:
		*code = by_name(s, n, a, failing);
		return 1;
	}
	if (lost(s, n, a, code) || events(n, a, code) || gf_nvml_values(s, n, a, code))
		return 1;
	if (gf_info[n].special != GF_NV_MEM && gf_info[n].special != GF_NV_MEM2)
		return 0;
	*code = memory(s, n, a);
	return 1;
}
