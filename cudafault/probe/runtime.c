// A program on the runtime API, linked to libcudart: what the shim's runtime layer sees.
#include <stddef.h>
#include <stdio.h>

extern int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaMalloc(void **, size_t), cudaMemcpy(void *, const void *, size_t, int);
extern int cudaDeviceSynchronize(void), cudaPeekAtLastError(void), cudaGetLastError(void);
struct dim3 { unsigned x, y, z; };
extern int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);

#define SAY(kind, name, ...) printf("%s %s %d\n", kind, #name, name(__VA_ARGS__))

int main(void)
{
	int count = 0;
	void *at = NULL;
	char host[64] = "";
	struct dim3 one = {1, 1, 1};
	setvbuf(stdout, NULL, _IOLBF, 0);
	SAY("NOTE", cudaGetDeviceCount, &count);
	SAY("NOTE", cudaSetDevice, 0);
	SAY("CALL", cudaMalloc, &at, sizeof host);
	SAY("CALL", cudaMemcpy, at ? at : host, host, sizeof host, 1);
	SAY("CALL", cudaLaunchKernel, (void *)main, one, one, NULL, 0, NULL);
	SAY("CALL", cudaDeviceSynchronize);
	int peek = cudaPeekAtLastError(), last = cudaGetLastError(), again = cudaGetLastError();
	printf("devices %d last error %d %d %d\n", count, peek, last, again);
	return 0;
}
