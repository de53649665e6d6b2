// Modules and kernels. Any image is accepted; a kernel is known by its name, and it computes. See kernels[] for those that there are.
#include "fake.h"
#include <stdlib.h>
#include <string.h>

struct module { int unused; };

static void *pointer(const unsigned char *args, int offset)
{
	void *p;
	memcpy(&p, args + offset, sizeof p);
	return p;
}

static int integer(const unsigned char *args, int offset)
{
	int i;
	memcpy(&i, args + offset, sizeof i);
	return i;
}

// A kernel that reaches outside of what is allocated dies as on a device.
static int outside(const void *at, int n)
{
	return n < 0 || !allocation_of((uintptr_t)at, (size_t)n * sizeof(float));
}

static CUresult vector_add(const unsigned char *args, unsigned blocks) // a, b, sum, n
{
	(void)blocks;
	const float *a = pointer(args, 0), *b = pointer(args, 8);
	float *sum = pointer(args, 16);
	int n = integer(args, 24);
	if (outside(a, n) || outside(b, n) || outside(sum, n)) return ILLEGAL_ADDRESS;
	for (int i = 0; i < n; i++) sum[i] = a[i] + b[i];
	return OK;
}

static CUresult fill(const unsigned char *args, unsigned blocks) // at, value, n
{
	(void)blocks;
	float *at = pointer(args, 0), value;
	memcpy(&value, args + 8, sizeof value);
	int n = integer(args, 12);
	if (outside(at, n)) return ILLEGAL_ADDRESS;
	for (int i = 0; i < n; i++) at[i] = value;
	return OK;
}

static CUresult noop(const unsigned char *args, unsigned blocks)
{
	(void)args, (void)blocks;
	return OK;
}

static CUresult trap(const unsigned char *args, unsigned blocks)
{
	(void)args, (void)blocks;
	return LAUNCH_FAILED;
}

// The kernels of cudafault/crash.
static CUresult store(const unsigned char *args, unsigned blocks) // address
{
	(void)blocks;
	unsigned *at = pointer(args, 0);
	if ((uintptr_t)at % sizeof *at) return MISALIGNED_ADDRESS;
	if (outside(at, 1)) return ILLEGAL_ADDRESS;
	*at = 31;
	return OK;
}

static CUresult assertion(const unsigned char *args, unsigned blocks)
{
	(void)args, (void)blocks;
	return ASSERT;
}

static const struct kernel kernels[] = {
	{"vectorAdd", {8, 8, 8, 4}, vector_add},
	{"fill", {8, 4, 4}, fill},
	{"noop", {0}, noop},
	{"trap", {0}, trap},
	{"gpufault_store", {8}, store},
	{"gpufault_assert", {8}, assertion},
};

EXPORT CUresult cuModuleLoadDataEx(struct module **module, const void *image, unsigned n, int *options, void **values)
{
	(void)n, (void)options, (void)values;
	ENTER;
	struct context *context;
	CUresult result = current(&context);
	if (!result) result = unsafe_in_capture();
	if (result) RETURN(result);
	if (!module || !image) RETURN(INVALID_VALUE);
	*module = calloc(1, sizeof **module);
	RETURN(OK);
}
EXPORT CUresult cuModuleLoadData(struct module **module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
EXPORT CUresult cuModuleLoadFatBinary(struct module **module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
EXPORT CUresult cuModuleLoad(struct module **module, const char *file) { return cuModuleLoadDataEx(module, file, 0, NULL, NULL); }

EXPORT CUresult cuModuleUnload(struct module *module)
{
	ENTER;
	if (!module) RETURN(INVALID_HANDLE);
	free(module);
	RETURN(OK);
}

EXPORT CUresult cuModuleGetFunction(const struct kernel **function, struct module *module, const char *name)
{
	ENTER;
	if (!function || !name) RETURN(INVALID_VALUE);
	if (!module) RETURN(INVALID_HANDLE);
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (!strcmp(kernels[i].name, name)) { *function = &kernels[i]; RETURN(OK); }
	RETURN(NOT_FOUND);
}

// A library is a module that belongs to no context; its kernels are the functions.
EXPORT CUresult cuLibraryLoadData(struct module **library, const void *code, int *jit, void **jit_values, unsigned n_jit, int *options,
	void **values, unsigned n)
{
	(void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
	ENTER;
	if (!library || !code) RETURN(INVALID_VALUE);
	*library = calloc(1, sizeof **library);
	RETURN(OK);
}
EXPORT CUresult cuLibraryUnload(struct module *library) { return cuModuleUnload(library); }
EXPORT CUresult cuLibraryGetKernel(const struct kernel **kernel, struct module *library, const char *name)
{
	return cuModuleGetFunction(kernel, library, name);
}
EXPORT CUresult cuLibraryGetModule(struct module **module, struct module *library)
{
	ENTER;
	if (!module || !library) RETURN(INVALID_VALUE);
	*module = library;
	RETURN(OK);
}
EXPORT CUresult cuKernelGetFunction(const struct kernel **function, const struct kernel *kernel)
{
	ENTER;
	if (!function || !kernel) RETURN(INVALID_VALUE);
	*function = kernel;
	RETURN(OK);
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, const struct kernel *function)
{
	ENTER;
	if (!value || !function) RETURN(INVALID_VALUE);
	*value = attribute == 0 ? 1024 : attribute == 4 ? 16 : attribute == 5 || attribute == 6 ? 80 : 0; // threads, registers, PTX and binary version
	RETURN(OK);
}
EXPORT CUresult cuFuncSetAttribute(const struct kernel *function, int attribute, int value)
{
	(void)attribute, (void)value;
	ENTER;
	RETURN(function ? OK : INVALID_HANDLE);
}

CUresult kernel_op(void *function, unsigned blocks, void **params, void **extra, struct op *op)
{
	const struct kernel *kernel = function;
	if (kernel < kernels || kernel >= kernels + sizeof kernels / sizeof *kernels) return INVALID_HANDLE;
	if (extra) return NOT_SUPPORTED;
	*op = (struct op){.kind = OP_KERNEL, .kernel = kernel, .blocks = blocks};
	unsigned char *to = op->args;
	for (int i = 0; kernel->sizes[i]; i++) {
		if (!params || !params[i]) return INVALID_VALUE;
		memcpy(to, params[i], kernel->sizes[i]);
		to += kernel->sizes[i];
	}
	return OK;
}

static CUresult launch(void *function, unsigned grid, unsigned block, void *handle, void **params, void **extra)
{
	ENTER;
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);
	if (result) RETURN(result);
	if (!grid || !block || block > 1024) RETURN(INVALID_VALUE);
	struct op op;
	result = kernel_op(function, grid, params, extra, &op);
	if (!result) result = submit(stream, &op);
	RETURN(result);
}

EXPORT CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	void *stream, void **params, void **extra)
{
	(void)shared;
	return launch(function, gx * gy * gz, bx * by * bz, stream, params, extra);
}
EXPORT CUresult cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, void *stream, void **params)
{
	(void)shared;
	return launch(function, gx * gy * gz, bx * by * bz, stream, params, NULL);
}

struct launch_config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void *attributes; unsigned n; };
EXPORT CUresult cuLaunchKernelEx(const struct launch_config *c, void *function, void **params, void **extra)
{
	return c ? launch(function, c->gx * c->gy * c->gz, c->bx * c->by * c->bz, c->stream, params, extra) : INVALID_VALUE;
}
