/*
 * The processes file: a slot for this process in a file that all processes of the pod map. Proof for the client that the shim is loaded, and the
 * mark by which a new process knows that the fault has struck. Whatever fails here, the program goes on without.
 */
#include "shim.h"

struct gf_slot *gf_slot;
uint32_t gf_paths;
static struct gf_run *run;
static int64_t started;

/* The file mapped, or NULL. Its blocks are reserved first: writing to a mapped hole on a full disk would kill the program with SIGBUS. */
static struct gf_run *map(const char *path)
{
	uint64_t st[18];
	int fd = gf_open(path, GF_O_RDWR | GF_O_CREAT | GF_O_NONBLOCK);
	long at = -1, r = 0;

	if (fd < 0)
		return 0;
	if (gf_sys(GF_FSTAT, fd, (long)st, 0, 0, 0, 0) == 0) {
		if (st[GF_STAT_SIZE] < sizeof(struct gf_run)) {
			gf_sys(GF_FCHMOD, fd, 0666, 0, 0, 0, 0); /* containers of a pod may run as different users */
			r = gf_sys(GF_FTRUNCATE, fd, sizeof(struct gf_run), 0, 0, 0, 0);
		}
		if (r == 0)
			r = gf_sys(GF_FALLOCATE, fd, 0, 0, sizeof(struct gf_run), 0, 0);
		if (r == 0 || r == -GF_EOPNOTSUPP || r == -GF_ENOSYS)
			at = gf_sys(GF_MMAP, 0, sizeof(struct gf_run), 3, 1, fd, 0);
	}
	gf_close(fd);
	return at < 0 && at > -4096 ? 0 : (struct gf_run *)at;
}

static uint64_t pid_namespace(void)
{
	char link[64];
	long n = gf_sys(GF_READLINKAT, GF_AT_FDCWD, (long)"/proc/self/ns/pid", (long)link, sizeof link - 1, 0, 0);
	const char *p = link;

	link[n > 0 ? n : 0] = 0;
	while (*p && (*p < '0' || *p > '9'))
		p++;
	return (uint64_t)gf_number(&p);
}

/* A slot whose process is gone: dead in our own pid namespace, or of another one and silent for ten minutes (that container was restarted). */
static int stale(const struct gf_slot *s, uint64_t ns, int64_t now)
{
	if (s->pid_namespace == ns)
		return gf_sys(GF_KILL, s->pid, 0, 0, 0, 0, 0) == -GF_ESRCH;
	return now - s->looked > 600000;
}

static struct gf_slot *claim(int32_t pid, uint64_t ns)
{
	int64_t now = gf_unix_ms();

	for (int i = 0; i < 63; i++) /* the same process after exec */
		if (run->slot[i].pid == pid && run->slot[i].pid_namespace == ns)
			return &run->slot[i];
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < 63; i++) {
			struct gf_slot *s = &run->slot[i];
			int32_t old = gf_load(&s->pid);

			if (pass ? stale(s, ns, now) : !old)
				if (gf_cas(&s->pid, old, pid))
					return s;
		}
	return 0;
}

void gf_run_open(void)
{
	const char *path = gf_env("GPU_FAULT_RUN");
	int32_t pid = (int32_t)gf_sys(GF_GETPID, 0, 0, 0, 0, 0, 0);
	uint64_t ns = pid_namespace();
	struct gf_slot *s;

	started = gf_unix_ms();
	if (!run)
		run = map(path && *path ? path : GF_RUN_PATH);
	if (!run)
		return;
	run->version = 1;
	run->slots = 63;
	for (int i = 0; i < 8; i++)
		run->magic[i] = "GPUFRUN1"[i];
	if (!(s = claim(pid, ns)))
		return;
	s->driver = gf_driver_version();
	s->started = started;
	s->looked = s->tripped_at = 0;
	s->generation = s->calls = s->trips = 0;
	s->status = GF_NO_STATE;
	s->paths = s->hooks = s->last_error = 0;
	s->pid_namespace = ns;
	gf_text(s->name, sizeof s->name, gf_comm);
	gf_text(s->function, sizeof s->function, "");
	gf_store(&gf_slot, s);
}

/* A way that leads to us. */
void gf_path(uint32_t bit)
{
	if (gf_peek(&gf_paths) & bit)
		return;
	bit |= __atomic_fetch_or(&gf_paths, bit, __ATOMIC_RELAXED);
	if (gf_slot)
		gf_poke(&gf_slot->paths, bit);
}

/* After a look. */
void gf_run_update(uint64_t generation)
{
	struct gf_slot *s = gf_peek(&gf_slot);

	if (!s)
		return;
	s->looked = gf_unix_ms();
	if (s->generation != generation) { /* what tripped before belongs to another fault */
		s->trips = 0;
		s->tripped_at = 0;
		s->last_error = 0;
		gf_text(s->function, sizeof s->function, "");
	}
	s->generation = generation;
	s->status = gf_peek(&gf_status);
	s->paths = gf_peek(&gf_paths);
	s->hooks = gf_hooks_resolved();
	s->calls = gf_peek(&gf_calls);
	if (!s->driver)
		s->driver = gf_driver_version();
}

void gf_run_trip(const struct gf_state *st, uint32_t code, const char *function, int mark)
{
	struct gf_slot *s = gf_peek(&gf_slot);
	int64_t now = gf_unix_ms();

	if (!run)
		return;
	if (mark) {
		gf_store(&run->tripped_at, now);
		gf_store(&run->tripped_generation, st->generation);
	}
	gf_add(&run->trips, 1);
	if (!s)
		return;
	s->status = gf_peek(&gf_poison) ? GF_POISONED : GF_TRIPPED;
	s->paths = gf_peek(&gf_paths);
	s->generation = st->generation;
	s->last_error = code;
	s->calls = gf_peek(&gf_calls);
	s->trips = gf_peek(&gf_trip_count);
	s->tripped_at = now;
	gf_text(s->function, sizeof s->function, function);
}

/* Whether this generation has tripped in this pod. */
int gf_run_marked(uint64_t generation) { return run && gf_load(&run->tripped_generation) == generation; }

void gf_run_forked(void) { gf_slot = 0; }
