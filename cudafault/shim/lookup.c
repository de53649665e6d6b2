/*
 * Which function is which: finds the real libraries, fills the table of hooks, and turns what dlsym and cuGetProcAddress return into our stubs.
 * No locks: two threads that do the same work write the same values.
 */
#include "shim.h"

struct gf_row gf_table[2 * GF_HOOK_COUNT] __attribute__((aligned(64)));
__thread struct gf_thread gf_thread __attribute__((tls_model("initial-exec"))) = { .budget = -1 };

static uint32_t names[GF_HOOK_COUNT];   /* of the hooks, as offsets into our own string table */
static struct gf_elf self;
static uintptr_t bases[GF_LAYERS];      /* load base of the library that the table speaks of; 0: none */
static struct gf_elf libraries[GF_LAYERS];
static void *driver_address[GF_HOOK_COUNT]; /* of the hooks' functions in the driver itself */
static int tabled[GF_LAYERS];            /* every row of the layer has an address to jump to */

/* ---- ourselves ---- */

static void own(const char *name, uintptr_t value, void *arg)
{
	uintptr_t at = value - (uintptr_t)gf_stubs;

	(void)arg;
	if (at < (uintptr_t)(gf_stubs_end - gf_stubs) && at / GF_STUB < GF_HOOK_COUNT)
		names[at / GF_STUB] = (uint32_t)(name - self.str);
}

static void know_self(void)
{
	struct gf_elf e;

	if (self.sym)
		return;
	if (!gf_elf_open(&e, (uintptr_t)gf_ehdr, _DYNAMIC) || !e.gnu)
		return;
	self.str = e.str;
	gf_elf_each(&e, own, 0);
	self = e;
}

const char *gf_hook_name(unsigned n)
{
	know_self();
	return self.str + names[n];
}

/* Number of the hook with this exported name, or -1. */
int gf_hook_of_name(const char *name)
{
	uintptr_t at;

	know_self();
	at = (uintptr_t)gf_elf_find(&self, name) - (uintptr_t)gf_stubs;
	return at < (uintptr_t)(gf_stubs_end - gf_stubs) && at / GF_STUB < GF_HOOK_COUNT ? (int)(at / GF_STUB) : -1;
}

static void *stub(unsigned row) { return gf_stubs + row * GF_STUB; }

/* ---- the real libraries ---- */

static const char *const file_names[GF_LAYERS] = { GF_FILE_IS_RUNTIME ? "libcudart" : "libcuda.so", "libnvidia-ml.so" };
static const char *const proofs[GF_LAYERS] = { GF_FILE_IS_RUNTIME ? "cudaMalloc" : "cuInit", "nvmlDeviceGetCount_v2" };

struct search { int layer; struct gf_elf *into; };

static int is_library(const struct gf_object *o, struct gf_elf *e, void *arg)
{
	struct search *s = arg;

	if (!gf_prefix(gf_basename(o->name), file_names[s->layer]) && !(e->soname && gf_prefix(e->soname, file_names[s->layer])))
		return 0;
	if (!gf_elf_find(e, proofs[s->layer]))
		return 0;
	*s->into = *e;
	return 1;
}

/* ---- the table ---- */

/* What a row points to while there is no such function: the stub must never jump to nothing. */
static uint64_t no_driver(void) { return 3; } /* CUDA_ERROR_NOT_INITIALIZED */
static uint64_t no_nvml(void) { return 1; }   /* NVML_ERROR_UNINITIALIZED */
static void *missing(int layer) { return (void *)(layer == GF_NVML ? no_nvml : no_driver); }

void *gf_real(unsigned n)
{
	void *p = gf_peek(&gf_table[n].real);

	return p == missing(gf_layer(n)) ? 0 : p;
}

/*
 * Makes the table of a layer speak of the library that is loaded now. 1: it does; 0: no such library. A library that was closed and opened again
 * may lie elsewhere. Rows of a library that has gone keep no address and always come to gf_enter.
 */
int gf_resolve(int layer)
{
	struct gf_elf e = { 0 };
	struct search s = { layer, &e };

	know_self();
	gf_each_object(is_library, &s);
	if (tabled[layer] && e.base == gf_load(&bases[layer]))
		return e.base != 0;
	libraries[layer] = e;
	gf_find_neighbours();
	for (unsigned n = 0; n < GF_HOOK_COUNT; n++)
		if (gf_layer(n) == layer) {
			void *real = e.base ? gf_elf_find(&e, gf_hook_name(n)) : 0;

			gf_store(&driver_address[n], real);
			real = gf_behind(real, gf_hook_name(n));
			gf_store(&gf_table[n].real, real ? real : missing(layer));
		}
	tabled[layer] = 1;
	gf_store(&bases[layer], e.base);
	gf_changed();
	return e.base != 0;
}

int gf_ready(int layer) { return gf_load(&bases[layer]) || gf_resolve(layer); }

/* After a dlclose: forget a library that is no longer there. */
void gf_unloaded(void)
{
	for (int layer = 0; layer < GF_LAYERS; layer++)
		if (gf_load(&bases[layer]))
			gf_resolve(layer);
}

/* Every row has an address, before any thread gets a budget. */
void gf_tables(void)
{
	for (int layer = 0; layer < GF_LAYERS; layer++)
		if (!tabled[layer])
			gf_resolve(layer);
}

unsigned gf_hooks_resolved(void)
{
	unsigned count = 0;

	for (unsigned n = 0; n < GF_HOOK_COUNT; n++)
		count += gf_real(n) != 0;
	return count;
}

void *gf_driver_function(const char *name) { return gf_ready(GF_DRIVER) ? gf_elf_find(&libraries[GF_DRIVER], name) : 0; }
void *gf_nvml_function(const char *name) { return gf_ready(GF_NVML) ? gf_elf_find(&libraries[GF_NVML], name) : 0; }

/* ---- what the audit module tells ---- */

/* The stub, if this is the function that the table has for it. */
void *gf_audit_bind(unsigned n, void *real)
{
	int layer = gf_layer(n);

	if (gf_off() || ((!gf_ready(layer) || gf_peek(&driver_address[n]) != real) && (!gf_resolve(layer) || gf_peek(&driver_address[n]) != real)))
		return real;
	gf_poke(&gf_table[n].handed, 1);
	gf_path(GF_BY_AUDIT);
	return stub(n);
}

/* ---- routing ---- */

#ifndef GF_EXPORT_ONLY
/*
 * The row of this real function, in the driver, in a neighbour, or in a second copy. The name asked for must begin the hook's name: drivers may share
 * one address between functions.
 */
static int row_of_address(int layer, const void *p, const char *name)
{
	size_t base = gf_base(name);

	for (unsigned row = 0; row < 2 * GF_HOOK_COUNT; row++) {
		unsigned n = row % GF_HOOK_COUNT;

		if (((row == n && gf_peek(&driver_address[n]) == p) || gf_peek(&gf_table[row].real) == p) && gf_layer(n) == layer) {
			const char *hook = gf_hook_name(n);
			size_t i = 0;

			while (i < base && hook[i] == name[i])
				i++;
			if (i == base && (!hook[i] || hook[i] == '_'))
				return (int)row;
		}
	}
	return -1;
}

/* ---- a second copy of the library: in another namespace (dlmopen), or opened by another path ---- */

static uintptr_t second[GF_LAYERS];     /* where its file begins in memory; 0: there is none */

struct holder { int layer; uintptr_t p, known, begin, found; int stays; };

static int holds(const struct gf_map *m, void *arg)
{
	struct holder *h = arg;

	if (!gf_prefix(gf_basename(m->path), file_names[h->layer]))
		return 0;
	if (!m->offset)
		h->begin = m->from;
	h->stays |= h->begin == h->known;
	if (h->p >= m->from && h->p < m->to)
		h->found = h->begin;
	return 0;
}

/* Makes the second half of the table speak of the library that holds p, unless it speaks of another one that is still loaded. */
static void learn(int layer, void *p)
{
	struct holder h = { .layer = layer, .p = (uintptr_t)p, .known = gf_load(&second[layer]) };
	struct gf_elf e;

	gf_each_map(holds, &h);
	if (!h.found || (h.known && h.stays) || !gf_elf_vdso(&e, h.found) || !gf_elf_find(&e, proofs[layer]))
		return;
	for (unsigned n = 0; n < GF_HOOK_COUNT; n++)
		if (gf_layer(n) == layer)
			gf_store(&gf_table[GF_HOOK_COUNT + n].real, gf_elf_find(&e, gf_hook_name(n)));
	gf_store(&second[layer], h.found);
	gf_changed();
}

static void *route(int layer, void *p, const char *name, uint32_t path)
{
	int row = gf_ready(layer) || gf_load(&second[layer]) ? row_of_address(layer, p, name) : -1;

	/* Unknown address for a name that we know: the library may have been opened anew, or be another one. */
	if (row < 0 && gf_hook_of_name(name) >= 0) {
		if (gf_resolve(layer))
			row = row_of_address(layer, p, name);
		if (row < 0) {
			learn(layer, p);
			row = row_of_address(layer, p, name);
		}
	}
	if (row < 0)
		return p;
	gf_poke(&gf_table[(unsigned)row % GF_HOOK_COUNT].handed, 1);
	gf_path(path);
	return stub((unsigned)row);
}

/* For sweep.c: the stub for a name, in place of what an object is bound to (0: nothing yet). 0: leave it. */
void *gf_stub_for(const char *name, void *bound)
{
	int n = gf_hook_of_name(name);

	if (n < 0 || !gf_ready(gf_layer((unsigned)n)) || !gf_real((unsigned)n) || (bound && bound != gf_peek(&driver_address[n])))
		return 0;
	return stub((unsigned)n);
}

extern void *dlsym(void *, const char *) __attribute__((visibility("default")));

void *(*gf_real_dlsym)(void *, const char *);

void *gf_find_dlsym(void)
{
	void *p = gf_next_dlsym();

	gf_store(&gf_real_dlsym, (void *(*)(void *, const char *))p);
	return p;
}

/* Whether the driver that is loaded has what our stub of this name stands for. */
static int stands(const char *name)
{
	int n = gf_hook_of_name(name);

	return n >= 0 && gf_ready(gf_layer((unsigned)n)) && gf_real((unsigned)n);
}

/*
 * Asked by the stub of dlsym before anything else; 0: the real one answers, with the caller's address in place. RTLD_NEXT is its matter too, but
 * must not find a stub that stands for nothing.
 */
int gf_routed(void *handle, const char *name, uintptr_t caller)
{
	if (!name || gf_thread.inside || gf_by_neighbour(caller))
		return 0;
	if (handle != (void *)-1 && handle)
		gf_sweep();
	if (gf_same(name, "dlsym"))
		return handle != (void *)-1;
	if (!gf_ours(name, GF_FILE_IS_RUNTIME))
		return 0;
	return handle != (void *)-1 || (gf_hook_of_name(name) >= 0 && !stands(name));
}

void *gf_dlsym(void *handle, const char *name)
{
	void *(*real)(void *, const char *) = gf_real_dlsym ? gf_real_dlsym : (void *(*)(void *, const char *))gf_find_dlsym();
	int layer = *name == 'n' ? GF_NVML : GF_DRIVER;
	void *p = real ? real(handle, name) : 0;

	__asm__ volatile("" : "+r"(p)); /* no tail call: "next" must mean after us */
	if (!p || handle == (void *)-1)
		return p;
	if (gf_same(name, "dlsym")) /* libc's own would lead past us */
		return p == gf_elf_libc("dlsym") && !gf_off() ? (void *)dlsym : p;
	if ((char *)p >= gf_stubs && (char *)p < gf_stubs_end) {
		/* The program's own scope, where our stub comes first. It counts only if the driver has such a function; if not, fail as without us. */
		if (stands(name)) {
			gf_poke(&gf_table[((char *)p - gf_stubs) / GF_STUB].handed, 1);
			gf_path(GF_BY_DLSYM);
			return p;
		}
		p = real((void *)-1, name);
		__asm__ volatile("" : "+r"(p));
		return p;
	}
	return gf_off() ? p : route(layer, p, name, GF_BY_DLSYM);
}

/* dlclose(handle): afterwards the driver may be gone. */
int dlclose(void *handle) __attribute__((visibility("default")));
int dlclose(void *handle)
{
	static int (*real)(void *);
	int rc;

	if (!real)
		real = (int (*)(void *))gf_elf_libc("dlclose");
	if (!real)
		return 1;
	rc = real(handle);
	if (gf_load(&bases[GF_DRIVER]) || gf_load(&bases[GF_NVML]))
		gf_unloaded();
	return rc;
}

/*
 * cuGetProcAddress(name, p, version, flags) and _v2 with a fifth argument. The driver may leave *p alone although it returns 0, so it gets a
 * variable of ours whose first value is no function's.
 */
uint32_t gf_route_call(unsigned n, uint64_t *a)
{
	void *nothing = gf_stubs, *got = nothing, **p = (void **)a[1];
	uint64_t b[6] = { a[0], p ? (uint64_t)&got : 0, a[2], a[3], a[4], a[5] };
	uint32_t rc = gf_call_real(n, b);
	const char *name = (const char *)a[0];

	if (!p || got == nothing)
		return rc;
	*p = rc == 0 && got && name && *name && !gf_off() ? route(GF_DRIVER, got, name, GF_BY_PROC_ADDRESS) : got;
	return rc;
}
#else
uint32_t gf_route_call(unsigned n, uint64_t *a) { return gf_call_real(n, a); }
#endif
