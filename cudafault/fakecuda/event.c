// Events: marks in the work of a stream. One can be recorded again before it happened, so each recording has a number.
#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void event_happened(struct event *event, uint64_t ticket)
{
	event->done = ticket;
	event->at = now();
}

CUresult event_wait(struct event *event, uint64_t ticket)
{
	CUresult result = OK;
	while (!result && event->done < ticket && event->stream && event->stream->head) result = drain(event->stream, event->stream->head);
	return result;
}

EXPORT CUresult cuEventCreate(struct event **event, unsigned flags)
{
	(void)flags;
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!event) RETURN(INVALID_VALUE);
	*event = calloc(1, sizeof **event);
	RETURN(OK);
}

EXPORT CUresult cuEventDestroy_v2(struct event *event)
{
	ENTER;
	if (!event) RETURN(INVALID_HANDLE);
	event_wait(event, event->recorded);
	free(event);
	RETURN(OK);
}
EXPORT CUresult cuEventDestroy(struct event *event) { return cuEventDestroy_v2(event); }

EXPORT CUresult cuEventRecord(struct event *event, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!event) RETURN(INVALID_HANDLE);
	event->captured = stream->capture != 0;
	if (stream->capture) RETURN(stream->capture == 2 ? CAPTURE_INVALIDATED : OK);
	event->stream = stream;
	struct op op = {.kind = OP_RECORD, .event = event, .ticket = ++event->recorded};
	RETURN(submit(stream, &op));
}
EXPORT CUresult cuEventRecordWithFlags(struct event *event, void *stream, unsigned flags)
{
	return flags > 1 ? INVALID_VALUE : cuEventRecord(event, stream);
}

EXPORT CUresult cuEventSynchronize(struct event *event)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!event) RETURN(INVALID_HANDLE);
	if (event->captured) RETURN(CAPTURED_EVENT);
	RETURN(event_wait(event, event->recorded));
}

EXPORT CUresult cuEventQuery(struct event *event)
{
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (result) RETURN(result);
	if (!event) RETURN(INVALID_HANDLE);
	if (event->captured) RETURN(CAPTURED_EVENT);
	if (event->done < event->recorded && event->stream && event->stream->head) result = drain(event->stream, event->stream->head);
	RETURN(result ? result : event->done < event->recorded ? NOT_READY : OK);
}

EXPORT CUresult cuEventElapsedTime(float *ms, struct event *from, struct event *to)
{
	ENTER;
	if (!ms || !from || !to || !from->recorded || !to->recorded) RETURN(INVALID_HANDLE);
	if (from->done < from->recorded || to->done < to->recorded) RETURN(NOT_READY);
	*ms = (float)((double)(to->at - from->at) / 1e6);
	RETURN(OK);
}

EXPORT CUresult cuStreamWaitEvent(void *handle, struct event *event, unsigned flags)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!event || flags > 1) RETURN(INVALID_VALUE);
	if (stream->capture || event->captured) RETURN(stream->capture == 2 ? CAPTURE_INVALIDATED : OK); // a graph here is a line: its order holds anyway
	struct op op = {.kind = OP_WAIT, .event = event, .ticket = event->recorded};
	RETURN(submit(stream, &op));
}
