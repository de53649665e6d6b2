// Streams. Work is queued and done in order when somebody waits for it; a query does one piece of it and answers "not ready"
// until the last is done, as a busy device would.
#include "fake.h"
#include <stdlib.h>
#include <string.h>

static __thread int capture_mode; // of this thread, as cuThreadExchangeStreamCaptureMode sets it
static __thread int executing;    // a host function may not call CUDA

CUresult stream_of(void *handle, struct stream **stream)
{
	struct context *context;
	CUresult result = current(&context);
	if (result) return result;
	if ((uintptr_t)handle <= 2) { *stream = context->null; return OK; } // NULL, and the names of the legacy and the per-thread default stream
	for (struct stream *s = context->streams; s; s = s->next)
		if (s == handle) { *stream = s; return OK; }
	return INVALID_HANDLE;
}

struct op *op_copy(const struct op *op)
{
	struct op *copy = malloc(sizeof *copy);
	*copy = *op;
	copy->next = NULL;
	return copy;
}

void op_release(struct op *op)
{
	free(op->staged);
	free(op);
}

static void copy_rows(const struct op *op)
{
	for (size_t z = 0; z < op->depth; z++)
		for (size_t y = 0; y < op->height; y++)
			memmove(op->dst + z * op->dst_slice + y * op->dst_pitch, op->src + z * op->src_slice + y * op->src_pitch, op->width);
}

static void set_rows(const struct op *op)
{
	for (size_t y = 0; y < op->height; y++)
		for (size_t x = 0; x < op->width; x++) memcpy(op->dst + y * op->dst_pitch + x * op->unit, &op->value, op->unit); // little endian
}

// run_op does one piece of work; what a kernel dies of stays with the context.
CUresult run_op(struct context *context, struct op *op)
{
	CUresult result = context->sticky;
	switch (op->kind) {
	case OP_COPY: if (!result) copy_rows(op); break;
	case OP_SET: if (!result) set_rows(op); break;
	case OP_KERNEL: if (!result) result = op->kernel->run(op->args, op->blocks); break;
	case OP_HOST: if (!result) { executing++; op->host(op->data); executing--; } break;
	case OP_CALLBACK: executing++; op->callback(op->data, result, op->dst); executing--; break;
	case OP_FREE: device_memory_free((uintptr_t)op->dst); break;
	case OP_RECORD: event_happened(op->event, op->ticket); break;
	case OP_WAIT: if (!result) result = event_wait(op->event, op->ticket); break;
	}
	if (result) context->sticky = result;
	return result;
}

CUresult drain(struct stream *stream, struct op *until)
{
	struct context *context = stream->context;
	for (struct op *op; (op = stream->head);) {
		stream->head = op->next;
		if (!stream->head) stream->tail = NULL;
		run_op(context, op);
		int last = op == until;
		op_release(op);
		if (last) break;
	}
	return context->sticky;
}

CUresult drain_context(struct context *context)
{
	drain(context->null, NULL);
	for (struct stream *s = context->streams; s; s = s->next) drain(s, NULL);
	return context->sticky;
}

void streams_reset(struct context *context)
{
	drain_context(context);
	for (struct stream *s; (s = context->streams);) {
		context->streams = s->next;
		free(s);
	}
}

// submit queues a piece of work. The default stream waits for the blocking ones and they for it.
CUresult submit(struct stream *stream, const struct op *op)
{
	struct context *context = stream->context;
	if (executing) return 800; // CUDA_ERROR_NOT_PERMITTED, from a host function
	if (stream->capture == 2) return CAPTURE_INVALIDATED;
	if (stream->capture == 1) {
		struct op *node = op_copy(op);
		if (stream->graph->tail) stream->graph->tail->next = node;
		else stream->graph->head = node;
		stream->graph->tail = node;
		stream->graph->nodes++;
		return OK;
	}
	if (stream == context->null) {
		for (struct stream *s = context->streams; s; s = s->next) {
			if (s->flags & 1) continue;
			if (s->capture == 1) { s->capture = 2; return CAPTURE_IMPLICIT; }
			drain(s, NULL);
		}
	} else if (!(stream->flags & 1)) {
		drain(context->null, NULL);
	}
	struct op *queued = op_copy(op);
	if (stream->tail) stream->tail->next = queued;
	else stream->head = queued;
	stream->tail = queued;
	return context->sticky;
}

CUresult unsafe_in_capture(void)
{
	struct context *context;
	CUresult result = current(&context);
	if (result) return result;
	for (struct stream *s = context->streams; s; s = s->next) {
		if (s->capture != 1 || s->capture_mode == 2 || capture_mode == 2) continue;
		s->capture = 2;
		result = CAPTURE_UNSUPPORTED;
	}
	return result;
}

EXPORT CUresult cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!stream || flags > 1) RETURN(INVALID_VALUE);
	struct stream *s = calloc(1, sizeof *s);
	*s = (struct stream){.context = context, .flags = flags, .priority = priority > 0 ? 0 : priority, .next = context->streams};
	*stream = context->streams = s;
	RETURN(OK);
}
EXPORT CUresult cuStreamCreate(struct stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

EXPORT CUresult cuStreamDestroy_v2(struct stream *stream)
{
	ENTER;
	struct stream *s;
	CUresult result = stream_of(stream, &s);
	if (result) RETURN(result);
	if (s == s->context->null) RETURN(INVALID_HANDLE);
	drain(s, NULL);
	for (struct stream **at = &s->context->streams; *at; at = &(*at)->next)
		if (*at == s) { *at = s->next; break; }
	free(s);
	RETURN(OK);
}
EXPORT CUresult cuStreamDestroy(struct stream *stream) { return cuStreamDestroy_v2(stream); }

EXPORT CUresult cuStreamSynchronize(void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (stream->capture) { stream->capture = 2; RETURN(CAPTURE_UNSUPPORTED); }
	RETURN(drain(stream, NULL));
}

EXPORT CUresult cuStreamQuery(void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (stream->capture) { stream->capture = 2; RETURN(CAPTURE_UNSUPPORTED); }
	if (stream->head) result = drain(stream, stream->head);
	RETURN(result ? result : stream->head ? NOT_READY : OK);
}

EXPORT CUresult cuStreamGetFlags(void *handle, unsigned *flags)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (!result && flags) *flags = stream->flags;
	RETURN(result);
}

EXPORT CUresult cuStreamGetPriority(void *handle, int *priority)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (!result && priority) *priority = stream->priority;
	RETURN(result);
}

EXPORT CUresult cuStreamGetCtx(void *handle, struct context **context)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (!result && context) *context = stream->context;
	RETURN(result);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER;
	if (!mode || *mode < 0 || *mode > 2) RETURN(INVALID_VALUE);
	int former = capture_mode;
	capture_mode = *mode;
	*mode = former;
	RETURN(OK);
}

EXPORT CUresult cuLaunchHostFunc(void *handle, void (*host)(void *), void *data)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!host) RETURN(INVALID_VALUE);
	struct op op = {.kind = OP_HOST, .host = host, .data = data};
	RETURN(submit(stream, &op));
}

EXPORT CUresult cuStreamAddCallback(void *handle, void (*callback)(void *, CUresult, void *), void *data, unsigned flags)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!callback || flags) RETURN(INVALID_VALUE);
	struct op op = {.kind = OP_CALLBACK, .callback = callback, .data = handle, .dst = data};
	RETURN(submit(stream, &op));
}
