// Contexts, errors' names, and what the driver says about itself.
#include "fake.h"
#include "generated.h"
#include <stdlib.h>
#include <string.h>

static struct context *contexts;
static __thread struct context *stack[32];
static __thread int depth;

CUresult current(struct context **context)
{
	if (depth == 0 || !stack[depth - 1]) return INVALID_CONTEXT;
	*context = stack[depth - 1];
	return (*context)->sticky;
}

static struct context *new_context(int device, unsigned flags)
{
	struct context *context = calloc(1, sizeof *context);
	context->device = device;
	context->flags = flags;
	context->null = calloc(1, sizeof *context->null);
	context->null->context = context;
	context->next = contexts;
	return contexts = context;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct context **context, CUdevice device)
{
	ENTER;
	if (!context) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	struct device *d = &devices[device];
	if (!d->primary) d->primary = new_context(device, d->primary_flags);
	d->retained++;
	*context = d->primary;
	RETURN(OK);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER;
	if (no_device(device)) RETURN(INVALID_DEVICE);
	if (devices[device].retained == 0) RETURN(INVALID_CONTEXT);
	if (--devices[device].retained == 0) streams_reset(devices[device].primary);
	RETURN(OK);
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER;
	if (no_device(device)) RETURN(INVALID_DEVICE);
	if (devices[device].primary) {
		streams_reset(devices[device].primary);
		devices[device].primary->sticky = OK;
	}
	RETURN(OK);
}
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	ENTER;
	if (no_device(device)) RETURN(INVALID_DEVICE);
	devices[device].primary_flags = flags;
	RETURN(OK);
}
EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return cuDevicePrimaryCtxSetFlags_v2(device, flags); }

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER;
	if (no_device(device)) RETURN(INVALID_DEVICE);
	if (!flags || !active) RETURN(INVALID_VALUE);
	*flags = devices[device].primary_flags;
	*active = devices[device].retained > 0;
	RETURN(OK);
}

EXPORT CUresult cuCtxCreate_v2(struct context **context, unsigned flags, CUdevice device)
{
	ENTER;
	if (!context) RETURN(INVALID_VALUE);
	if (no_device(device)) RETURN(INVALID_DEVICE);
	if (depth == 32) RETURN(OUT_OF_MEMORY);
	*context = stack[depth++] = new_context(device, flags);
	RETURN(OK);
}
EXPORT CUresult cuCtxCreate(struct context **context, unsigned flags, CUdevice device) { return cuCtxCreate_v2(context, flags, device); }
EXPORT CUresult cuCtxCreate_v3(struct context **context, void *affinity, int count, unsigned flags, CUdevice device)
{
	(void)affinity, (void)count;
	return cuCtxCreate_v2(context, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(struct context *context)
{
	ENTER;
	if (!context) RETURN(INVALID_CONTEXT);
	if (depth && stack[depth - 1] == context) depth--;
	streams_reset(context);
	for (struct context **at = &contexts; *at; at = &(*at)->next)
		if (*at == context) { *at = context->next; break; }
	free(context->null);
	free(context);
	RETURN(OK);
}
EXPORT CUresult cuCtxDestroy(struct context *context) { return cuCtxDestroy_v2(context); }

EXPORT CUresult cuCtxSetCurrent(struct context *context)
{
	ENTER;
	if (depth == 0) depth = 1;
	stack[depth - 1] = context;
	RETURN(OK);
}

EXPORT CUresult cuCtxGetCurrent(struct context **context)
{
	ENTER;
	if (!context) RETURN(INVALID_VALUE);
	*context = depth ? stack[depth - 1] : NULL;
	RETURN(OK);
}

EXPORT CUresult cuCtxPushCurrent_v2(struct context *context)
{
	ENTER;
	if (!context || depth == 32) RETURN(INVALID_CONTEXT);
	stack[depth++] = context;
	RETURN(OK);
}
EXPORT CUresult cuCtxPushCurrent(struct context *context) { return cuCtxPushCurrent_v2(context); }

EXPORT CUresult cuCtxPopCurrent_v2(struct context **context)
{
	ENTER;
	if (depth == 0 || !stack[depth - 1]) RETURN(INVALID_CONTEXT);
	depth--;
	if (context) *context = stack[depth];
	RETURN(OK);
}
EXPORT CUresult cuCtxPopCurrent(struct context **context) { return cuCtxPopCurrent_v2(context); }

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER;
	if (!device) RETURN(INVALID_VALUE);
	if (depth == 0 || !stack[depth - 1]) RETURN(INVALID_CONTEXT);
	*device = stack[depth - 1]->device;
	RETURN(OK);
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
	ENTER;
	if (!flags) RETURN(INVALID_VALUE);
	if (depth == 0 || !stack[depth - 1]) RETURN(INVALID_CONTEXT);
	*flags = stack[depth - 1]->flags;
	RETURN(OK);
}

EXPORT CUresult cuCtxGetApiVersion(struct context *context, unsigned *version)
{
	(void)context;
	ENTER;
	if (!version) RETURN(INVALID_VALUE);
	*version = 3020;
	RETURN(OK);
}

EXPORT CUresult cuCtxSynchronize(void)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (!result) result = unsafe_in_capture();
	if (!result) result = drain_context(context);
	RETURN(result);
}

// Of the given context. Nobody here has two.
EXPORT CUresult cuCtxSynchronize_v2(struct context *context)
{
	(void)context;
	return cuCtxSynchronize();
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER;
	if (least) *least = 0;
	if (greatest) *greatest = -5;
	RETURN(OK);
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
	(void)value;
	ENTER;
	RETURN(limit < 0 || limit > 9 ? INVALID_VALUE : OK);
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
	ENTER;
	if (!value || limit < 0 || limit > 9) RETURN(INVALID_VALUE);
	*value = limit == 2 ? 8 << 20 : 1024; // the heap of malloc on the device; stack and the others
	RETURN(OK);
}

static unsigned char peers[MAX_DEVICES][MAX_DEVICES];

EXPORT CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned flags)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!peer) RETURN(INVALID_CONTEXT);
	if (flags) RETURN(INVALID_VALUE);
	if (peer->device == context->device) RETURN(INVALID_DEVICE);
	unsigned char *enabled = &peers[context->device][peer->device];
	if (*enabled) RETURN(PEER_ACCESS_ALREADY_ENABLED);
	*enabled = 1;
	RETURN(OK);
}

EXPORT CUresult cuCtxDisablePeerAccess(struct context *peer)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!peer) RETURN(INVALID_CONTEXT);
	unsigned char *enabled = &peers[context->device][peer->device];
	if (!*enabled) RETURN(PEER_ACCESS_NOT_ENABLED);
	*enabled = 0;
	RETURN(OK);
}

static const struct error *error_of(CUresult code)
{
	for (const struct error *e = fake_errors; e->name; e++)
		if (e->code == code && driver_version >= e->since) return e;
	return NULL;
}

// These two need no cuInit.
EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
	lock();
	const struct error *e = error_of(code);
	if (name) *name = e ? e->name : NULL;
	RETURN(e ? OK : INVALID_VALUE);
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
	lock();
	const struct error *e = error_of(code);
	if (text) *text = e ? e->text : NULL;
	RETURN(e ? OK : INVALID_VALUE);
}

// A fake driver has no export tables, and cudart's check of the driver, which goes through one, must fail: it is never imitated.
EXPORT CUresult cuGetExportTable(const void **table, const void *id)
{
	(void)table, (void)id;
	return NOT_FOUND;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
	ENTER;
	if (!mode) RETURN(INVALID_VALUE);
	*mode = 1; // eager
	RETURN(OK);
}
