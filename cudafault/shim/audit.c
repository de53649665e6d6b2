/*
 * The same file as LD_AUDIT module: the loader itself asks for each binding, so it also sees objects opened with RTLD_DEEPBIND, which a preloaded
 * file cannot. In its own namespace the module has no libc; everything it needs it reads from the program's objects (lookup.c).
 */
#include "shim.h"

#if !defined GF_EXPORT_ONLY
#define GF_PUBLIC __attribute__((visibility("default")))
struct link_map { uintptr_t base; char *name; void *dynamic; };
struct elf_symbol { uint32_t name; uint8_t info, other; uint16_t section; uint64_t value, size; };
enum { LA_FLG_BINDTO = 1, LA_FLG_BINDFROM = 2 };

GF_PUBLIC unsigned la_version(unsigned version);
GF_PUBLIC unsigned la_objopen(struct link_map *map, long list, uintptr_t *cookie);
GF_PUBLIC unsigned la_objclose(uintptr_t *cookie);
GF_PUBLIC uintptr_t la_symbind64(struct elf_symbol *sym, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name);

unsigned la_version(unsigned version)
{
	gf_store(&gf_audit, 1);
	return version;
}

unsigned la_objopen(struct link_map *map, long list, uintptr_t *cookie)
{
	const char *base = gf_basename(map->name ? map->name : "");
	int driver = gf_prefix(base, "libcuda") || gf_prefix(base, "libnvidia-ml.so");

	*cookie = (uintptr_t)map;
	if (list != 0)
		return 0;
	if (driver || gf_prefix(base, "libc.so") || gf_prefix(base, "libc-") || gf_prefix(base, "libdl"))
		gf_audit_object(map->base, map->dynamic, map->name);
	return driver ? LA_FLG_BINDTO | LA_FLG_BINDFROM : LA_FLG_BINDFROM;
}

unsigned la_objclose(uintptr_t *cookie)
{
	const struct link_map *map = (const void *)*cookie;

	gf_audit_gone(map->base);
	return 0;
}

uintptr_t la_symbind64(struct elf_symbol *sym, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name)
{
	int n;

	(void)index, (void)from, (void)to, (void)flags;
	if (!gf_ours(name, GF_FILE_IS_RUNTIME) || (n = gf_hook_of_name(name)) < 0)
		return sym->value;
	return (uintptr_t)gf_audit_bind((unsigned)n, (void *)sym->value);
}
#endif
