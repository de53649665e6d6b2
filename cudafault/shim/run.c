/*
 * The processes file has a slot for each process of the pod. A slot shows the client that the shim is loaded; the header shows a new process that the
 * fault has tripped. If a step fails here, the program continues without a slot.
 *
 * The file is never mapped, because a program that accesses a mapped file after it was truncated is killed by SIGBUS. It is written only if it is a
 * regular file with the magic and without other names, and never through a symbolic link.
 */
#include "shim.h"

uint32_t gf_paths;

static struct gf_slot mine;             /* content of the slot */
static int32_t place = -1;              /* number of the slot; -1: none */
static uint64_t device, inode;          /* of the file with the slot */
static uint64_t generation;             /* of the last state that was read */
static struct { uint64_t generation; uint32_t code; int64_t at; char function[64]; } last; /* trip */
static uint64_t marked;                 /* last generation that tripped in this pod */
static int lost;                        /* the file with the slot was removed or replaced */

static long read_at(int fd, void *into, size_t n, size_t at) { return gf_sys(GF_PREAD, fd, (long)into, (long)n, (long)at, 0, 0); }
static long write_at(int fd, const void *from, size_t n, size_t at) { return gf_sys(GF_PWRITE, fd, (long)from, (long)n, (long)at, 0, 0); }

/* ---- the file ---- */

static int write_header(int fd)
{
	static const struct { char magic[8]; uint32_t version, slots; } header = { "GPUFRUN1", 1, 63 };

	return gf_sys(GF_FTRUNCATE, fd, sizeof(struct gf_run), 0, 0, 0, 0) == 0 && write_at(fd, &header, sizeof header, 0) == sizeof header;
}

/* Creates the file under a temporary name, and links it when it is complete, so that no process reads an incomplete file. */
static void create(const char *path)
{
	struct gf_line name = { .n = 0 };
	int fd;

	gf_say(&name, path);
	gf_say(&name, ".");
	gf_say_number(&name, (uint64_t)gf_sys(GF_GETPID, 0, 0, 0, 0, 0, 0));
	gf_say(&name, ".");
	gf_say_number(&name, gf_coarse());
	name.text[name.n] = 0;
	fd = gf_open(name.text, GF_O_RDWR | GF_O_CREAT | GF_O_EXCL | GF_O_NOFOLLOW);
	if (fd < 0)
		return;
	/* Containers of a pod may run as different users. */
	if (write_header(fd) && gf_sys(GF_FCHMOD, fd, 0666, 0, 0, 0, 0) == 0)
		gf_sys(GF_LINKAT, GF_AT_FDCWD, (long)name.text, GF_AT_FDCWD, (long)path, 0, 0);
	gf_sys(GF_UNLINKAT, GF_AT_FDCWD, (long)name.text, 0, 0, 0, 0);
	gf_close(fd);
}

/* Opens the file. Returns -1 if it does not exist or was not created by a shim. */
static int open_run(int may_create)
{
	const char *path = gf_run_path();
	struct gf_stat st;
	char magic[8];
	int fd = gf_open(path, GF_O_RDWR | GF_O_NONBLOCK | GF_O_NOFOLLOW);

	if (fd == -GF_ENOENT && may_create) {
		create(path);
		fd = gf_open(path, GF_O_RDWR | GF_O_NONBLOCK | GF_O_NOFOLLOW);
	}
	if (fd < 0)
		return -1;
	if (gf_sys(GF_FSTAT, fd, (long)&st, 0, 0, 0, 0) == 0 && (st.mode & 0170000) == 0100000 && st.links == 1) {
		/* Another process has truncated the file. */
		if (st.size < (int64_t)sizeof(struct gf_run) && place >= 0 && st.device == device && st.inode == inode)
			write_header(fd);
		if (read_at(fd, magic, 8, 0) == 8 && gf_fnv(magic, 8, GF_FNV_START) == gf_fnv("GPUFRUN1", 8, GF_FNV_START)) {
			if (may_create) {
				device = st.device;
				inode = st.inode;
			}
			if (st.device == device && st.inode == inode)
				return fd;
		}
	}
	gf_close(fd);
	return -1;
}

/* ---- our slot ---- */

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

/* Returns a slot for this process: its own after an exec, a free one, or one of a process that has ended; -1 if there is none. */
static int32_t find_place(const struct gf_slot *slot, int32_t pid, uint64_t ns)
{
	int64_t now = gf_unix_ms();

	for (int32_t i = 0; i < 63; i++)
		if (slot[i].pid == pid && slot[i].pid_namespace == ns)
			return i;
	for (int32_t i = 0; i < 63; i++)
		if (!slot[i].pid)
			return i;
	for (int32_t i = 0; i < 63; i++)
		if (stale(&slot[i], ns, now))
			return i;
	return -1;
}

static size_t offset_of(int32_t i) { return offsetof(struct gf_run, slot) + (size_t)i * sizeof(struct gf_slot); }

/* Called by one thread at a time: under gf_look. */
static void claim(void)
{
	static struct gf_slot slot[63];
	int fd = open_run(1);
	long n;

	if (!mine.started)
		mine = (struct gf_slot){ .status = GF_NO_STATE, .started = gf_unix_ms() };
	if (fd < 0)
		return;
	lost = 0;
	/* Two processes that start together must not claim the same slot. Closing the file releases the lock. */
	for (int i = 0; i < 100 && gf_sys(GF_FLOCK, fd, 2 | 4, 0, 0, 0, 0) == -GF_EAGAIN; i++)
		gf_sleep(1000);
	n = read_at(fd, slot, sizeof slot, offset_of(0));
	mine.pid = (int32_t)gf_sys(GF_GETPID, 0, 0, 0, 0, 0, 0);
	mine.pid_namespace = pid_namespace();
	if (n == sizeof slot && (place = find_place(slot, mine.pid, mine.pid_namespace)) >= 0) {
		mine.driver = gf_driver_version();
		gf_text(mine.name, sizeof mine.name, gf_comm);
		write_at(fd, &mine, sizeof mine, offset_of(place));
	}
	gf_close(fd);
}

/* Updates the content of the slot. */
static void compose(void)
{
	int fresh = last.generation == generation;

	mine.looked = gf_unix_ms();
	mine.generation = generation;
	mine.status = gf_peek(&gf_status);
	mine.paths = gf_peek(&gf_paths);
	mine.hooks = gf_hooks_resolved();
	mine.calls = gf_peek(&gf_calls);
	/* Trips of another generation belong to another fault. */
	mine.trips = fresh ? gf_peek(&gf_trip_count) : 0;
	mine.last_error = fresh ? last.code : 0;
	mine.tripped_at = fresh ? last.at : 0;
	gf_text(mine.function, sizeof mine.function, fresh ? last.function : "");
	if (!mine.driver)
		mine.driver = gf_driver_version();
}

static void write_slot(void)
{
	int fd = open_run(0);

	if (fd < 0) {
		lost = 1;
		return;
	}
	compose();
	write_at(fd, &mine, sizeof mine, offset_of(place));
	gf_close(fd);
}

/*
 * One thread writes, and writes again if others have asked in the meantime. If a signal handler jumps out of the thread that writes, another thread
 * takes over after two seconds.
 */
static void publish(void)
{
	static uint64_t writing;
	static uint32_t wanted;
	uint32_t wants;

	if (gf_peek(&place) < 0)
		return;
	gf_add(&wanted, 1);
	do {
		uint64_t now = gf_coarse() | 1, since = gf_load(&writing);

		wants = gf_load(&wanted);
		if ((since && now - since < 2000000000) || !gf_cas64(&writing, since, now))
			return;
		write_slot();
		gf_store(&writing, 0);
	} while (gf_load(&wanted) != wants);
}

/* A way that leads to us. */
void gf_path(uint32_t bit)
{
	if (gf_peek(&gf_paths) & bit)
		return;
	__atomic_fetch_or(&gf_paths, bit, __ATOMIC_RELAXED);
	publish();
}

void gf_run_update(uint64_t looked_at)
{
	generation = looked_at;
	publish();
}

/* After a look, by the thread that looks: a file that was not there, or was replaced, is opened again. */
void gf_run_look(uint64_t looked_at)
{
	int told = generation == looked_at && mine.status == gf_peek(&gf_status) && gf_unix_ms() - mine.looked < 1000;

	if (gf_peek(&place) < 0 || lost)
		claim();
	if (!told)
		gf_run_update(looked_at);
}

void gf_run_trip(const struct gf_state *s, uint32_t code, const char *function, int mark)
{
	int64_t now = gf_unix_ms();

	last.code = code;
	last.at = now;
	gf_text(last.function, sizeof last.function, function);
	gf_store(&last.generation, s->generation);
	generation = s->generation;
	if (mark && gf_peek(&marked) != s->generation) {
		struct { uint64_t generation; int64_t at; } what = { s->generation, now };
		int fd = gf_peek(&place) >= 0 ? open_run(0) : -1;

		if (fd >= 0) {
			if (write_at(fd, &what, sizeof what, offsetof(struct gf_run, tripped_generation)) == sizeof what)
				gf_store(&marked, s->generation);
			gf_close(fd);
		}
	}
	publish();
}

/* Whether this generation has tripped in this pod. */
int gf_run_marked(uint64_t of)
{
	uint64_t found = 0;
	int fd;

	if (gf_peek(&marked) == of)
		return 1;
	if (gf_peek(&place) < 0 || (fd = open_run(0)) < 0)
		return 0;
	if (read_at(fd, &found, sizeof found, offsetof(struct gf_run, tripped_generation)) == sizeof found && found == of)
		gf_store(&marked, of);
	gf_close(fd);
	return found == of;
}

void gf_run_forked(void)
{
	place = -1;
	mine.started = 0;
	last.generation = marked = 0;
}
