/* Silent data corruption (corrupt): single flipped bits in device-to-host copies, and loud about each. */
#include "shim.h"

struct flip { uint8_t *at; uint64_t size, byte; uint32_t bit, used; };
static struct flip pool[256];           /* flips that wait for an asynchronous copy to end */
static uint32_t told;

static void flip(const struct flip *f)
{
	struct gf_line l = { .n = 0 };
	const struct gf_state *s = gf_load(&gf_state);

	f->at[f->byte] ^= (uint8_t)(1 << f->bit);
	if ((s && (s->flags & GF_QUIET)) || gf_add(&told, 1) >= 10)
		return;
	gf_say(&l, "gpu-fault: run ");
	gf_say(&l, s ? s->run : "?");
	gf_say(&l, ": flipped bit ");
	gf_say_number(&l, f->bit);
	gf_say(&l, " of byte ");
	gf_say_number(&l, f->byte);
	gf_say(&l, " in a device-to-host copy of ");
	gf_say_number(&l, f->size);
	gf_say(&l, " bytes");
	gf_say_end(&l);
}

/* Called by the driver, in stream order, behind the copy. */
static void flip_later(void *arg)
{
	struct flip *f = arg;

	flip(f);
	gf_store(&f->used, 0);
}

/* Whether dst is host memory and src device memory, as the driver knows them (memory type 1 host, 2 device). What it does not know is host memory. */
static int to_host(uint64_t dst, uint64_t src)
{
	uint32_t (*attribute)(void *, int, uint64_t) = (uint32_t (*)(void *, int, uint64_t))gf_driver_function("cuPointerGetAttribute");
	uint32_t type = 0;

	if (!attribute || attribute(&type, 2, src) || type != 2)
		return 0;
	type = 0;
	return attribute(&type, 2, dst) || type == 1;
}

static int stream_captures(uint64_t stream, int ptsz)
{
	uint32_t (*capturing)(uint64_t, int *) =
		(uint32_t (*)(uint64_t, int *))gf_driver_function(ptsz ? "cuStreamIsCapturing_ptsz" : "cuStreamIsCapturing");
	int status = 0;

	return capturing && (capturing(stream, &status) || status);
}

int gf_copy(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code)
{
	uint8_t what = gf_info[n].special;
	int later = what == GF_COPY_ANY_ASYNC || what == GF_COPY_D2H_ASYNC;
	const char *name = gf_hook_name(n);
	uint64_t i, r;
	struct flip f = { (uint8_t *)a[0], a[2], 0, 0, 1 };

	if ((what < GF_COPY_ANY || what > GF_COPY_D2H_ASYNC) && what != GF_RT_COPY)
		return 0;
	if (!s->corrupt || !a[0] || !a[2] || (what == GF_RT_COPY && a[3] != 2))
		return 0;
	if ((what == GF_COPY_ANY || what == GF_COPY_ANY_ASYNC) && !to_host(a[0], a[1]))
		return 0;
	i = gf_add(&gf_copies, 1);
	r = gf_mix(s->seed ^ 0x636f7272757074, i); /* numbers of its own: "corrupt" */
	if (!gf_trips(s, i) || gf_closed(s) || r >> 32 >= s->corrupt || !gf_device_matches(s))
		return 0;
	r = gf_mix(r, i);
	f.byte = (r >> 8) % f.size;
	f.bit = r & 7;
	if (!later) {
		*code = gf_call(gf_table[n].real, a);
		if (*code == 0 && gf_tripped(s, GF_BY_TRIGGER, name, 0, i, 0))
			flip(&f);
		return 1;
	}
	{
		int ptsz = name[gf_length(name) - 1] == 'z';
		uint32_t (*host)(uint64_t, void (*)(void *), void *) =
			(uint32_t (*)(uint64_t, void (*)(void *), void *))gf_driver_function(ptsz ? "cuLaunchHostFunc_ptsz" : "cuLaunchHostFunc");

		*code = gf_call(gf_table[n].real, a);
		if (*code || !host || gf_captures() || stream_captures(a[3], ptsz))
			return 1;
		for (unsigned k = 0; k < sizeof pool / sizeof *pool; k++)
			if (gf_cas((int32_t *)&pool[k].used, 0, 1)) {
				pool[k] = f;
				if (!gf_tripped(s, GF_BY_TRIGGER, name, 0, i, 0) || host(a[3], flip_later, &pool[k]))
					gf_store(&pool[k].used, 0);
				break;
			}
	}
	return 1;
}
