/*
 * Inside the shim. A call comes through a stub (stubs-*.S): it takes the hook's weight from a budget of its thread and jumps on to the driver's
 * function with registers and stack untouched. Only when the budget is used up does it come to gf_enter (shim.c), which looks at the clock and the
 * state, counts, and decides. So everything that matters is done with weights: GF_LOOK makes each call of a hook come to gf_enter at once, on
 * every thread, without telling the threads.
 */
#ifndef GF_SHIM_H
#define GF_SHIM_H

#include "pure.h"
#include "sys.h"

/* Also for declarations: what is ours is reached directly, without an address in a table that a loader fills. */
#pragma GCC visibility push(hidden)

#ifdef GF_CUDART
#define GF_HOOKS "hooks-cudart.def"
enum { GF_FILE_IS_RUNTIME = 1 };
#else
#define GF_HOOKS "hooks.def"
enum { GF_FILE_IS_RUNTIME = 0 };
#endif

/* Beside the classes: the host waits in it; its context is touched though no class says so; it always comes to gf_enter. */
enum { GF_BLOCKS = 1, GF_TOUCHES = 2, GF_ALWAYS = 4 };

/* What a hook needs beyond counting. */
enum gf_special {
	GF_NONE, GF_CREATE_1, GF_CREATE_2, GF_CREATE_3, GF_CREATE_4, /* a context, on the device that is this argument */
	GF_ROUTE, GF_INIT_CALL, GF_COUNT, GF_DEVICE_GET, GF_BY_PCI, GF_MEM_TOTAL, GF_MEM_INFO, GF_MEM_SIZE, GF_MEM_PITCH,
	GF_MEM_MANAGED, GF_MEM_POOL,
	GF_MEM_CREATE, GF_MEM_ARRAY, GF_MEM_ARRAY3D, GF_COPY_ANY, GF_COPY_ANY_ASYNC, GF_COPY_D2H, GF_COPY_D2H_ASYNC, GF_CAPTURE_BEGIN, GF_CAPTURE_END,
	GF_NV_INIT, GF_NV_COUNT, GF_NV_INDEX, GF_NV_HANDLE, GF_NV_MEM, GF_NV_MEM2, GF_NV_WAIT, GF_NV_REGISTER, GF_NV_FREE,
	GF_NV_ECC_TOTAL, GF_NV_ECC_PLACE, GF_NV_ECC_DETAIL, GF_NV_ROWS, GF_NV_ROWS2, GF_NV_HISTOGRAM, GF_NV_FIELDS, GF_NV_GET, GF_NV_LIVE,
	GF_RT_COUNT, GF_RT_SET, GF_RT_GET, GF_RT_COPY, GF_RT_LAST, GF_RT_PEEK,
};

enum {
#define HOOK(name, classes, flags, special) GF_N_##name,
#include GF_HOOKS
#undef HOOK
	GF_HOOK_COUNT
};

struct gf_info { uint16_t classes; uint8_t flags, special; };
extern const struct gf_info gf_info[GF_HOOK_COUNT];

/* One row per hook, read by the stubs: where to go and what it takes from the budget. */
struct gf_row { void *real; int32_t weight; uint8_t counted, handed, unused[2]; };
extern struct gf_row gf_table[2 * GF_HOOK_COUNT]; /* the second half: a second copy of the library, in another namespace or opened by another path */
enum { GF_LOOK = 0x40000000, GF_UNIT = 4096 }; /* more than any budget; one counted call */

/* What a thread has. The budget starts at -1, so that a thread's first call always comes to gf_enter. */
struct gf_thread {
	int32_t budget, granted;        /* granted: counted calls that the budget was for */
	uint32_t epoch;                 /* gf_epoch when the lease was taken */
	uint16_t lease, inside;         /* size of the last lease; in our own code: pass everything on */
	uint64_t next, end;             /* numbers of counted calls that are this thread's */
	uint64_t tick;                  /* coarse clock at the last look */
	uint32_t last_error, unused;    /* runtime API only */
	uintptr_t frame;                /* of the call that is in our own code */
	uint32_t copy, unused2;         /* the call is of the second copy: GF_HOOK_COUNT, otherwise 0 */
};
extern __thread struct gf_thread gf_thread __attribute__((tls_model("initial-exec")));

enum { GF_DRIVER, GF_NVML, GF_LAYERS }; /* the driver layer is libcudart in the runtime's file */

/* A loaded object, seen as ELF sees it. */
struct gf_elf { uintptr_t base; const void *sym; const char *str; const uint32_t *gnu, *sysv; const uint16_t *versions; const char *soname; };

/* What gf_enter tells the stub: go on there, or (target 0) return the code. */
struct gf_go { void *target; uint64_t code; };

typedef uint64_t gf_function_t(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
static inline uint32_t gf_call(void *real, const uint64_t *a) { return (uint32_t)((gf_function_t *)real)(a[0], a[1], a[2], a[3], a[4], a[5]); }
static inline uint32_t gf_call_real(unsigned n, const uint64_t *a) { return gf_call(gf_table[n + gf_thread.copy].real, a); }

/* elf.c */
int gf_elf_open(struct gf_elf *e, uintptr_t base, const void *dynamic);
void *gf_elf_find(const struct gf_elf *e, const char *name);
void gf_elf_each(const struct gf_elf *e, void (*f)(const char *name, uintptr_t value, void *arg), void *arg);
int gf_elf_vdso(struct gf_elf *e, uintptr_t header);

/* objects.c */
struct gf_object { uintptr_t base; const void *dynamic; const char *name; uintptr_t end; int behind; };
extern const char _DYNAMIC[];
void gf_each_object(int (*f)(const struct gf_object *, struct gf_elf *, void *), void *arg);
void gf_find_neighbours(void);
void *gf_next_dlsym(void);
void *gf_behind(void *real, const char *name);
int gf_by_neighbour(uintptr_t caller);
void *gf_elf_libc(const char *name);

/* lookup.c */
int gf_resolve(int layer);
int gf_ready(int layer);
void gf_tables(void);
void *gf_real(unsigned n);         /* NULL: the driver has no such function, or there is none */
void gf_unloaded(void);
int gf_hook_of_name(const char *name);
const char *gf_hook_name(unsigned n);
void *gf_driver_function(const char *name);
void *gf_nvml_function(const char *name);
uint32_t gf_route_call(unsigned n, uint64_t *a);
unsigned gf_hooks_resolved(void);
static inline int gf_layer(unsigned n) { return gf_info[n].special >= GF_NV_INIT && gf_info[n].special <= GF_NV_LIVE ? GF_NVML : GF_DRIVER; }

/* maps.c */
struct gf_map { uintptr_t from, to, offset; int protection; const char *path; }; /* protection as for mprotect; path: "" if it has none */
void gf_each_map(int (*f)(const struct gf_map *, void *), void *arg);

/* sweep.c */
void gf_sweep(void);
void *gf_stub_for(const char *name, void *bound);

/* objects.c and lookup.c for audit.c */
extern uint32_t gf_audit;           /* we run as an audit module */
void gf_audit_object(uintptr_t base, const void *dynamic, const char *name);
void gf_audit_gone(uintptr_t base);
void *gf_audit_bind(unsigned n, void *real);

/* clock.c */
uint64_t gf_coarse(void);           /* monotonic, ns, advances in ticks of 1 to 10 ms */
uint64_t gf_now(void);              /* the same, exact */
int64_t gf_unix_ms(void);
void gf_sleep(uint64_t us);

/* look.c: the state, the gate */
extern const struct gf_state *gf_state; /* while the gate is open; else NULL */
extern uint32_t gf_epoch, gf_status;
void gf_look(uint64_t now);
void gf_look_now(void);
int gf_touches(unsigned n);
void gf_look_forked(void);
void gf_changed(void);

/* identity.c: this process, and what its environment says */
extern char gf_comm[48];
int gf_off(void);                   /* GPU_FAULT_DISABLE=1 */
int gf_identify_again(void);
int gf_initial(const char *name, char *value, size_t size);
void gf_identity_forked(void);
const char *gf_state_path(void);
const char *gf_run_path(void);
const char *gf_preload(void);
const char *gf_visible_devices(void); /* NULL: not set */
int gf_on_node(const struct gf_state *s);
int gf_in_process(const struct gf_state *s);

#define GF_STATE_PATH "/gpu-fault/lib/state"
#define GF_RUN_PATH "/gpu-fault/run/processes"

/* run.c: the processes file */
extern uint32_t gf_paths;
void gf_path(uint32_t bit);
void gf_run_look(uint64_t generation);
void gf_run_update(uint64_t generation);
void gf_run_trip(const struct gf_state *s, uint32_t code, const char *function, int mark);
int gf_run_marked(uint64_t generation);
void gf_run_forked(void);

/* trigger.c */
extern uint64_t gf_calls, gf_trip_count, gf_copies;
extern uint32_t gf_poison, gf_pending, gf_owed, gf_hanging, gf_capturing;
extern int64_t gf_first_call;
void gf_heal(void);
int64_t gf_closed(const struct gf_state *s);
int gf_armed(unsigned n, uint64_t *a, struct gf_thread *t, uint32_t *code);
int gf_init_condition(const struct gf_state *s);
/* Only the first is limited by `max`; the last three leave no mark. The last is no error of the call. */
enum gf_cause { GF_BY_TRIGGER, GF_BY_INIT, GF_BY_LIMIT, GF_BY_NVML_CALL, GF_BY_EVENT };
int gf_tripped(const struct gf_state *s, enum gf_cause cause, const char *function, const char *what, uint64_t call, uint32_t code);
uint32_t gf_error(const struct gf_state *s);
uint32_t gf_driver_version(void);

extern uint32_t gf_initialised;

/* effects.c, memory.c, nvml.c: 1 = *code is what the call returns */
int gf_special(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
int gf_special_needed(const struct gf_state *s, unsigned n);
uint32_t gf_capture(unsigned n, uint64_t *a);
int gf_captures(void);
uint32_t gf_init_call(const struct gf_state *s, unsigned n, uint64_t *a, struct gf_thread *t);
int gf_init_fails(const struct gf_state *s, unsigned n, uint32_t *code);
void gf_init_forked(void);
uint32_t gf_last_error(unsigned n, struct gf_thread *t, uint32_t code);
int gf_device_matches(const struct gf_state *s);
int gf_context_matches(const struct gf_state *s);
int gf_lost(const struct gf_state *s);
void gf_wait(uint64_t us);
void gf_hang(const struct gf_state *s);
void gf_delay(const struct gf_state *s, uint64_t i);
int gf_copy(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
int gf_memory(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
int gf_enumerate(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
int gf_nvml(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
int gf_nvml_index(uint64_t handle, uint32_t *index);
int gf_nvml_struck(const struct gf_state *s, uint32_t index);
int gf_nvml_handle_struck(const struct gf_state *s, uint64_t handle);

/* nvml_values.c, nvml_events.c */
int gf_nvml_values(const struct gf_state *s, unsigned n, uint64_t *a, uint32_t *code);
uint32_t gf_nvml_register(unsigned n, uint64_t *a);
uint32_t gf_nvml_free(unsigned n, uint64_t *a);
uint32_t gf_nvml_wait(unsigned n, uint64_t *a);
void gf_nvml_event(const struct gf_state *s);
void gf_nvml_forked(void);

/* say.c: one line on stderr, one write(2) */
struct gf_line { char text[400]; size_t n; };
void gf_say(struct gf_line *l, const char *text);
void gf_say_number(struct gf_line *l, uint64_t n);
void gf_say_end(struct gf_line *l);

/* stubs */
extern char gf_stubs[], gf_stubs_end[];
#if defined __x86_64__
enum { GF_STUB = 32 };
#else
enum { GF_STUB = 36 };
#endif
/* called by the stub of dlsym */
void *gf_find_dlsym(void);
int gf_routed(void *handle, const char *name, uintptr_t caller);
void *gf_dlsym(void *handle, const char *name);

extern const char gf_ehdr[] __asm__("__ehdr_start");

#pragma GCC visibility pop

#endif
