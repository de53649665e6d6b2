/* What can happen to a call besides an error: delays, hangs, hidden devices, errors at initialisation; and the count of running captures. */
#include "shim.h"

uint32_t gf_initialised;                /* cuInit has succeeded in this process */
static uint64_t capture_began;

/* ---- waiting ---- */

/* A signal handler may jump out of a wait. The next calls of the thread must count, so `inside` is 0 in the meantime. */
void gf_wait(uint64_t us)
{
	uint16_t inside = gf_thread.inside;

	gf_thread.inside = 0;
	gf_sleep(us);
	gf_thread.inside = inside;
}

void gf_delay(const struct gf_state *s, uint64_t i)
{
	uint64_t us = s->latency_us + (s->jitter_us ? (gf_mix(~s->seed, i) >> 32) % ((uint64_t)s->jitter_us + 1) : 0);

	for (; us && gf_load(&gf_state) == s; us -= us < 500000 ? us : 500000) {
		gf_wait(us < 500000 ? us : 500000);
		gf_look(gf_coarse());
	}
}

/* Sleeps until this fault is over: disarmed, expired, or armed anew. */
void gf_hang(const struct gf_state *s)
{
	while (gf_load(&gf_state) == s) {
		gf_wait(250000);
		gf_look(gf_coarse());
	}
}

/* ---- stream capture ---- */

/* Begin and end of captures go through here also while nothing is armed: a fault may be armed in the middle of one. */
uint32_t gf_capture(unsigned n, uint64_t *a)
{
	uint32_t code = gf_call_real(n, a);

	if (gf_info[n].special == GF_CAPTURE_BEGIN) {
		if (code == 0) {
			gf_add(&gf_capturing, 1);
			gf_store(&capture_began, gf_coarse());
		}
	} else if ((code == 0 || (code >= 900 && code <= 908)) && gf_peek(&gf_capturing)) {
		gf_add(&gf_capturing, (uint32_t)-1); /* an invalidated capture ends too, with 9xx */
	}
	return code;
}

/* A stream may be destroyed in the middle of a capture: after a minute nothing waits for it any more. */
int gf_captures(void) { return gf_peek(&gf_capturing) && gf_coarse() - gf_peek(&capture_began) < 60000000000u; }

/* ---- devices ---- */

static int visible(const struct gf_state *s, int real)
{
	int below = 0;

	for (int i = 0; i < real && i < 64; i++)
		below += !(s->hide >> i & 1);
	return below;
}

static int hidden(const struct gf_state *s, int real) { return real >= 0 && real < 64 && (s->hide >> real & 1); }

/* Whether the calling thread's current device is one that the fault is for. */
int gf_device_matches(const struct gf_state *s)
{
	uint32_t (*device)(int *) = 0;
	int d = 0;

	if (!s->devices)
		return 1;
	device = (uint32_t (*)(int *))gf_driver_function(GF_FILE_IS_RUNTIME ? "cudaGetDevice" : "cuCtxGetDevice");
	if (!device || device(&d))
		return 0;
	/* Numbers as the process counts without the fault, so hidden devices keep theirs. */
	return d >= 0 && d < 64 && (s->devices >> d & 1);
}

/* Whether the calling thread has a current context, on such a device. */
int gf_context_matches(const struct gf_state *s)
{
	uint32_t (*device)(int *) = GF_FILE_IS_RUNTIME ? 0 : (uint32_t (*)(int *))gf_driver_function("cuCtxGetDevice");
	int d = 0;

	return (!device || device(&d) == 0) && gf_device_matches(s);
}

static int count(const struct gf_state *s)
{
	uint32_t (*real)(int *) = (uint32_t (*)(int *))gf_driver_function(GF_FILE_IS_RUNTIME ? "cudaGetDeviceCount" : "cuDeviceGetCount");
	int n = 0;

	return real && real(&n) == 0 ? visible(s, n) : -1;
}

/* Tells, once, that a process has been lied to about its devices; that is no trip of the trigger. */
static void tell_hidden(const struct gf_state *s, unsigned n, uint32_t code)
{
	if (!gf_peek(&gf_trip_count))
		gf_tripped(s, GF_BY_LIMIT, gf_hook_name(n), code ? "CUDA error" : "hidden devices", 0, code);
}

/* Enumeration with hidden devices: the ones behind move up. */
int gf_enumerate(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint64_t b[6] = { a[0], a[1], a[2], a[3], a[4], a[5] };
	int at;

	if (!s->hide)
		return 0;
	switch (gf_info[n].special) {
	case GF_COUNT:
	case GF_RT_COUNT:
		*code = gf_call_real(n, a);
		if (*code == 0 && a[0]) {
			at = visible(s, *(int *)a[0]);
			if (at < *(int *)a[0])
				tell_hidden(s, n, 0);
			*(int *)a[0] = at;
		}
		if (gf_info[n].special == GF_RT_COUNT && *code == 0 && a[0] && *(int *)a[0] == 0)
			*code = 100;
		return 1;
	case GF_DEVICE_GET:
	case GF_RT_SET:
		at = (int)a[gf_info[n].special == GF_DEVICE_GET];
		if (at < 0 || (at = gf_unhide(s->hide, at)) < 0) {
			*code = 101;
			return 1;
		}
		b[gf_info[n].special == GF_DEVICE_GET] = (uint64_t)at;
		*code = gf_call_real(n, b);
		return 1;
	case GF_RT_GET:
		*code = gf_call_real(n, a);
		if (*code == 0 && a[0])
			*(int *)a[0] = visible(s, *(int *)a[0]);
		return 1;
	case GF_BY_PCI: {
		int device = -1;

		b[0] = a[0] ? (uint64_t)&device : 0;
		*code = gf_call_real(n, b);
		if (*code == 0 && hidden(s, device))
			*code = 101;
		else if (*code == 0 && a[0])
			*(int *)a[0] = device;
		return 1;
	}
	}
	return 0;
}

/* ---- initialisation ---- */

void gf_init_forked(void)
{
	gf_initialised = 0;
	gf_capturing = 0;
}

/* A process that has not initialised yet is new: it fails if the fault strikes at once, or has struck in this pod. */
int gf_init_fails(const struct gf_state *s, unsigned n, uint32_t *code)
{
	if (gf_peek(&gf_initialised))
		return 0;
	if (s && s->error_init && gf_init_condition(s)) {
		if ((s->latency_us || s->jitter_us) && (gf_info[n].classes & s->latency_classes))
			gf_delay(s, 0); /* slow first: a GSP that times out */
		gf_tripped(s, GF_BY_INIT, gf_hook_name(n), "CUDA error", 0, s->error_init);
		*code = s->error_init;
		return 1;
	}
	gf_poke(&gf_initialised, GF_FILE_IS_RUNTIME);
	return 0;
}

uint32_t gf_init_call(const struct gf_state *s, unsigned n, uint64_t *a, struct gf_thread *t)
{
	uint32_t code;

	if (gf_init_fails(s, n, &code) || (s && gf_armed(n, a, t, &code)))
		return code;
	code = gf_call_real(n, a);
	if (code == 0 && s && s->hide && count(s) == 0) {
		tell_hidden(s, n, 100);
		return 100; /* CUDA_ERROR_NO_DEVICE: what a real driver says at cuInit when it has none */
	}
	if (code == 0)
		gf_store(&gf_initialised, 1);
	return code;
}

/* ---- the runtime's last error ---- */

/* cudaGetLastError and cudaPeekAtLastError know of injected errors too; a poison never goes away. */
uint32_t gf_last_error(unsigned n, struct gf_thread *t, uint32_t code)
{
	if (gf_info[n].special != GF_RT_LAST && gf_info[n].special != GF_RT_PEEK)
		return code ? t->last_error = code : 0;
	code = gf_peek(&gf_poison);
	code = code ? code : t->last_error;
	if (gf_info[n].special == GF_RT_LAST)
		t->last_error = 0;
	return code;
}

/* ---- who needs gf_enter at every call ---- */

int gf_special_needed(const struct gf_state *s, unsigned n)
{
	switch (gf_info[n].special) {
	case GF_CREATE_1: case GF_CREATE_2: case GF_CREATE_3: case GF_CREATE_4:
		return s->nvml_error != 0;
	case GF_COUNT: case GF_DEVICE_GET: case GF_BY_PCI: case GF_RT_COUNT: case GF_RT_SET: case GF_RT_GET:
		return s->hide != 0;
	case GF_MEM_TOTAL: case GF_MEM_INFO: case GF_MEM_SIZE: case GF_MEM_PITCH: case GF_MEM_MANAGED: case GF_MEM_POOL: case GF_MEM_CREATE:
	case GF_MEM_ARRAY: case GF_MEM_ARRAY3D:
		return s->mem_limit != 0;
	case GF_COPY_ANY: case GF_COPY_ANY_ASYNC: case GF_COPY_D2H: case GF_COPY_D2H_ASYNC: case GF_RT_COPY:
		return s->corrupt != 0;
	case GF_RT_LAST: case GF_RT_PEEK:
		return 1;
	}
	return 0;
}

int gf_special(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	if (!gf_special_needed(s, n))
		return 0;
	if (gf_info[n].special == GF_RT_LAST || gf_info[n].special == GF_RT_PEEK)
		return gf_peek(&gf_poison) || gf_thread.last_error;
	return gf_enumerate(s, n, a, code) || gf_memory(s, n, a, code) || gf_copy(s, n, a, code);
}
