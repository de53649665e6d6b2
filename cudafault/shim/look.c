/* Looking at the state file, four times a second at most, by one thread of the process; the gate; and from both the weights of all hooks. */
#include "shim.h"

const struct gf_state *gf_state;
uint32_t gf_epoch, gf_status = GF_NO_STATE;

static struct gf_state kept[4];         /* the last good files: who sleeps may still hold an older one */
static unsigned newest;
static int have;
static int32_t begun;                   /* the first look has ended */
static uint64_t looking;                /* since when a thread looks; 0: none does */
static uint64_t looked, grace;          /* coarse ns; until grace every call comes to gf_enter */
static uint64_t expired;                /* generation that has expired: over for good, also if the clock is set back */

/* ---- the gate ---- */

static uint32_t status(const struct gf_state *s)
{
	if (s->armed_at == 0)
		return GF_PASSING;
	if (expired == s->generation || (s->expires && gf_unix_ms() >= s->expires)) {
		expired = s->generation;
		return GF_EXPIRED;
	}
	if (!gf_on_node(s))
		return GF_OTHER_NODE;
	return gf_in_process(s) ? GF_ARMED : GF_OTHER_PROCESS;
}

/* ---- weights ---- */

static int counted(const struct gf_state *s, unsigned n)
{
	uint32_t c = gf_info[n].classes;

	if (gf_layer(n) == GF_NVML || !c)
		return 0;
	return s->function[0] ? gf_function(s->function, gf_hook_name(n)) : (c & (s->classes | s->latency_classes | s->hang_classes)) != 0;
}

/* Poisoned contexts fail these: all that touches a context, but not the enumeration of devices. */
int gf_touches(unsigned n)
{
	return (gf_info[n].flags & GF_TOUCHES) || ((gf_info[n].classes & ~(GF_INIT | GF_DEVICE | GF_CONTEXT)) && !(gf_info[n].classes & GF_DEVICE));
}

static int32_t weight(const struct gf_state *s, unsigned n, int counting)
{
	const struct gf_info *i = &gf_info[n];
	/* Who waits or asks would notice an arming too late after a burst of launches, so it takes more from the budget. */
	int32_t idle = i->classes & (GF_SYNC | GF_QUERY) ? 256 : 4;

	if (gf_off())
		return gf_real(n) ? 0 : GF_LOOK;
	if (!gf_real(n) || (i->flags & GF_ALWAYS) || gf_layer(n) == GF_NVML || grace)
		return GF_LOOK;
	if (!s)
		return idle;
	if (gf_special_needed(s, n))
		return GF_LOOK;
	if (GF_FILE_IS_RUNTIME && s->error_init && !gf_initialised) /* there is no cuInit to fail: every function does */
		return GF_LOOK;
	if ((gf_poison && gf_touches(n)) || (gf_pending && (i->flags & GF_BLOCKS)) || (gf_hanging && (i->classes & s->hang_classes)))
		return GF_LOOK;
	if (gf_table[n].counted)
		return gf_owed ? GF_LOOK : GF_UNIT;
	return counting ? 0 : idle; /* a budget of counted calls is not used up by others */
}

static uint32_t version;

static void weights(void)
{
	uint32_t v;

	/* The last thread that writes weights has seen the last change: whoever changes something raises the version first. */
	do {
		const struct gf_state *s = gf_load(&gf_state);
		int counting = 0;

		v = gf_load(&version);
		if (s)
			for (unsigned n = 0; n < GF_HOOK_COUNT; n++) {
				uint8_t c = (uint8_t)counted(s, n);

				gf_poke(&gf_table[n].counted, c);
				counting |= c;
			}
		for (unsigned n = 0; n < GF_HOOK_COUNT; n++) {
			int32_t w = weight(s, n, counting);

			for (unsigned row = n; row < 2 * GF_HOOK_COUNT; row += GF_HOOK_COUNT)
				if (gf_peek(&gf_table[row].weight) != w)
					gf_store(&gf_table[row].weight, w);
		}
	} while (gf_load(&version) != v);
}

/* Something that the weights depend on has changed. */
void gf_changed(void)
{
	gf_add(&version, 1);
	weights();
}

/* ---- looking ---- */

/*
 * The file has been gone for two seconds (for a moment it may be the kubelet, which is just replacing it): its ConfigMap was deleted, so the fault is
 * over. 1: that is new. Should the same file come back it counts as a new one.
 */
static int gone(int is, uint64_t now)
{
	static uint64_t since;
	unsigned next = (newest + 1) % 4;

	since = !is ? 0 : since ? since : now;
	if (!since || now - since < 2000000000 || !have || !kept[newest].armed_at)
		return 0;
	kept[next] = kept[newest];
	kept[next].armed_at = 0;
	kept[next].checksum = 0;
	newest = next;
	return 1;
}

/* Reads the file; 1 if it is good and differs from the last good one, or is gone. */
static int take(uint64_t now)
{
	static struct { struct gf_state s; char more; } in;
	long n = gf_read_file(gf_state_path(), &in, sizeof in.s + 1);
	unsigned next = (newest + 1) % 4;

	if (gone(n == -GF_ENOENT, now))
		return 1;
	if (n < 0 || !gf_valid(&in.s, (size_t)n))
		return 0;
	if (have && in.s.checksum == kept[newest].checksum && in.s.generation == kept[newest].generation)
		return 0;
	kept[next] = in.s;
	newest = next;
	have = 1;
	return 1;
}

static void judge(int fresh, uint64_t now, int first)
{
	static uint64_t generation;
	const struct gf_state *s = have ? &kept[newest] : 0;
	uint32_t st = s ? status(s) : GF_NO_STATE;
	const struct gf_state *open = st == GF_ARMED && (GF_FILE_IS_RUNTIME || !(s->flags & GF_RUNTIME)) ? s : 0;

	if (!s || s->generation != generation || !open) {
		if (gf_peek(&gf_state) || (s && s->generation != generation))
			gf_heal();
		generation = s ? s->generation : 0;
	}
	if (fresh || open != gf_peek(&gf_state)) {
		gf_store(&gf_state, open);
		gf_add(&gf_epoch, 1);
		grace = first ? 0 : now + 1200000000;
		gf_changed();
	} else if (grace && now >= grace) {
		grace = 0;
		gf_changed();
	}
	if (open)
		gf_nvml_event(open);
	gf_poke(&gf_status, open ? gf_poison ? GF_POISONED : gf_trip_count ? GF_TRIPPED : GF_ARMED : st == GF_ARMED ? GF_PASSING : st);
	gf_run_look(s ? s->generation : 0);
}

/* Called on every way through gf_enter, with the coarse clock. */
void gf_look(uint64_t now)
{
	uint64_t last = gf_peek(&looked), since;
	const struct gf_state *s = gf_peek(&gf_state);
	int due = !last || now - last >= 250000000;

	if (gf_off() || (!due && gf_peek(&begun) && !(grace && now >= grace) && !(s && s->expires && gf_peek(&gf_poison) && gf_unix_ms() >= s->expires)))
		return;
	/* A look takes no time. After two seconds, its thread was stopped, or a signal handler has jumped out of it. */
	since = gf_load(&looking);
	if ((since && now - since < 2000000000) || !gf_cas64(&looking, since, now | 1)) {
		/* Threads that start together: none passes before the first look has ended, for 20 ms at most. */
		for (int i = 0; i < 200 && !gf_load(&begun); i++)
			gf_sleep(100);
		return;
	}
	if (due)
		gf_poke(&looked, now);
	judge(due && take(now), now, !last);
	gf_store(&begun, 1);
	gf_store(&looking, 0);
}

/* Makes the next call look. */
void gf_look_now(void)
{
	if (gf_peek(&looked))
		gf_poke(&looked, 1);
}

/* In the child of a fork: it looks again, as a process of its own. */
void gf_look_forked(void)
{
	have = 0;
	looking = 0;
	begun = 0;
	looked = grace = expired = 0;
	gf_state = 0;
	gf_status = GF_NO_STATE;
	gf_epoch++;
}
