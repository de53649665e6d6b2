/*
 * Reading loaded ELF objects ourselves: the real functions must be found without calling a dlsym (ours is in the way), and also in libraries that
 * were loaded RTLD_LOCAL, on musl, and in the namespace of an audit module.
 */
#include "shim.h"

struct dyn { int64_t tag; uint64_t value; };
struct sym { uint32_t name; uint8_t info, other; uint16_t section; uint64_t value, size; };
struct phdr { uint32_t type, flags; uint64_t offset, vaddr, paddr, filesz, memsz, align; };
struct ehdr { uint8_t ident[16]; uint16_t type, machine; uint32_t version; uint64_t entry, phoff, shoff; uint32_t flags;
              uint16_t ehsize, phentsize, phnum; };

enum { DT_HASH = 4, DT_STRTAB = 5, DT_SYMTAB = 6, DT_SONAME = 14, DT_GNU_HASH = 0x6ffffef5, DT_VERSYM = 0x6ffffff0, PT_LOAD = 1, PT_DYNAMIC = 2 };

int gf_elf_open(struct gf_elf *e, uintptr_t base, const void *dynamic)
{
	uint64_t soname = 0;

	*e = (struct gf_elf){ .base = base };
	for (const struct dyn *d = dynamic; d && d->tag; d++) {
		/* glibc adds the base to these in place, musl and the vDSO do not. */
		uintptr_t at = d->value < base ? base + d->value : d->value;

		switch (d->tag) {
		case DT_SYMTAB: e->sym = (const void *)at; break;
		case DT_STRTAB: e->str = (const char *)at; break;
		case DT_GNU_HASH: e->gnu = (const uint32_t *)at; break;
		case DT_HASH: e->sysv = (const uint32_t *)at; break;
		case DT_VERSYM: e->versions = (const uint16_t *)at; break;
		case DT_SONAME: soname = d->value; break;
		}
	}
	if (e->str && soname)
		e->soname = e->str + soname;
	return e->sym && e->str && (e->gnu || e->sysv);
}

/* The symbol's address if it is this name, defined, and a function or an object. */
static void *is(const struct gf_elf *e, uint32_t i, const char *name)
{
	const struct sym *s = (const struct sym *)e->sym + i;

	if (!s->section || (s->info & 15) > 2 || !gf_same(e->str + s->name, name))
		return 0;
	return (void *)(e->base + s->value);
}

/* Among versions of one name the default one (bit 15 clear) wins. */
static int better(const struct gf_elf *e, uint32_t i) { return !e->versions || !(e->versions[i] >> 15); }

void *gf_elf_find(const struct gf_elf *e, const char *name)
{
	void *p, *found = 0;

	if (e->gnu) {
		uint32_t buckets = e->gnu[0], first = e->gnu[1], bloom = e->gnu[2], h = 5381, i;
		const uint64_t *filter = (const uint64_t *)(e->gnu + 4);
		const uint32_t *bucket = (const uint32_t *)(filter + bloom), *chain = bucket + buckets;

		for (const char *s = name; *s; s++)
			h = h * 33 + (uint8_t)*s;
		if (!buckets || !bloom || !(filter[h / 64 & (bloom - 1)] >> h % 64 & 1) || !(filter[h / 64 & (bloom - 1)] >> (h >> e->gnu[3]) % 64 & 1))
			return 0;
		if ((i = bucket[h % buckets]) < first)
			return 0;
		do {
			if (((chain[i - first] ^ h) >> 1) == 0 && (p = is(e, i, name)) && (!found || better(e, i)))
				found = p;
		} while (!(chain[i++ - first] & 1));
		return found;
	}
	{
		uint32_t h = 0, i;

		for (const char *s = name; *s; s++) {
			h = (h << 4) + (uint8_t)*s;
			h = (h ^ (h >> 24 & 0xf0)) & 0xfffffff;
		}
		for (i = e->sysv[0] ? e->sysv[2 + h % e->sysv[0]] : 0; i; i = e->sysv[2 + e->sysv[0] + i])
			if ((p = is(e, i, name)) && (!found || better(e, i)))
				found = p;
	}
	return found;
}

/* All exported symbols of an object that has a GNU hash table: ours. */
void gf_elf_each(const struct gf_elf *e, void (*f)(const char *name, uintptr_t value, void *arg), void *arg)
{
	const struct sym *sym = e->sym;
	uint32_t buckets = e->gnu[0], first = e->gnu[1], bloom = e->gnu[2];
	const uint32_t *bucket = e->gnu + 4 + 2 * bloom, *chain = bucket + buckets;

	for (uint32_t b = 0; b < buckets; b++) {
		uint32_t i = bucket[b];

		if (i < first)
			continue;
		do
			f(e->str + sym[i].name, e->base + sym[i].value, arg);
		while (!(chain[i++ - first] & 1));
	}
}

int gf_elf_vdso(struct gf_elf *e, uintptr_t header)
{
	const struct ehdr *eh = (const void *)header;
	const struct phdr *ph = (const void *)(header + eh->phoff);
	uintptr_t base = header, dynamic = 0;

	for (int i = 0; i < eh->phnum; i++)
		if (ph[i].type == PT_LOAD) {
			base = header + ph[i].offset - ph[i].vaddr;
			break;
		}
	for (int i = 0; i < eh->phnum; i++)
		if (ph[i].type == PT_DYNAMIC)
			dynamic = base + ph[i].vaddr;
	return gf_elf_open(e, base, (const void *)dynamic);
}
