// Inside of the sample workload: what its files share.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int (*lookup_t)(const char *, void **, int, uint64_t, int *);

// X(name asked for, version asked for, parameters): the versions are those that cudart 12.4 asks for.
#define DRIVER(X) \
	X(cuGetErrorString, 6000, (int, const char **)) \
	X(cuDriverGetVersion, 2020, (int *)) \
	X(cuInit, 2000, (unsigned)) \
	X(cuDeviceGetCount, 2000, (int *)) \
	X(cuDeviceGet, 2000, (int *, int)) \
	X(cuDeviceGetName, 2000, (char *, int, int)) \
	X(cuDeviceTotalMem, 3020, (size_t *, int)) \
	X(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
	X(cuCtxSetCurrent, 4000, (void *)) \
	X(cuCtxSynchronize, 2000, (void)) \
	X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
	X(cuMemAlloc, 3020, (uint64_t *, size_t)) \
	X(cuModuleLoadData, 2000, (void **, const void *)) \
	X(cuModuleGetFunction, 2000, (void **, void *, const char *)) \
	X(cuStreamCreate, 2000, (void **, unsigned)) \
	X(cuEventCreate, 2000, (void **, unsigned)) \
	X(cuEventRecord, 2000, (void *, void *)) \
	X(cuEventSynchronize, 2000, (void *)) \
	X(cuMemcpyHtoDAsync, 3020, (uint64_t, const void *, size_t, void *)) \
	X(cuMemcpyDtoH, 3020, (void *, uint64_t, size_t)) \
	X(cuMemsetD8Async, 3020, (uint64_t, unsigned char, size_t, void *)) \
	X(cuLaunchKernel, 4000, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuStreamBeginCapture, 10010, (void *, int)) \
	X(cuStreamEndCapture, 10000, (void *, void **)) \
	X(cuGraphInstantiateWithFlags, 11040, (void **, void *, uint64_t)) \
	X(cuGraphLaunch, 10000, (void *, void *))

struct driver {
#define FIELD(name, version, parameters) int (*name) parameters;
	DRIVER(FIELD)
};
extern struct driver cu;

// check ends the program as an uncaught torch.AcceleratorError would.
void check(int code, const char *call);
#define CHECK(call) check(cu.call, #call)

// trainer-driver.c
enum found { NONE, REAL, SIMULATED };
enum found load_driver(void);      // NONE: there is no driver, or it is hidden from this container; broken ones end the program
void *nvml_library(void);          // NULL: none
int nvml_count(void);              // as torch.cuda.device_count() asks it before CUDA is initialised; -1 without NVML
int hidden_by_environment(int devices); // CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES leave none of these devices (-1: unknown)
struct reading { char uuid[96]; unsigned percent; uint64_t used, total; };
int nvml_read(unsigned device, struct reading *r); // 1: it could be read
extern const char kernels[];       // PTX

// trainer-memory.c
size_t bytes_of(const char *name); // a size in the environment, as 12Gi; 0 where it is not set
void hold_model(int device);       // allocates what the settings say, or ends the program as PyTorch does when memory is out

// trainer-framework.c
int script_chooses_cpu(void);      // the training script does, if there is one
void report_cpu(int chosen, int driver); // on stdout and stderr, as the framework does: chosen by the program itself; there is a driver
void report_gpu(long device, const char *name, int driver, int count, int nvml, size_t available, size_t total);

// trainer-loader.c
void start_loader(void);           // before any thread, and before CUDA
void next_batch(void);             // waits for the next batch of the workers, or ends the program as PyTorch does when a worker dies

// trainer-ranks.c
void join_ranks(void);             // waits for the other ranks, if there are any
void all_reduce(void);             // waits until they have done the step too

int stopping(void);                // SIGTERM came
int64_t now_ms(void);              // of a clock that is never set

// trainer-http.c
struct progress { long step, first, samples, batch, workers, rank, ranks; double loss, loaded, seconds; const char *device; int ordinal; int64_t at; }; // at: ms, of the last step
extern volatile struct progress progress;
struct request { char method[8], path[256], body[512]; };
void serve(int port, void (*handle)(int, struct request *)); // for ever
void answer(int fd, const char *status, const char *body);
void serve_metrics(int port);      // in a thread
int serve_store(int port);         // for ever
int http_get(const char *url, char *body, size_t size); // the status, 0 without an answer
int http_put(const char *url, const char *body);

// trainer-checkpoint.c
long resume(const char *checkpoint); // the step that the checkpoint has, 0 where there is none; a store that does not answer ends the program
void save(const char *checkpoint, long step);

// trainer-health.c
int watch_health(void);            // until SIGTERM; the exit code
int supervise(char **argv, long restarts); // until training ends, and has failed more than so many times; its exit code

// trainer-fabric.c
int serve_fabric(int port);        // for ever; 1: it does not fit the driver
int fabric_state(void);            // what cuInit returns: 802 while the NVSwitches are not set up
