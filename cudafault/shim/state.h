/* The two binary layouts that the client and the shim share; the Go side is cudafault/layout.go. Little endian, as both machines are. */
#ifndef GF_STATE_H
#define GF_STATE_H

#include <stddef.h>
#include <stdint.h>

/* Classes of calls: which of them count for the trigger. A function may have several. */
enum {
	GF_INIT = 1, GF_DEVICE = 2, GF_CONTEXT = 4, GF_MODULE = 8, GF_ALLOC = 16, GF_FREE = 32, GF_COPY = 64, GF_SET = 128, GF_LAUNCH = 256, GF_SYNC = 512,
	GF_QUERY = 1024, GF_EVENT = 2048, GF_STREAM = 4096, GF_PEER = 8192, GF_IPC = 16384, GF_CAPTURE = 32768,
};

enum { GF_STICKY = 1, GF_QUIET = 2, GF_RUNTIME = 4 };                                          /* gf_state.flags */
enum { GF_PASSING = 1, GF_ARMED, GF_TRIPPED, GF_POISONED, GF_EXPIRED, GF_OTHER_NODE, GF_OTHER_PROCESS, GF_NO_STATE }; /* gf_slot.status */
enum { GF_BY_LINK = 1, GF_BY_DLSYM = 2, GF_BY_PROC_ADDRESS = 4, GF_BY_AUDIT = 8, GF_BY_NVML = 16, GF_BY_RUNTIME = 32 }; /* gf_slot.paths */

/* What the client tells the shims of a pod. Times in unix ms unless said otherwise; probabilities in 2^-32. */
struct gf_state {
	char magic[8];                  /* "GPUFAULT" */
	uint32_t version, size;         /* 1, 1024 */
	uint64_t checksum;              /* FNV-1a 64 of all bytes with this as zero */
	uint64_t generation;            /* changes with every arming */
	int64_t armed_at, expires;      /* 0 = disarmed; 0 = never */
	char run[32], process[64];      /* run: the run's ID; process: glob, empty = all */
	int32_t rank;                   /* -1 = all */
	uint32_t node_count;            /* 0 = all nodes */
	uint64_t devices;               /* bit i = ordinal i; 0 = all */
	uint64_t nodes[64];             /* FNV-1a 64 of node names */
	char function[64];              /* glob; empty = by classes */
	uint32_t classes, surface;      /* surface 1: the next synchronising call fails instead */
	uint64_t after_calls, every;
	uint32_t probability, flags;
	uint64_t seed, max, after_ms, window_from_ms, window_to_ms;
	uint32_t error, error_init, nvml_error, error_fallback, error_min_driver;
	uint32_t latency_us, jitter_us, latency_classes;
	uint64_t mem_limit, hide;
	uint32_t corrupt, hang_classes, nvml_init_error;
	uint32_t nvml_xid, nvml_ecc, nvml_rows; /* XID of an event; uncorrectable errors; bits: a row remapped, pending, failed */
	uint8_t zero[144];
};
_Static_assert(sizeof(struct gf_state) == 1024 && offsetof(struct gf_state, process) == 80 && offsetof(struct gf_state, nodes) == 160, "layout");
_Static_assert(offsetof(struct gf_state, function) == 672 && offsetof(struct gf_state, seed) == 768, "layout");
_Static_assert(offsetof(struct gf_state, error) == 808, "layout");
_Static_assert(offsetof(struct gf_state, mem_limit) == 840 && offsetof(struct gf_state, nvml_init_error) == 864, "layout");

/* What one process tells the client. A slot is claimed under a lock of the file. */
struct gf_slot {
	int32_t pid;                    /* 0 = free; as the process sees it */
	uint32_t driver;                /* cuDriverGetVersion, 0 unknown */
	int64_t started, looked;        /* unix ms */
	uint64_t generation;            /* it has read */
	uint32_t status, paths, hooks, last_error;
	uint64_t calls, trips;
	int64_t tripped_at;
	uint64_t pid_namespace;         /* inode of /proc/self/ns/pid: containers of one pod share this file, not their pids */
	char name[48], function[64], zero[64];
};
struct gf_run {
	char magic[8];                  /* "GPUFRUN1" */
	uint32_t version, slots;        /* 1, 63 */
	uint64_t tripped_generation;    /* the mark: this generation has tripped in this pod */
	int64_t tripped_at;
	char zero[96];
	struct gf_slot slot[63];
};
_Static_assert(sizeof(struct gf_slot) == 256 && offsetof(struct gf_slot, name) == 80 && offsetof(struct gf_slot, function) == 128, "layout");
_Static_assert(sizeof(struct gf_run) == 16256, "layout");

#endif
