/* The objects that are loaded: all of them, those preloaded beside us, libc. */
#include "shim.h"

uint32_t gf_audit;

/* Objects of the program as an audit module sees them; in a preloaded file the list stays empty and dl_iterate_phdr is asked. */
static struct gf_object audited[64];

struct dl_info { uintptr_t base; const char *name; const void *headers; uint16_t count; };
struct header { uint32_t type, flags; uint64_t offset, vaddr, paddr, filesz, memsz, align; };
extern int dl_iterate_phdr(int (*)(struct dl_info *, size_t, void *), void *) __attribute__((weak, visibility("default")));
struct visit { int (*f)(const struct gf_object *, struct gf_elf *, void *); void *arg; int behind; };

static int visit(struct dl_info *i, size_t size, void *arg)
{
	struct visit *v = arg;
	const struct header *h = i->headers;
	struct gf_object o = { .base = i->base, .name = i->name ? i->name : "", .behind = v->behind };
	struct gf_elf e;

	(void)size;
	for (int k = 0; k < i->count; k++) {
		if (h[k].type == 2)
			o.dynamic = (const void *)(i->base + h[k].vaddr);
		if (h[k].type == 1 && i->base + h[k].vaddr + h[k].memsz > o.end)
			o.end = i->base + h[k].vaddr + h[k].memsz;
	}
	if (o.dynamic == (const void *)_DYNAMIC)
		v->behind = 1;
	if (!o.dynamic || o.dynamic == (const void *)_DYNAMIC || !gf_elf_open(&e, o.base, o.dynamic))
		return 0;
	return v->f(&o, &e, v->arg);
}

/* Calls f for each loaded object but ourselves, in the order of loading, until it returns not 0. */
void gf_each_object(int (*f)(const struct gf_object *, struct gf_elf *, void *), void *arg)
{
	struct visit v = { f, arg, 0 };
	struct gf_elf e;

	for (unsigned i = 0; i < 64; i++) {
		struct gf_object o = audited[i];

		if (gf_load(&audited[i].base) && gf_elf_open(&e, o.base, o.dynamic) && f(&o, &e, arg))
			return;
	}
	if (!gf_load(&gf_audit) && dl_iterate_phdr)
		dl_iterate_phdr(visit, &v);
}

/* ---- what the audit module tells ---- */

void gf_audit_object(uintptr_t base, const void *dynamic, const char *name)
{
	for (unsigned i = 0; i < 64; i++)
		if (!audited[i].base) {
			audited[i].dynamic = dynamic;
			audited[i].name = name;
			gf_store(&audited[i].base, base);
			return;
		}
}

void gf_audit_gone(uintptr_t base)
{
	for (unsigned i = 0; i < 64; i++)
		if (audited[i].base == base)
			gf_store(&audited[i].base, 0);
	gf_unloaded();
}

/* ---- other interposers ---- */

/*
 * Other interposers of the driver that are preloaded behind us (a user's own LD_PRELOAD, /etc/ld.so.preload) come next in the program without us,
 * so our stubs go on to them. Their own look-ups are not routed: they would come back here, and so to themselves.
 */
struct neighbour { struct gf_elf elf; uintptr_t end; };
static struct neighbour neighbours[4];
static unsigned neighbour_count, known;
struct found { const char *file; struct neighbour list[4]; unsigned count; };

static int listed(const char *list, const char *name)
{
	size_t n = gf_length(name);

	for (; list && *list; list++)
		if (gf_prefix(list, name) && (!list[n] || list[n] == ':' || list[n] == ' ' || list[n] == '\n'))
			return 1;
	return 0;
}

static int is_neighbour(const struct gf_object *o, struct gf_elf *e, void *arg)
{
	struct found *f = arg;
	const char *base = gf_basename(o->name);

	if (o->behind && *base && (listed(gf_preload(), base) || listed(f->file, base))) {
		f->list[f->count] = (struct neighbour){ *e, o->end };
		return ++f->count == 4;
	}
	return 0;
}

void gf_find_neighbours(void)
{
	char file[1024];
	struct found f = { .file = file };
	long n;

	if (gf_load(&known))
		return;
	n = gf_read_file("/etc/ld.so.preload", file, sizeof file - 1);
	file[n > 0 ? n : 0] = 0;
	gf_each_object(is_neighbour, &f);
	/* Threads that start together write the same. None goes on before all is there: its table would lead past the neighbour. */
	for (unsigned i = 0; i < f.count; i++)
		neighbours[i] = f.list[i];
	gf_store(&neighbour_count, f.count);
	gf_store(&known, 1);
}

/* The dlsym that the program would call without us: a neighbour's own, which prepares itself when it is asked for a function of the driver. */
void *gf_next_dlsym(void)
{
	gf_find_neighbours();
	return gf_behind(gf_elf_libc("dlsym"), "dlsym");
}

void *gf_behind(void *real, const char *name)
{
	for (unsigned i = 0; real && i < neighbour_count; i++) {
		void *p = gf_elf_find(&neighbours[i].elf, name);

		if (p)
			return p;
	}
	return real;
}

int gf_by_neighbour(uintptr_t caller)
{
	for (unsigned i = 0; i < neighbour_count; i++)
		if (caller >= neighbours[i].elf.base && caller < neighbours[i].end)
			return 1;
	return 0;
}

/* ---- libc ---- */

struct wanted { const char *name; void *found; };

static int is_libc(const struct gf_object *o, struct gf_elf *e, void *arg)
{
	struct wanted *w = arg;

	(void)o;
	/* What has dlclose has the real dlsym: libc, before glibc 2.34 libdl, on musl the loader. Other preloaded shims have a dlsym only. */
	if (gf_elf_find(e, "dlclose") && gf_elf_find(e, "dlerror"))
		w->found = gf_elf_find(e, w->name);
	else if (gf_elf_find(e, "malloc") && gf_elf_find(e, "fopen"))
		w->found = gf_elf_find(e, w->name);
	return w->found != 0;
}

void *gf_elf_libc(const char *name)
{
	struct wanted w = { name, 0 };

	gf_each_object(is_libc, &w);
	return w.found;
}
