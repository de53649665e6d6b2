/*
 * XID events of NVML. An event is delivered to the sets that its device was registered with before the fault, so registrations are recorded even if
 * no fault is armed. A wait consists of short waits, between which the shim checks the state: a program in a long wait gets the event in time.
 */
#include "shim.h"

enum { TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN_ERROR = 999, XID = 8 }; /* nvmlReturn_t; nvmlEventTypeXidCriticalError */
enum { SETS = 64, PIECE = 100 };        /* PIECE: ms */
/*
 * devices, as bits of their NVML indices: those that the set holds; xid: of these, those with XID events; pending: those with one that was not taken
 * yet; prompt: the next wait fails at once.
 */
static struct set { uint64_t handle, devices, xid, pending; int32_t prompt; } sets[SETS];
static uint64_t occurred;               /* generation whose event has happened */

static struct set *find(uint64_t handle)
{
	for (unsigned i = 0; handle && i < SETS; i++)
		if (gf_peek(&sets[i].handle) == handle)
			return &sets[i];
	return 0;
}

static struct set *find_or_add(uint64_t handle)
{
	struct set *set = find(handle);

	for (unsigned i = 0; handle && !set && i < SETS; i++)
		if (gf_cas64(&sets[i].handle, 0, handle))
			set = &sets[i];
	return set;
}

/* nvmlDeviceRegisterEvents(device, types, set) */
uint32_t gf_nvml_register(unsigned n, uint64_t *a)
{
	uint32_t code = gf_call_real(n, a), index;
	struct set *set;

	if (code == 0 && gf_nvml_index(a[0], &index) && index < 64 && (set = find_or_add(a[2]))) {
		__atomic_fetch_or(&set->devices, (uint64_t)1 << index, __ATOMIC_ACQ_REL);
		if (a[1] & XID)
			__atomic_fetch_or(&set->xid, (uint64_t)1 << index, __ATOMIC_ACQ_REL);
	}
	return code;
}

/* nvmlEventSetFree(set): a later set may have the same address. */
uint32_t gf_nvml_free(unsigned n, uint64_t *a)
{
	struct set *set = find(a[0]);

	if (set) {
		gf_store(&set->devices, 0);
		gf_store(&set->xid, 0);
		gf_store(&set->pending, 0);
		gf_store(&set->prompt, 0);
		gf_store(&set->handle, 0);
	}
	return gf_call_real(n, a);
}

/* At a look, while the gate is open: the event or the loss happens, once for each generation, for the sets that there are now. */
void gf_nvml_event(const struct gf_state *s)
{
	uint64_t before = gf_peek(&occurred);

	if ((!s->nvml_xid && !s->nvml_error) || before == s->generation || !gf_init_condition(s) || !gf_cas64(&occurred, before, s->generation))
		return;
	for (unsigned i = 0; i < SETS; i++)
		for (uint32_t d = 0; d < 64; d++)
			if ((gf_peek(&sets[i].devices) >> d & 1) && gf_nvml_struck(s, d)) {
				if (s->nvml_xid && (gf_peek(&sets[i].xid) >> d & 1))
					__atomic_fetch_or(&sets[i].pending, (uint64_t)1 << d, __ATOMIC_ACQ_REL);
				gf_store(&sets[i].prompt, 1);
			}
}

/* Returns an event of the set, if one is pending. nvmlEventData_t: device, eventType, eventData, and in _v2 the instance IDs. */
static int give(const struct gf_state *s, unsigned n, uint64_t *a)
{
	uint32_t (*by_index)(uint32_t, uint64_t *) = (uint32_t (*)(uint32_t, uint64_t *))gf_nvml_function("nvmlDeviceGetHandleByIndex_v2");
	struct set *set = find(a[0]);
	uint64_t *data = (uint64_t *)a[1], pending = set ? gf_load(&set->pending) : 0, device = 0;
	uint32_t index = 0;

	if (!pending || !data || !by_index)
		return 0;
	while (!(pending >> index & 1))
		index++;
	if (by_index(index, &device) || !gf_cas64(&set->pending, pending, pending & ~((uint64_t)1 << index)))
		return 0;
	data[0] = device;
	data[1] = XID;
	data[2] = s->nvml_xid;
	if (gf_hook_name(n)[sizeof "nvmlEventSetWait" - 1]) /* _v2 */
		data[3] = ~(uint64_t)0; /* no instance */
	gf_tripped(s, GF_BY_EVENT, gf_hook_name(n), "XID", 0, s->nvml_xid);
	return 1;
}

/* Returns whether a wait fails: if the set has a lost device. NVML documents no other error of a device for waits. */
static int fails(const struct gf_state *s, uint64_t handle)
{
	const struct set *set = find(handle);

	if ((s->nvml_error != GPU_IS_LOST && s->nvml_error != UNKNOWN_ERROR) || !gf_init_condition(s))
		return 0;
	for (uint32_t d = 0; set && d < 64; d++)
		if ((gf_peek(&set->devices) >> d & 1) && gf_nvml_struck(s, d))
			return 1;
	return 0;
}

/*
 * nvmlEventSetWait(set, data, ms). If the device is lost during a wait, the wait fails at once. Each later wait fails only after its timeout: device
 * plugins wait again without a pause, and would flood their log.
 */
uint32_t gf_nvml_wait(unsigned n, uint64_t *a)
{
	uint64_t end = gf_now() + (uint64_t)(uint32_t)a[2] * 1000000;

	for (;;) {
		uint64_t before = gf_now();
		uint64_t left = before < end ? (end - before + 999999) / 1000000 : 0, piece = left < PIECE ? left : PIECE;
		uint64_t b[6] = { a[0], a[1], piece };
		const struct gf_state *s;
		uint32_t code;

		gf_look_now();
		gf_look(gf_coarse());
		s = gf_off() ? 0 : gf_load(&gf_state);
		if (s && give(s, n, a))
			return 0;
		if (s && fails(s, a[0])) {
			struct set *set = find(a[0]);

			if (!left || (set && gf_swap(&set->prompt, 0))) {
				gf_tripped(s, GF_BY_NVML_CALL, gf_hook_name(n), "NVML error", 0, s->nvml_error);
				return s->nvml_error;
			}
			gf_wait(piece * 1000);
			continue;
		}
		code = gf_call_real(n, b);
		/* If the library returns early, waiting again would be a busy loop. */
		if (code != TIMEOUT || piece == left || gf_now() - before < piece * 500000)
			return code;
	}
}

void gf_nvml_forked(void)
{
	for (unsigned i = 0; i < SETS; i++)
		sets[i] = (struct set){ .handle = 0 };
	occurred = 0;
}
