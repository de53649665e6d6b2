// Stream capture and graphs. A graph is the line of work that one stream captured.
#include "fake.h"
#include <stdlib.h>

static uint64_t captures;

static CUresult begin(void *handle, int mode)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (stream == stream->context->null) RETURN(CAPTURE_UNSUPPORTED);
	if (mode < 0 || mode > 2) RETURN(INVALID_VALUE);
	if (stream->capture) RETURN(401); // CUDA_ERROR_ILLEGAL_STATE
	stream->graph = calloc(1, sizeof *stream->graph);
	stream->capture = 1;
	stream->capture_mode = mode;
	stream->capture_id = ++captures;
	RETURN(OK);
}

EXPORT CUresult cuStreamBeginCapture_v2(void *stream, int mode) { return begin(stream, mode); }
EXPORT CUresult cuStreamBeginCapture(void *stream) { return begin(stream, 0); }

static void release(struct graph *graph)
{
	for (struct op *op; (op = graph->head);) {
		graph->head = op->next;
		op_release(op);
	}
	free(graph);
}

EXPORT CUresult cuStreamEndCapture(void *handle, struct graph **graph)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!graph) RETURN(INVALID_VALUE);
	if (!stream->capture) RETURN(401);
	int invalidated = stream->capture == 2;
	*graph = invalidated ? NULL : stream->graph;
	if (invalidated) release(stream->graph);
	stream->graph = NULL;
	stream->capture = 0;
	RETURN(invalidated ? CAPTURE_INVALIDATED : OK);
}

EXPORT CUresult cuStreamIsCapturing(void *handle, int *status)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!status) RETURN(INVALID_VALUE);
	*status = stream->capture;
	RETURN(OK);
}

EXPORT CUresult cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!status) RETURN(INVALID_VALUE);
	*status = stream->capture;
	if (id && stream->capture) *id = stream->capture_id;
	RETURN(OK);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, struct graph **graph, const void **nodes, size_t *count)
{
	CUresult result = cuStreamGetCaptureInfo(handle, status, id);
	if (result) return result;
	lock();
	struct stream *stream;
	result = stream_of(handle, &stream);
	if (!result && graph) *graph = stream->graph;
	if (nodes) *nodes = NULL;
	if (count) *count = 0;
	RETURN(result);
}

EXPORT CUresult cuGraphCreate(struct graph **graph, unsigned flags)
{
	ENTER;
	if (!graph || flags) RETURN(INVALID_VALUE);
	*graph = calloc(1, sizeof **graph);
	RETURN(OK);
}

EXPORT CUresult cuGraphDestroy(struct graph *graph)
{
	ENTER;
	if (!graph) RETURN(INVALID_VALUE);
	release(graph);
	RETURN(OK);
}

EXPORT CUresult cuGraphGetNodes(struct graph *graph, void **nodes, size_t *count)
{
	ENTER;
	if (!graph || !count) RETURN(INVALID_VALUE);
	size_t n = 0;
	for (struct op *op = graph->head; op; op = op->next, n++)
		if (nodes && n < *count) nodes[n] = op;
	*count = n;
	RETURN(OK);
}

static CUresult instantiate(struct graph **exec, const struct graph *graph)
{
	ENTER;
	if (!exec || !graph) RETURN(INVALID_VALUE);
	*exec = calloc(1, sizeof **exec);
	for (const struct op *op = graph->head; op; op = op->next) {
		struct op *copy = op_copy(op);
		if ((*exec)->tail) (*exec)->tail->next = copy;
		else (*exec)->head = copy;
		(*exec)->tail = copy;
		(*exec)->nodes++;
	}
	RETURN(OK);
}

EXPORT CUresult cuGraphInstantiateWithFlags(struct graph **exec, struct graph *graph, uint64_t flags)
{
	(void)flags;
	return instantiate(exec, graph);
}
EXPORT CUresult cuGraphInstantiate(struct graph **exec, struct graph *graph, void **node, char *log, size_t size)
{
	if (node) *node = NULL;
	if (log && size) *log = 0;
	return instantiate(exec, graph);
}
EXPORT CUresult cuGraphInstantiate_v2(struct graph **exec, struct graph *graph, void **node, char *log, size_t size)
{
	return cuGraphInstantiate(exec, graph, node, log, size);
}
struct instantiate_parameters { uint64_t flags; void *stream, *node; int result; };
EXPORT CUresult cuGraphInstantiateWithParams(struct graph **exec, struct graph *graph, struct instantiate_parameters *parameters)
{
	if (!parameters) return INVALID_VALUE;
	parameters->result = 0;
	return instantiate(exec, graph);
}

EXPORT CUresult cuGraphExecDestroy(struct graph *exec)
{
	ENTER;
	if (!exec) RETURN(INVALID_VALUE);
	release(exec);
	RETURN(OK);
}

EXPORT CUresult cuGraphUpload(struct graph *exec, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	RETURN(exec ? result : INVALID_VALUE);
}

EXPORT CUresult cuGraphLaunch(struct graph *exec, void *handle)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!exec) RETURN(INVALID_VALUE);
	for (const struct op *op = exec->head; op && !result; op = op->next) result = submit(stream, op);
	RETURN(result);
}
