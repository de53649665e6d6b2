// Inside of the fake driver: what its files share. Everything is guarded by one recursive lock, and nothing runs in the background:
// the work of a stream is queued and is done when somebody waits for it or asks for it, so that runs are repeatable, copies and host
// functions keep their order, and a fork needs no care.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
	OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
	PEER_ACCESS_UNSUPPORTED = 217, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
	PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705, ASSERT = 710, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, UNMATCHED_CAPTURE = 903,
};

enum { MAX_DEVICES = 16 };

struct device {
	uint64_t total, used; // bytes
	int physical;         // its number before CUDA_VISIBLE_DEVICES
	struct context *primary;
	int retained;
	unsigned primary_flags;
	struct pool *pool;
};

struct context {
	int device;
	CUresult sticky; // of a kernel that crashed: every later call fails with it
	unsigned flags;
	struct stream *streams; // all but the default stream
	struct stream *null;    // the default stream
	struct context *next;
};

// One piece of queued work. Graph nodes are the same thing.
struct op {
	struct op *next;
	enum { OP_COPY, OP_SET, OP_KERNEL, OP_HOST, OP_RECORD, OP_WAIT, OP_FREE, OP_CALLBACK } kind;
	unsigned char *dst, *src, *staged;              // copy; set: dst. staged: a copy of pageable host memory, owned
	size_t width, height, depth;                    // bytes per row, rows, slices
	size_t dst_pitch, src_pitch, dst_slice, src_slice;
	unsigned value, unit;                           // set: the value, of unit bytes
	const struct kernel *kernel;
	unsigned char args[64];
	unsigned blocks;
	void (*host)(void *);
	void (*callback)(void *, CUresult, void *);
	void *data;
	struct event *event;
	uint64_t ticket;                                // record, wait: which recording of the event
};

struct stream {
	struct context *context;
	struct op *head, *tail;
	unsigned flags;                                 // 1 = does not wait for the default stream
	int priority;
	int capture;                                    // 0 none, 1 active, 2 invalidated: CUstreamCaptureStatus
	int capture_mode;                               // 0 global, 1 thread-local, 2 relaxed
	struct graph *graph;                            // being captured
	uint64_t capture_id;
	struct stream *next;
};

struct event {
	struct stream *stream;                          // of the last recording; NULL = never recorded
	uint64_t recorded, done;                        // tickets: how often recorded, up to which recording it has happened
	int captured;                                   // last recorded in a stream that was capturing
	uint64_t at;                                    // ns, when it happened
	struct event *next;
};

struct graph {
	struct op *head, *tail;
	int nodes;
	struct graph *next;
};

// A kernel is known by its name, and the arguments it takes by their sizes.
struct kernel {
	const char *name;
	unsigned char sizes[8];
	CUresult (*run)(const unsigned char *args, unsigned blocks);
};

struct allocation {
	uintptr_t at;
	size_t size;
	int device;                                     // -1 = host memory
	int kind;                                       // ALLOC_*
	struct allocation *next;
};
enum { ALLOC_DEVICE, ALLOC_MANAGED, ALLOC_HOST, ALLOC_REGISTERED, ALLOC_VMM }; // only the first counts against the device

extern struct device devices[MAX_DEVICES];
extern int device_count, driver_version;

// enter takes the lock and says whether a call of a process that has (or has not) called cuInit may go on; leave gives its result back.
CUresult enter(void);
CUresult leave(CUresult result);
void lock(void);
int no_device(CUdevice device);

// current gives the calling thread's context, or INVALID_CONTEXT, or what the context died of.
CUresult current(struct context **context);
void streams_reset(struct context *context);

// device.c and memory.c
CUresult device_memory(int device, size_t size, int kind, int low, uintptr_t *at);
CUresult device_memory_free(uintptr_t at);
void allocation_add(uintptr_t at, size_t size, int device, int kind);
struct allocation *allocation_of(uintptr_t at, size_t size); // the one that holds all of these bytes, or NULL

// stream.c
CUresult stream_of(void *handle, struct stream **stream);
CUresult submit(struct stream *stream, const struct op *op);  // queue it, or make it a node of the graph being captured
CUresult drain(struct stream *stream, struct op *until);      // do the queued work; until = NULL: all
CUresult drain_context(struct context *context);
CUresult unsafe_in_capture(void);                             // what a call that may not happen during a capture returns; it invalidates the capture
CUresult run_op(struct context *context, struct op *op);
void op_release(struct op *op);
struct op *op_copy(const struct op *op);

// event.c
void event_happened(struct event *event, uint64_t ticket);
CUresult event_wait(struct event *event, uint64_t ticket);    // does the work that lies before this recording of the event

// module.c
CUresult kernel_op(void *function, unsigned blocks, void **params, void **extra, struct op *op);

#define EXPORT __attribute__((visibility("default")))
// ENTER is the first line of nearly every function that is exported.
#define ENTER do { CUresult entered_ = enter(); if (entered_) return leave(entered_); } while (0)
#define RETURN(result) return leave(result)
