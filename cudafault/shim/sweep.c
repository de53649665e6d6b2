/*
 * Objects opened with RTLD_DEEPBIND bind to the driver and to dlsym of libc, not to the stubs. The sweep replaces these addresses in the tables of
 * the objects (GOT) by the stubs. It runs when the program looks up a function of a handle, as it does before it calls a plugin.
 */
#include "shim.h"

#ifndef GF_EXPORT_ONLY
extern void *dlsym(void *, const char *) __attribute__((visibility("default")));

struct dynamic { int64_t tag; uint64_t value; };
struct relocation { uint64_t at, info; int64_t addend; };
struct symbol { uint32_t name; uint8_t info, other; uint16_t section; uint64_t value, size; };
enum { DT_PLTRELSZ = 2, DT_RELA = 7, DT_RELASZ = 8, DT_JMPREL = 23, DT_RELACOUNT = 0x6ffffff9 };
#if defined __x86_64__
enum { GLOB_DAT = 6, JUMP_SLOT = 7 };
#else
enum { GLOB_DAT = 1025, JUMP_SLOT = 1026 };
#endif

/* ---- what has been swept ---- */

struct dl_info { uintptr_t base; const char *name; const void *headers; uint16_t count; uint64_t added, removed; };
extern int dl_iterate_phdr(int (*)(struct dl_info *, size_t, void *), void *) __attribute__((weak, visibility("default")));

static uint64_t added, removed;         /* the loader's counts of objects at the last sweep */
static uintptr_t swept[1024];           /* bases; a full table only costs time */

static int counts(struct dl_info *i, size_t size, void *arg)
{
	uint64_t *n = arg;

	if (size >= sizeof *i) {
		n[0] = i->added;
		n[1] = i->removed;
	}
	return 1;
}

/* 1: the base was not among those swept. */
static int is_new(uintptr_t base)
{
	unsigned at = (unsigned)(base >> 12) * 2654435761u % 1024;

	for (unsigned i = 0; i < 16; i++) {
		uintptr_t old = gf_peek(&swept[(at + i) % 1024]);

		if (old == base)
			return 0;
		if (!old) {
			gf_poke(&swept[(at + i) % 1024], base);
			return 1;
		}
	}
	return 1;
}

/* ---- who comes before us ---- */

/* The loader searches these objects before the shim: the program, and libraries preloaded earlier. The sweep does not replace their functions. */
static struct gf_elf before[8];
static unsigned before_count;

static int comes_before(const struct gf_object *o, struct gf_elf *e, void *arg)
{
	unsigned *n = arg;

	if (o->behind)
		return 1;
	if (*n < 8)
		before[(*n)++] = *e;
	return 0;
}

static int defined_before(const char *name)
{
	for (unsigned i = 0; i < gf_load(&before_count); i++)
		if (gf_elf_find(&before[i], name))
			return 1;
	return 0;
}

/* ---- sweeping ---- */

enum { READ = 1, WRITE = 2 }; /* PROT_READ, PROT_WRITE */
struct place { uintptr_t at; struct gf_map map; };

static int contains(const struct gf_map *m, void *arg)
{
	struct place *p = arg;

	if (p->at < m->from || p->at >= m->to)
		return 0;
	p->map = *m;
	return 1;
}

/*
 * Writes a slot. The loader makes slots read-only after relocation (RELRO). Which pages these are depends on the page size of the kernel, so the
 * kernel's list of mappings decides.
 */
static void put(uintptr_t *slot, void *stub)
{
	struct place p = { .at = (uintptr_t)slot };
	long size;
	int protected;

	gf_each_map(contains, &p);
	size = (long)(p.map.to - p.map.from);
	protected = !(p.map.protection & WRITE);
	if (protected && (p.map.protection != READ || gf_sys(GF_MPROTECT, (long)p.map.from, size, READ | WRITE, 0, 0, 0)))
		return;
	gf_store(slot, (uintptr_t)stub);
	if (protected)
		gf_sys(GF_MPROTECT, (long)p.map.from, size, READ, 0, 0, 0);
}

static void sweep_table(const struct gf_object *o, const struct gf_elf *e, const struct relocation *r, size_t n, void *libc_dlsym)
{
	for (; n; n--, r++) {
		uint32_t type = (uint32_t)r->info;
		const struct symbol *symbol = (const struct symbol *)e->sym + (r->info >> 32);
		const char *name = e->str + symbol->name;
		uintptr_t *slot = (uintptr_t *)(o->base + r->at);
		void *stub = 0;
		int lazy;

		/* A function that the object defines itself belongs to the object. */
		if ((type != GLOB_DAT && type != JUMP_SLOT) || !(r->info >> 32) || symbol->section)
			continue;
		if (*name != 'c' && *name != 'n' && *name != 'd')
			continue;
		/* A slot that is not bound yet points to code of its own object that calls the loader. */
		lazy = type == JUMP_SLOT && *slot >= o->base && *slot < o->end;
		if (lazy && defined_before(name))
			continue;
		if (gf_same(name, "dlsym"))
			stub = lazy || *slot == (uintptr_t)libc_dlsym ? (void *)dlsym : 0;
		else if (gf_ours(name, GF_FILE_IS_RUNTIME))
			stub = gf_stub_for(name, lazy ? 0 : (void *)*slot);
		if (stub && *slot != (uintptr_t)stub)
			put(slot, stub);
	}
}

static int sweep_object(const struct gf_object *o, struct gf_elf *e, void *libc_dlsym)
{
	const struct relocation *calls = 0, *others = 0;
	size_t call_bytes = 0, other_bytes = 0, relative = 0;

	if (!is_new(o->base) || gf_by_neighbour((uintptr_t)o->dynamic) || gf_elf_find(e, "dlclose") || gf_elf_find(e, "cuInit") ||
	    gf_elf_find(e, "nvmlInit_v2"))
		return 0;
	for (const struct dynamic *d = o->dynamic; d->tag; d++) {
		uintptr_t at = d->value < o->base ? o->base + d->value : d->value;

		switch (d->tag) {
		case DT_JMPREL: calls = (const void *)at; break;
		case DT_RELA: others = (const void *)at; break;
		case DT_PLTRELSZ: call_bytes = d->value; break;
		case DT_RELASZ: other_bytes = d->value; break;
		case DT_RELACOUNT: relative = d->value; break;
		}
	}
	if (calls)
		sweep_table(o, e, calls, call_bytes / sizeof *calls, libc_dlsym);
	if (others && other_bytes / sizeof *others > relative)
		sweep_table(o, e, others + relative, other_bytes / sizeof *others - relative, libc_dlsym);
	return 0;
}

/* Sweeps the objects that were loaded since the last call. */
void gf_sweep(void)
{
	uint64_t n[2] = { 0, 0 };
	unsigned count = 0;

	if (!dl_iterate_phdr)
		return;
	dl_iterate_phdr(counts, n);
	if ((n[0] == gf_peek(&added) && n[1] == gf_peek(&removed)) || gf_off())
		return;
	if (n[1] != gf_peek(&removed))
		for (unsigned i = 0; i < 1024; i++)
			gf_poke(&swept[i], 0);
	gf_poke(&removed, n[1]);
	gf_poke(&added, n[0]);
	gf_find_neighbours();
	if (!gf_load(&before_count)) {
		gf_each_object(comes_before, &count);
		gf_store(&before_count, count);
	}
	gf_each_object(sweep_object, gf_elf_libc("dlsym"));
}
#endif
