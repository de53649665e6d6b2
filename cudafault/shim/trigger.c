/*
 * Counting and tripping. Numbers of counted calls are leased to threads in blocks, so that threads do not share a cache line for each call; within a
 * lease the budget lets exactly those calls pass that do not trip. In a program with one thread every call has its exact number.
 */
#include "shim.h"

uint64_t gf_calls, gf_trip_count, gf_copies;
static uint64_t strikes;               /* trips that `max` counts */
static uint32_t told;
uint32_t gf_poison, gf_pending, gf_owed, gf_hanging, gf_capturing;
int64_t gf_first_call;

/* The gate closed, or another generation: everything begins anew. */
void gf_heal(void)
{
	gf_store(&gf_poison, 0);
	gf_store(&gf_pending, 0);
	gf_store(&gf_owed, 0);
	gf_store(&gf_hanging, 0);
	gf_store(&gf_calls, 0);
	gf_store(&gf_trip_count, 0);
	gf_store(&strikes, 0);
	gf_store(&told, 0);
	gf_store(&gf_copies, 0);
	gf_add(&gf_epoch, 1);
}

uint32_t gf_driver_version(void)
{
	uint32_t (*version)(int *) = (uint32_t (*)(int *))gf_driver_function(GF_FILE_IS_RUNTIME ? "cudaDriverGetVersion" : "cuDriverGetVersion");
	int v = 0;

	return version && version(&v) == 0 ? (uint32_t)v : 0;
}

/* The tripped call's error: one that this driver knows. */
uint32_t gf_error(const struct gf_state *s)
{
	return s->error && s->error_fallback && gf_driver_version() < s->error_min_driver ? s->error_fallback : s->error;
}

/* ms until trips are allowed by time; 0 = now; -1 = never again. */
int64_t gf_closed(const struct gf_state *s)
{
	int64_t now = gf_unix_ms(), since = now - s->armed_at, start = s->armed_at > gf_first_call ? s->armed_at : gf_first_call;
	int64_t wait = start + (int64_t)s->after_ms - now, window = (int64_t)s->window_from_ms - since;

	if (s->expires && now >= s->expires)
		return -1;
	if ((s->max && gf_peek(&strikes) >= s->max) || (s->window_to_ms && since >= (int64_t)s->window_to_ms))
		return -1;
	if (!s->after_ms && !s->window_from_ms)
		return 0;
	wait = wait > window ? wait : window;
	return wait > 0 ? wait : 0;
}

/* Takes the call's number, and a budget for the calls after it that surely do not trip. */
static uint64_t number(const struct gf_state *s, struct gf_thread *t, int64_t shut)
{
	uint32_t epoch = gf_peek(&gf_epoch);
	uint64_t i;
	unsigned left;

	if (t->epoch != epoch) {
		t->epoch = epoch;
		t->granted = 0;
		t->next = t->end = 0;
	}
	if (t->granted) { /* how many of them have been made */
		int32_t unused = t->budget / GF_UNIT;

		if (t->budget >= 0 && unused <= t->granted)
			t->next += (uint64_t)(t->granted - unused);
	}
	if (t->next >= t->end) {
		t->next = gf_add(&gf_calls, t->lease);
		t->end = t->next + t->lease;
	}
	i = t->next++;
	left = (unsigned)(t->end - t->next);
	/* Shut for longer than a few ticks: nothing of this lease trips. */
	t->granted = (int32_t)(shut < 0 || shut > 50 ? left : gf_quiet(s, t->next, left));
	t->budget = t->granted * GF_UNIT;
	return i;
}

/* Whether the devices of the fault are gone, so that no context can be made on them. */
int gf_lost(const struct gf_state *s) { return s->nvml_error == 15 && s->error && gf_init_condition(s); } /* NVML_ERROR_GPU_IS_LOST */

int gf_init_condition(const struct gf_state *s) { return gf_immediate(s) || gf_run_marked(s->generation) || gf_peek(&gf_trip_count); }

/* Counts a trip and tells of the first (unless what is NULL). 0: the trigger has tripped `max` times before. */
int gf_tripped(const struct gf_state *s, enum gf_cause cause, const char *function, const char *what, uint64_t call, uint32_t code)
{
	struct gf_line l = { .n = 0 };

	if (cause == GF_BY_TRIGGER && gf_add(&strikes, 1) >= s->max && s->max)
		return 0;
	gf_add(&gf_trip_count, 1);
	if (gf_peek(&gf_status) == GF_ARMED)
		gf_poke(&gf_status, GF_TRIPPED);
	gf_run_trip(s, cause == GF_BY_EVENT ? 0 : code, function, cause == GF_BY_TRIGGER || cause == GF_BY_INIT);
	if (!what || (s->flags & GF_QUIET) || gf_swap(&told, 1))
		return 1;
	gf_say(&l, "gpu-fault: run ");
	gf_say(&l, s->run);
	gf_say(&l, ": injected ");
	gf_say(&l, what);
	if (code) {
		gf_say(&l, " ");
		gf_say_number(&l, code);
	}
	gf_say(&l, " into ");
	gf_say(&l, function);
	gf_say(&l, ", call ");
	gf_say_number(&l, call);
	gf_say(&l, ", pid ");
	gf_say_number(&l, (uint64_t)gf_sys(GF_GETPID, 0, 0, 0, 0, 0, 0));
	gf_say(&l, " (");
	gf_say(&l, gf_comm);
	gf_say(&l, ")");
	gf_say_end(&l);
	return 1;
}

static void poison(const struct gf_state *s, uint32_t code)
{
	gf_store(&gf_poison, code);
	gf_poke(&gf_status, GF_POISONED);
	gf_changed();
	gf_run_update(s->generation);
}

/* Releasing works under a poison too, but tells of it. */
static uint32_t poisoned(unsigned n, uint64_t *a, uint32_t code)
{
	if (gf_info[n].classes & GF_FREE)
		gf_call_real(n, a);
	return code;
}

/* What a tripped call suffers. 1: it returns *code. */
static int strike(const struct gf_state *s, unsigned n, uint64_t *a, uint64_t i, uint32_t *code)
{
	uint32_t c = gf_info[n].classes, e = s->function[0] || (c & s->classes) ? gf_error(s) : 0;
	int hang = (c & s->hang_classes) != 0, delay = (s->latency_us || s->jitter_us) && (c & s->latency_classes);

	if (!e && !hang && !delay)
		return 0;
	if (!gf_tripped(s, GF_BY_TRIGGER, gf_hook_name(n), hang ? "a hang" : e ? "CUDA error" : "latency", i, hang ? 0 : e))
		return 0;
	if (delay)
		gf_delay(s, i);
	if (hang) {
		gf_store(&gf_hanging, 1);
		gf_changed();
		gf_hang(s);
		return 0; /* released: the fault is over */
	}
	if (!e || gf_load(&gf_state) != s)
		return 0;
	if (s->surface && !(gf_info[n].flags & GF_BLOCKS)) {
		if (!gf_swap(&gf_pending, e))
			gf_changed();
		return 0;
	}
	if (s->flags & GF_STICKY)
		poison(s, e);
	*code = poisoned(n, a, e);
	return 1;
}

/* A call while the gate is open. 1: it returns *code; 0: it goes on. */
int gf_armed(unsigned n, uint64_t *a, struct gf_thread *t, uint32_t *code)
{
	const struct gf_state *s = gf_load(&gf_state);
	uint32_t e;
	uint64_t i;
	int64_t shut;

	if (!s)
		return 0;
	if (gf_info[n].special >= GF_CREATE_1 && gf_info[n].special <= GF_CREATE_4 && gf_lost(s)) {
		uint32_t device = (uint32_t)a[gf_info[n].special - GF_CREATE_1 + 1]; /* the upper half is undefined */

		if (!s->devices || (device < 64 && (s->devices >> device & 1))) {
			*code = gf_error(s);
			gf_tripped(s, GF_BY_INIT, gf_hook_name(n), "CUDA error", 0, *code);
			return 1;
		}
	}
	/* Contexts of other devices keep working. Without a current context, the driver returns its own error. */
	if ((e = gf_peek(&gf_poison)) && gf_touches(n) && gf_context_matches(s)) {
		*code = poisoned(n, a, e);
		return 1;
	}
	if ((gf_info[n].flags & GF_BLOCKS) && gf_peek(&gf_pending) && !gf_captures() && gf_context_matches(s) && (e = gf_swap(&gf_pending, 0))) {
		if (s->flags & GF_STICKY)
			poison(s, e);
		else
			gf_changed();
		*code = e;
		return 1;
	}
	if (gf_peek(&gf_hanging) && (gf_info[n].classes & s->hang_classes) && gf_device_matches(s)) {
		gf_hang(s);
		return 0;
	}
	if (!gf_table[n].counted)
		return 0;
	shut = gf_closed(s);
	i = number(s, t, shut);
	if (gf_peek(&gf_pending)) /* the error is on its way already */
		return 0;
	if (shut || !(gf_trips(s, i) || gf_peek(&gf_owed)))
		return 0;
	if (gf_captures()) { /* an error now would only spoil the capture: the first call after it trips instead */
		if (!gf_swap(&gf_owed, 1))
			gf_changed();
		return 0;
	}
	if (!gf_device_matches(s))
		return 0;
	if (gf_peek(&gf_owed) && gf_swap(&gf_owed, 0))
		gf_changed();
	return strike(s, n, a, i, code);
}
