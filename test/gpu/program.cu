// A program of the CUDA runtime, for nvcc with either cudart: what it does is its argument.
//   work          launches and waits until an error comes, for 20 s at most: prints "ready", waits for a line on stdin, then says what it saw
//   cost          ns per launch of an empty kernel and per cudaMallocAsync and cudaFreeAsync: medians of 400 batches that fit into the stream's queue
//   stray | trap | assert | shared   a kernel with that defect: a real XID; prints the error of the runtime, and whether the next call fails too
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <chrono>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

__global__ void empty() {}
__global__ void add(float *a) { a[threadIdx.x] += 1; }
__global__ void stray(int *at) { *at = 1; }
__global__ void trapped() { asm("trap;"); }
__global__ void asserted(int one) { assert(one == 2); }
__global__ void beyond(int n, int *out) { extern __shared__ int local[]; local[n] = n; out[0] = local[n]; }

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static void say(const char *before, cudaError_t e)
{
	printf("{\"text\": \"%s%s %d %s\"}\n", before, cudaGetErrorName(e), (int)e, cudaGetErrorString(e));
	fflush(stdout);
}

static int work()
{
	float *a;
	cudaError_t e = cudaMalloc(&a, 1024);
	if (!e) { add<<<1, 256>>>(a); e = cudaDeviceSynchronize(); }
	if (e) return say("at the start: ", e), 0;
	puts("ready");
	fflush(stdout);
	getchar();
	for (double end = now() + 20; now() < end;) {
		add<<<1, 256>>>(a);
		if ((e = cudaGetLastError()) || (e = cudaDeviceSynchronize())) return say("", e), 0;
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	}
	return say("nothing: ", cudaSuccess), 0;
}

static int cost()
{
	enum { BATCHES = 400, N = 200 };
	std::vector<double> launches, allocations;
	for (int batch = 0; batch < BATCHES; batch++) {
		double t = now();
		for (int i = 0; i < N; i++) empty<<<1, 1>>>();
		launches.push_back(now() - t);
		cudaDeviceSynchronize();
		t = now();
		for (int i = 0; i < N; i++) {
			void *p;
			cudaMallocAsync(&p, 256, 0);
			cudaFreeAsync(p, 0);
		}
		allocations.push_back(now() - t);
		cudaDeviceSynchronize();
	}
	std::sort(launches.begin(), launches.end());
	std::sort(allocations.begin(), allocations.end());
	printf("{\"launch\": %.1f, \"allocation\": %.1f}\n", launches[BATCHES / 2] / N * 1e9, allocations[BATCHES / 2] / N * 1e9);
	return 0;
}

static int defect(const char *which)
{
	int *out;
	cudaMalloc(&out, 4);
	if (!strcmp(which, "stray")) stray<<<1, 1>>>((int *)0x7000deadbee0ull);
	else if (!strcmp(which, "trap")) trapped<<<1, 1>>>();
	else if (!strcmp(which, "assert")) asserted<<<1, 1>>>(1);
	else beyond<<<1, 1, 1024>>>(1 << 24, out);
	say("", cudaDeviceSynchronize());
	std::this_thread::sleep_for(std::chrono::milliseconds(300));
	void *p;
	return say("then ", cudaMalloc(&p, 16)), 0;
}

int main(int, char **argv)
{
	const char *what = argv[1] ? argv[1] : "work";
	return !strcmp(what, "work") ? work() : !strcmp(what, "cost") ? cost() : defect(what);
}
