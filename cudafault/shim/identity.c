/*
 * Who this process is: its names, and what its environment says. The environment is read once, and again at cuInit, by system calls: beside a thread
 * that calls setenv, the array and the strings may be freed while they are read.
 */
#include "shim.h"

extern char **environ __attribute__((weak, visibility("default")));

char gf_comm[48];
static char exe[256], arguments[2][64];
static struct values {
	char state[256], run[256], visible[256], node[256], disable[8], preload[1024], ranks[4][24];
	uint32_t set; /* bit i: variable i is set */
} values;
static int known, off;
static int64_t rank = -1;
static uint64_t node;

enum { STATE, RUN, VISIBLE, NODE, DISABLE, PRELOAD, RANKS, VARIABLES = RANKS + 4 };
struct variable { const char *name; uint16_t at, size; };
#define VALUE(field) offsetof(struct values, field), sizeof((struct values *)0)->field

/* ---- the environment ---- */

/* In the order of the enumeration. */
static const struct variable variables[VARIABLES] = {
	{ "GPU_FAULT_STATE", VALUE(state) }, { "GPU_FAULT_RUN", VALUE(run) }, { "CUDA_VISIBLE_DEVICES", VALUE(visible) },
	{ "GPU_FAULT_NODE", VALUE(node) }, { "GPU_FAULT_DISABLE", VALUE(disable) }, { "LD_PRELOAD", VALUE(preload) },
	{ "RANK", VALUE(ranks[0]) }, { "OMPI_COMM_WORLD_RANK", VALUE(ranks[1]) }, { "JOB_COMPLETION_INDEX", VALUE(ranks[2]) },
	{ "LOCAL_RANK", VALUE(ranks[3]) },
};

struct part { uintptr_t at; size_t size; };

/*
 * Copies at most n bytes (n is at most a page) of our own memory, which another thread may free in the meantime. Returns the number of bytes copied:
 * at least those up to the end of the page. If the system call is not allowed, copies directly, up to the end of the string or array.
 */
static long copy_safely(void *to, uintptr_t from, size_t n, int string)
{
	size_t first = 4096 - from % 4096;
	struct part local = { (uintptr_t)to, n }, remote[2] = { { from, n < first ? n : first }, { from + first, n < first ? 0 : n - first } };
	long pid = gf_sys(GF_GETPID, 0, 0, 0, 0, 0, 0);
	long r = gf_sys(GF_PROCESS_VM_READV, pid, (long)&local, 1, (long)remote, n > first ? 2 : 1, 0);
	size_t i = 0;

	if (r >= 0 || r == -GF_EFAULT)
		return r;
	/* A string ends with a NUL, an array with a NULL. */
	for (int zeros = 0; i < n && zeros < (string ? 1 : 8); i++) {
		char c = ((const char *)from)[i];

		((char *)to)[i] = c;
		zeros = c || (!string && i % 8 == 0) ? !c : zeros + 1;
	}
	return (long)i;
}

static void take_line(struct values *v, const char *line, size_t n, uintptr_t from)
{
	for (unsigned i = 0; i < VARIABLES; i++) {
		size_t length = gf_length(variables[i].name);
		char *to = (char *)v + variables[i].at;
		long got;

		if ((v->set >> i & 1) || n <= length || !gf_prefix(line, variables[i].name) || line[length] != '=')
			continue;
		got = copy_safely(to, from + length + 1, variables[i].size - 1, 1);
		to[got > 0 ? got : 0] = 0;
		v->set |= (uint32_t)(got > 0) << i;
		return;
	}
}

/* Returns 1 if the environment did not change while it was read. */
static int read_environ(struct values *v)
{
	char **list = gf_peek(&environ);
	uintptr_t entry[32];
	char line[32];

	*v = (struct values){ .set = 0 };
	for (uintptr_t at = (uintptr_t)list; list; at += sizeof entry) {
		long n = copy_safely(entry, at, sizeof entry, 0);

		if (n < (long)sizeof entry[0])
			return 0;
		for (long i = 0; i < n / (long)sizeof entry[0]; i++) {
			long got;

			if (!entry[i])
				return gf_peek(&environ) == list;
			got = copy_safely(line, entry[i], sizeof line - 1, 1);
			if (got <= 0)
				return 0;
			line[got] = 0;
			take_line(v, line, gf_length(line) + 1, entry[i]);
		}
		if (n < (long)sizeof entry)
			return 0;
	}
	return 1;
}

/* Reads the value that a variable had when the program was started. Returns 0 if it was not set, or if the value does not fit. */
int gf_initial(const char *name, char *value, size_t size)
{
	char block[1024];
	size_t length = gf_length(name), at = 0, n = 0;
	int fd = gf_open("/proc/self/environ", GF_O_NONBLOCK), good = 0, matches = 1;
	long got;

	if (fd < 0)
		return 0;
	while (!good && (got = gf_sys(GF_READ, fd, (long)block, sizeof block, 0, 0, 0)) > 0)
		for (long i = 0; i < got && !good; i++) {
			char c = block[i];

			if (matches && at > length && n < size)
				value[n++] = c;
			matches = matches && (at > length || c == (at < length ? name[at] : '='));
			at++;
			if (!c) {
				good = n && n < size && !value[n - 1];
				at = n = 0;
				matches = 1;
			}
		}
	gf_close(fd);
	return good;
}

/* An audit module has no environ, so it reads the environment that the program was started with. */
static void read_initial(struct values *v)
{
	*v = (struct values){ .set = 0 };
	for (unsigned i = 0; i < VARIABLES; i++)
		v->set |= (uint32_t)gf_initial(variables[i].name, (char *)v + variables[i].at, variables[i].size) << i;
}

static const char *value(unsigned variable, const char *text) { return values.set >> variable & 1 ? text : 0; }

static void read_variables(void)
{
	struct values v;
	const char *e;

	if (&environ && environ)
		for (int i = 0; i < 3 && !read_environ(&v); i++)
			;
	else
		read_initial(&v);
	values = v;
	off = (e = value(DISABLE, values.disable)) && e[0] == '1' && !e[1];
	node = (e = value(NODE, values.node)) ? gf_fnv(e, gf_length(e), GF_FNV_START) : 0;
	rank = -1;
	for (unsigned i = 0; i < 4; i++)
		if ((e = value(RANKS + i, values.ranks[i]))) {
			const char *end = e;

			rank = gf_number(&end);
			rank = end != e && !*end ? rank : -1;
			break;
		}
}

/* ---- names ---- */

static void read_names(void)
{
	char line[512];
	long n = gf_sys(GF_READLINKAT, GF_AT_FDCWD, (long)"/proc/self/exe", (long)line, sizeof line - 1, 0, 0);

	line[n > 0 ? n : 0] = 0;
	gf_text(exe, sizeof exe, gf_basename(line));
	n = gf_read_file("/proc/self/comm", line, sizeof line - 1);
	line[n > 0 ? n - 1 : 0] = 0; /* without the newline */
	gf_text(gf_comm, sizeof gf_comm, line);
	n = gf_read_file("/proc/self/cmdline", line, sizeof line - 1);
	line[n > 0 ? n : 0] = 0;
	gf_text(arguments[0], sizeof arguments[0], gf_basename(line));
	gf_text(arguments[1], sizeof arguments[1], (long)gf_length(line) + 1 < n ? gf_basename(line + gf_length(line) + 1) : "");
}

static void know(void)
{
	if (gf_load(&known))
		return;
	read_names();
	read_variables();
	gf_store(&known, 1);
}

/* Called at cuInit, because a program may set its rank and devices after loading the driver. Returns 1 if the rank has changed. */
int gf_identify_again(void)
{
	int64_t before = rank;

	if (gf_load(&known))
		read_variables();
	return rank != before;
}

void gf_identity_forked(void) { known = 0; }

/* ---- what others ask ---- */

int gf_off(void)
{
	know();
	return off;
}

const char *gf_state_path(void)
{
	know();
	return *values.state ? values.state : GF_STATE_PATH;
}

const char *gf_run_path(void)
{
	know();
	return *values.run ? values.run : GF_RUN_PATH;
}

const char *gf_visible_devices(void)
{
	know();
	return value(VISIBLE, values.visible);
}

const char *gf_preload(void)
{
	know();
	return values.preload;
}

int gf_on_node(const struct gf_state *s)
{
	for (uint32_t i = 0; i < s->node_count; i++)
		if (s->nodes[i] == node)
			return 1;
	return !s->node_count;
}

int gf_in_process(const struct gf_state *s)
{
	const char *g = s->process;

	if (s->rank >= 0 && s->rank != rank)
		return 0;
	return !*g || gf_glob(g, exe) || gf_glob(g, gf_comm) || gf_glob(g, arguments[0]) || (arguments[1][0] && gf_glob(g, arguments[1]));
}
