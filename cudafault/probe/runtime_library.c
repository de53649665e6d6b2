// A stand-in for libcudart.so.12, for the shim's runtime layer only: a few functions on the host's memory, with cudart's rule that
// cudaGetLastError gives the last error and forgets it. Its exports carry the version libcudart.so.12, as the real one's do.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int last;
static int note(int code)
{
	if (code) last = code;
	return code;
}

int cudaGetDeviceCount(int *count) { return count ? (*count = 2, 0) : note(1); }
int cudaSetDevice(int device) { return note(device < 0 || device > 1 ? 101 : 0); }
int cudaDriverGetVersion(int *version) { return version ? (*version = 12040, 0) : note(1); }
int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
int cudaMalloc(void **at, size_t size) { return at && (*at = malloc(size)) ? 0 : note(2); }
int cudaFree(void *at) { return free(at), 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return (void)kind, memcpy(to, from, size), 0; }
int cudaLaunchKernel(const void *function, unsigned long long grid_xy, unsigned grid_z, unsigned long long block_xy, unsigned block_z,
	void **arguments, size_t shared, void *stream)
{
	(void)grid_xy, (void)grid_z, (void)block_xy, (void)block_z, (void)arguments, (void)shared, (void)stream;
	return note(function ? 0 : 98);
}
int cudaDeviceSynchronize(void) { return 0; }
int cudaPeekAtLastError(void) { return last; }
int cudaGetLastError(void)
{
	int code = last;
	last = 0;
	return code;
}
