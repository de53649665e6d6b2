/* Silent data corruption (corrupt): single flipped bits in device-to-host copies, and loud about each. */
#include "shim.h"

struct flip { uint8_t *at; uint64_t size, byte, call, generation; uint32_t bit; const char *name; };
static uint32_t told;

/* Counts and makes a flip. Returns 0 if the trigger has already tripped `max` times, or if another fault is armed. */
static int flip(const struct flip *f)
{
	struct gf_line l = { .n = 0 };
	const struct gf_state *s = gf_load(&gf_state);

	if (!s || s->generation != f->generation || !gf_tripped(s, GF_BY_TRIGGER, f->name, 0, f->call, 0))
		return 0;
	f->at[f->byte] ^= (uint8_t)(1 << f->bit);
	if ((s->flags & GF_QUIET) || gf_add(&told, 1) >= 10)
		return 1;
	gf_say(&l, "gpu-fault: run ");
	gf_say(&l, s->run);
	gf_say(&l, ": flipped bit ");
	gf_say_number(&l, f->bit);
	gf_say(&l, " of byte ");
	gf_say_number(&l, f->byte);
	gf_say(&l, " in a device-to-host copy of ");
	gf_say_number(&l, f->size);
	gf_say(&l, " bytes");
	gf_say_end(&l);
	return 1;
}

/* ---- flips that wait for an asynchronous copy to end ---- */

/*
 * The driver does not call host functions of a failed stream, so a place may stay in use. A later fault reuses it. The ticket identifies the flip if
 * the driver calls the function after all.
 */
enum { PLACES = 256, TAKEN = 1 };
static struct place { struct flip flip; uint64_t ticket; } waiting[PLACES];
static uint64_t tickets;

/* Called by the driver, in stream order, behind the copy. */
static void flip_later(void *arg)
{
	uint64_t ticket = (uintptr_t)arg;
	struct flip f = waiting[ticket % PLACES].flip;

	if (gf_cas64(&waiting[ticket % PLACES].ticket, ticket, 0))
		flip(&f);
}

/* Queues the flip in the stream. Returns 0 if the stream does not accept host functions, or if too many flips are queued. */
static int queue(const struct flip *f, uint64_t stream, int ptsz)
{
	uint32_t (*host)(uint64_t, void (*)(void *), void *) =
		(uint32_t (*)(uint64_t, void (*)(void *), void *))gf_driver_function(ptsz ? "cuLaunchHostFunc_ptsz" : "cuLaunchHostFunc");
	uint64_t ticket = gf_add(&tickets, 1) + PLACES; /* never 0 or TAKEN */
	struct place *p = &waiting[ticket % PLACES];
	uint64_t old = gf_load(&p->ticket);

	if (!host || old == TAKEN || (old && p->flip.generation == f->generation) || !gf_cas64(&p->ticket, old, TAKEN))
		return 0;
	p->flip = *f;
	gf_store(&p->ticket, ticket);
	if (host(stream, flip_later, (void *)(uintptr_t)ticket) == 0)
		return 1;
	gf_cas64(&p->ticket, ticket, 0);
	return 0;
}

static int wait_for(uint64_t stream, int ptsz)
{
	uint32_t (*synchronize)(uint64_t) =
		(uint32_t (*)(uint64_t))gf_driver_function(ptsz ? "cuStreamSynchronize_ptsz" : "cuStreamSynchronize");

	return synchronize && synchronize(stream) == 0;
}

static int stream_captures(uint64_t stream, int ptsz)
{
	uint32_t (*capturing)(uint64_t, int *) =
		(uint32_t (*)(uint64_t, int *))gf_driver_function(ptsz ? "cuStreamIsCapturing_ptsz" : "cuStreamIsCapturing");
	int status = 0;

	return capturing && (capturing(stream, &status) || status);
}

/* ---- copies ---- */

enum memory { UNKNOWN, HOST, DEVICE };

/* What the driver knows of an address. UNKNOWN is pageable host memory. */
static enum memory memory_of(uint64_t address)
{
	uint32_t (*attribute)(void *, int, uint64_t) = (uint32_t (*)(void *, int, uint64_t))gf_driver_function("cuPointerGetAttribute");
	uint32_t type = 0;

	return !attribute || attribute(&type, 2, address) || type > 2 ? UNKNOWN : (enum memory)type;
}

int gf_copy(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint8_t what = gf_info[n].special;
	int later = what == GF_COPY_ANY_ASYNC || what == GF_COPY_D2H_ASYNC;
	struct flip f = { .at = (uint8_t *)a[0], .size = a[2], .generation = s->generation };
	int ptsz;
	uint64_t r;

	if ((what < GF_COPY_ANY || what > GF_COPY_D2H_ASYNC) && what != GF_RT_COPY)
		return 0;
	if (!s->corrupt || !a[0] || !a[2] || (what == GF_RT_COPY && a[3] != 2))
		return 0;
	if ((what == GF_COPY_ANY || what == GF_COPY_ANY_ASYNC) && (memory_of(a[1]) != DEVICE || memory_of(a[0]) == DEVICE))
		return 0;
	f.name = gf_hook_name(n);
	f.call = gf_add(&gf_copies, 1);
	r = gf_mix(s->seed ^ 0x636f7272757074, f.call); /* numbers of its own: "corrupt" */
	if (!gf_trips(s, f.call) || gf_closed(s) || r >> 32 >= s->corrupt || !gf_device_matches(s))
		return 0;
	r = gf_mix(r, f.call);
	f.byte = (r >> 8) % f.size;
	f.bit = r & 7;
	*code = gf_call_real(n, a);
	if (*code)
		return 1;
	/* A copy into pageable memory is complete when the call returns. After that, the program may reuse or unmap the memory. */
	if (!later || memory_of(a[0]) == UNKNOWN) {
		flip(&f);
		return 1;
	}
	ptsz = f.name[gf_length(f.name) - 1] == 'z';
	if (!gf_captures() && !stream_captures(a[3], ptsz) && !queue(&f, a[3], ptsz) && wait_for(a[3], ptsz))
		flip(&f);
	return 1;
}
