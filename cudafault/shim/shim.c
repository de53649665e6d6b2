/* Where a call comes when its thread's budget is used up: the entry into everything else. */
#include "shim.h"

#define INIT GF_INIT
#define DEVICE GF_DEVICE
#define CONTEXT GF_CONTEXT
#define MODULE GF_MODULE
#define ALLOC GF_ALLOC
#define FREE GF_FREE
#define COPY GF_COPY
#define SET GF_SET
#define LAUNCH GF_LAUNCH
#define SYNC GF_SYNC
#define QUERY GF_QUERY
#define EVENT GF_EVENT
#define STREAM GF_STREAM
#define PEER GF_PEER
#define IPC GF_IPC
#define CAPTURE GF_CAPTURE
enum { BLOCKS = GF_BLOCKS, TOUCHES = GF_TOUCHES, ALWAYS = GF_ALWAYS };
#define HOOK(name, classes, flags, special) [GF_N_##name] = { classes, flags, GF_##special },
const struct gf_info gf_info[GF_HOOK_COUNT] = {
#include GF_HOOKS
};

static void forked(void);

/* Once per process: be told of forks. */
static void prepare(void)
{
	static int done;
	int (*glibc)(void (*)(void), void (*)(void), void (*)(void), void *);
	int (*musl)(void (*)(void), void (*)(void), void (*)(void));

	if (gf_swap(&done, 1))
		return;
	if ((glibc = (int (*)(void (*)(void), void (*)(void), void (*)(void), void *))gf_elf_libc("__register_atfork")))
		glibc(0, 0, forked, 0);
	else if ((musl = (int (*)(void (*)(void), void (*)(void), void (*)(void)))gf_elf_libc("pthread_atfork")))
		musl(0, 0, forked);
}

/* The child counts for itself, has a slot of its own, and none of the parent's threads. */
static void forked(void)
{
	gf_identity_forked();
	gf_run_forked();
	gf_look_forked();
	gf_heal();
	gf_capturing = 0;
	gf_first_call = 0;
	gf_init_forked();
	gf_nvml_forked();
	gf_thread = (struct gf_thread){ .budget = -1 };
}

/*
 * The budget while nothing is armed: doubled as long as the thread comes back within one tick of the coarse clock, so a hot loop looks at the clock
 * rarely and a slow one at every call. Stays below GF_UNIT: a budget left over when the gate opens is worth no counted call. A call that comes here
 * whatever the budget is says nothing about the thread's pace: after hundreds of look-ups at its start, a slow thread would notice an arming only after
 * a thousand calls.
 */
static void idle_budget(struct gf_thread *t, unsigned n, uint64_t now)
{
	if (t->tick == now && t->lease && !t->granted && t->budget >= 0 && gf_peek(&gf_table[n].weight) == GF_LOOK)
		return;
	t->lease = t->tick == now && t->lease ? t->lease < GF_UNIT / 2 ? t->lease * 2 : GF_UNIT / 2 : 1;
	t->tick = now;
	t->granted = 0;
	t->budget = t->lease * 2 - 1;
}

/* The same for leases of numbers: 1 to 64. */
static void lease(struct gf_thread *t, uint64_t now)
{
	t->lease = t->tick == now && t->lease ? t->lease < 64 ? t->lease * 2 : 64 : 1;
	t->tick = now;
}

static int enter(unsigned n, uint64_t *a, struct gf_thread *t, uint32_t *code)
{
	const struct gf_info *info = &gf_info[n];
	uint64_t now = gf_coarse();
	const struct gf_state *s;

	/* A program that starts sees what is true now, not what was true up to 250 ms ago: initialisation is rare. */
	if ((info->special == GF_INIT_CALL && !gf_peek(&gf_initialised)) || info->special == GF_NV_INIT) {
		/* Variables that are set later are meant for child processes, as launchers do. */
		if (!gf_peek(&gf_initialised))
			gf_identify_again();
		gf_look_now();
	}
	gf_look(now);
	if (!gf_table[n].handed)
		gf_path(GF_BY_LINK);
	if (gf_layer(n) == GF_NVML)
		gf_path(GF_BY_NVML);
	else if (GF_FILE_IS_RUNTIME)
		gf_path(GF_BY_RUNTIME);
	s = gf_off() ? 0 : gf_load(&gf_state);
	if (!s)
		idle_budget(t, n, now);
	else if (gf_table[n].counted)
		lease(t, now);
	else if (t->budget < 0 || t->budget > 64 * GF_UNIT)
		t->budget = 0;
	if (info->special == GF_ROUTE) {
		*code = gf_route_call(n, a);
		return 1;
	}
	if (info->special == GF_INIT_CALL) {
		*code = gf_init_call(s, n, a, t);
		return 1;
	}
	if (gf_layer(n) == GF_NVML)
		return gf_nvml(s, n, a, code);
	if (GF_FILE_IS_RUNTIME && info->classes && gf_init_fails(s, n, code))
		return 1;
	if (s && gf_armed(n, a, t, code))
		return 1;
	if (info->special == GF_CAPTURE_BEGIN || info->special == GF_CAPTURE_END) {
		*code = gf_capture(n, a);
		return 1;
	}
	return s && gf_special(s, n, a, code);
}

struct gf_go gf_enter(unsigned row, uint64_t *a);
struct gf_go gf_enter(unsigned row, uint64_t *a)
{
	unsigned n = row % GF_HOOK_COUNT;
	struct gf_thread *t = &gf_thread;
	struct gf_go go = { 0, 0 };
	uint32_t code = 0;
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
	uint16_t outer;
	int handled;

	/* The frame of a running call is above this one. Otherwise, a signal handler has jumped out of the call. */
	if (t->inside && frame >= t->frame)
		t->inside = 0;
	if (t->inside && (row != n || gf_real(n))) {
		go.target = gf_table[row].real;
		return go;
	}
	outer = t->inside;
	if (!outer)
		t->frame = frame;
	t->inside = outer + 1;
	gf_tables();
	if (!gf_first_call) {
		prepare();
		gf_first_call = gf_unix_ms();
	}
	if (row == n && (!gf_ready(gf_layer(n)) || !gf_real(n))) {
		t->inside = outer;
		/* No driver: not initialised. A driver without this function: not found. */
		go.code = gf_layer(n) == GF_NVML ? gf_ready(GF_NVML) ? 13 : 1 : gf_ready(GF_DRIVER) ? 500 : 3;
		return go;
	}
	t->copy = row - n;
	handled = enter(n, a, t, &code);
	if (GF_FILE_IS_RUNTIME && handled)
		code = gf_last_error(n, t, code);
	t->inside = outer;
	t->copy = 0;
	if (handled)
		go.code = code;
	else
		go.target = gf_table[row].real;
	return go;
}

/* gcc may call these; they must not come from libc. */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

void *memset(void *to, int c, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = (char)c;
	return to;
}
