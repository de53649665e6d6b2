/*
 * A program may start another one with an environment of its choice (env -i, unset LD_PRELOAD). The hooks add the variables that the loader and the
 * shim need, with the values that this program was started with, unless GPU_FAULT_DISABLE=1 is set in either environment. The variadic functions
 * (execl), system and popen are not hooked. After a vfork all memory is shared with the parent, so the hooks use only the stack.
 */
#include "shim.h"

#ifndef GF_EXPORT_ONLY
#define PUBLIC __attribute__((visibility("default")))
enum { ADDED = 4, AT_EMPTY_PATH = 0x1000 };
enum { NO_EXEC = 8, NO_ACCESS = 13, NO_DEVICE = 19, NOT_DIR = 20, TIMED_OUT = 110, STALE = 116 }; /* errno */

extern char **environ __attribute__((weak, visibility("default")));
extern int *__errno_location(void) __attribute__((weak, visibility("default")));

struct environment { size_t used; char text[3072]; }; /* small, because threads may have small stacks */

static int returns(long r)
{
	if (r >= 0)
		return (int)r;
	if (__errno_location)
		*__errno_location() = (int)-r;
	return -1;
}

struct own { char name[64]; };

static int is_own(const struct gf_map *m, void *arg)
{
	if ((uintptr_t)gf_ehdr < m->from || (uintptr_t)gf_ehdr >= m->to)
		return 0;
	gf_text(((struct own *)arg)->name, sizeof ((struct own *)arg)->name, gf_basename(m->path));
	return 1;
}

/* Returns the entry of a list of preloaded files that has the name of this file, and its length; 0 if the list has none. */
static const char *own_entry(const char *list, const struct own *own, size_t *length)
{
	while (*list) {
		const char *base = list;
		size_t n = 0;

		for (; list[n] && list[n] != ':' && list[n] != ' '; n++)
			if (list[n] == '/')
				base = list + n + 1;
		if (own->name[0] && gf_prefix(base, own->name) && base + gf_length(own->name) == list + n) {
			*length = n;
			return list;
		}
		list += n + (list[n] != 0);
	}
	return 0;
}

static const char *value_in(char *const *list, const char *name)
{
	size_t n = gf_length(name);

	for (; *list; list++)
		if (gf_prefix(*list, name) && (*list)[n] == '=')
			return *list + n + 1;
	return 0;
}

/* Appends a string to the last line of the environment. Returns 0 if it does not fit. */
static int append(struct environment *e, const char *text, size_t length)
{
	if (length >= sizeof e->text - e->used)
		return 0;
	for (size_t i = 0; i < length; i++)
		e->text[e->used++] = text[i];
	e->text[e->used] = 0;
	return 1;
}

/* Returns the number of elements that complete needs. */
static size_t places(char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n + ADDED + 1;
}

/* Returns the list with the missing variables, in e and made. Returns the list itself if it is complete, or if they do not fit. */
static char *const *complete(char *const *list, struct environment *e, char **made)
{
	static const char *const names[] = { "GPU_FAULT_STATE", "GPU_FAULT_RUN", "GPU_FAULT_NODE" };
	static char *const none[] = { 0 };
	char *const *all = list ? list : none;
	char was[1024];
	const char *theirs = value_in(all, "LD_PRELOAD"), *off = value_in(all, "GPU_FAULT_DISABLE"), *ours;
	struct own own = { "" };
	size_t count = 0, length;

	if ((off && gf_same(off, "1")) || value_in(all, "LD_AUDIT"))
		return list;
	if (gf_initial("GPU_FAULT_DISABLE", was, sizeof was) && gf_same(was, "1"))
		return list;
	/* Most programs pass the variable on unchanged. */
	if (!gf_initial("LD_PRELOAD", was, sizeof was) || (theirs && gf_same(theirs, was)))
		return list;
	gf_each_map(is_own, &own);
	if ((theirs && own_entry(theirs, &own, &length)) || !(ours = own_entry(was, &own, &length)))
		return list;
	e->used = 0;
	made[count++] = e->text;
	if (!append(e, "LD_PRELOAD=", 11) || !append(e, ours, length))
		return list;
	if (theirs && *theirs && (!append(e, ":", 1) || !append(e, theirs, gf_length(theirs))))
		return list;
	for (unsigned i = 0; i < 3; i++)
		if (!value_in(all, names[i]) && gf_initial(names[i], was, sizeof was)) {
			e->used++; /* keep the NUL of the previous line */
			made[count++] = e->text + e->used;
			if (!append(e, names[i], gf_length(names[i])) || !append(e, "=", 1) || !append(e, was, gf_length(was)))
				return list;
		}
	for (; *all; all++)
		if (!gf_prefix(*all, "LD_PRELOAD="))
			made[count++] = *all;
	made[count] = 0;
	return made;
}

/* Makes the system call. Returns a negative errno. */
static long execute(const char *path, char *const *argv, char *const *list)
{
	struct environment e;
	char *made[places(list)];

	return gf_sys(GF_EXECVE, (long)path, (long)argv, (long)complete(list, &e, made), 0, 0, 0);
}

static long execute_shell(const char *path, char *const *argv, char *const *list)
{
	size_t count = places(argv), n = 0;
	char *script[count + 2];

	script[n++] = (char *)"/bin/sh";
	script[n++] = (char *)path;
	for (size_t i = 1; argv && argv[0] && argv[i]; i++)
		script[n++] = argv[i];
	script[n] = 0;
	return execute("/bin/sh", script, list);
}

/* Like execvp, runs a file without a #! line with sh. */
static long execute_script(const char *path, char *const *argv, char *const *list)
{
	long r = execute(path, argv, list);

	return r == -NO_EXEC ? execute_shell(path, argv, list) : r;
}

static long search(const char *file, char *const *argv, char *const *list)
{
	const char *path = &environ && environ ? value_in(environ, "PATH") : 0, *end;
	size_t length = gf_length(file);
	long r, result = -GF_ENOENT;
	char full[4096];

	for (const char *c = file; *c; c++)
		if (*c == '/')
			return execute_script(file, argv, list);
	for (path = path ? path : "/bin:/usr/bin"; length; path = end + 1) {
		size_t n = 0;

		for (end = path; *end && *end != ':'; end++)
			;
		if ((size_t)(end - path) + length + 2 <= sizeof full) {
			for (; path < end; path++)
				full[n++] = *path;
			if (n)
				full[n++] = '/';
			gf_text(full + n, sizeof full - n, file);
			r = execute_script(full, argv, list);
			if (r == -NO_ACCESS)
				result = r;
			else if (r != -GF_ENOENT && r != -NOT_DIR && r != -NO_DEVICE && r != -TIMED_OUT && r != -STALE)
				return r;
		}
		if (!*end)
			break;
	}
	return result;
}

PUBLIC int execve(const char *path, char *const *argv, char *const *list);
PUBLIC int execv(const char *path, char *const *argv);
PUBLIC int execvp(const char *file, char *const *argv);
PUBLIC int execvpe(const char *file, char *const *argv, char *const *list);
PUBLIC int fexecve(int fd, char *const *argv, char *const *list);
PUBLIC int posix_spawn(void *pid, const char *path, const void *actions, const void *attributes, char *const *argv, char *const *list);
PUBLIC int posix_spawnp(void *pid, const char *file, const void *actions, const void *attributes, char *const *argv, char *const *list);

static char *const *own(void) { return &environ ? environ : 0; }
int execve(const char *path, char *const *argv, char *const *list) { return returns(execute(path, argv, list)); }
int execv(const char *path, char *const *argv) { return returns(execute(path, argv, own())); }
int execvp(const char *file, char *const *argv) { return returns(search(file, argv, own())); }
int execvpe(const char *file, char *const *argv, char *const *list) { return returns(search(file, argv, list)); }

int fexecve(int fd, char *const *argv, char *const *list)
{
	struct environment e;
	char *made[places(list)];

	return returns(gf_sys(GF_EXECVEAT, fd, (long)"", (long)argv, (long)complete(list, &e, made), AT_EMPTY_PATH, 0));
}

typedef int spawn_t(void *, const char *, const void *, const void *, char *const *, char *const *);
static int spawn(const char *how, void *pid, const char *path, const void *actions, const void *attributes, char *const *argv, char *const *list)
{
	spawn_t *real = (spawn_t *)gf_elf_libc(how);
	struct environment e;
	char *made[places(list)];

	return real ? real(pid, path, actions, attributes, argv, complete(list, &e, made)) : GF_ENOENT;
}

int posix_spawn(void *pid, const char *path, const void *actions, const void *attributes, char *const *argv, char *const *list)
{
	return spawn("posix_spawn", pid, path, actions, attributes, argv, list);
}

int posix_spawnp(void *pid, const char *file, const void *actions, const void *attributes, char *const *argv, char *const *list)
{
	return spawn("posix_spawnp", pid, file, actions, attributes, argv, list);
}
#endif
