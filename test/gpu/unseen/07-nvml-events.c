// gcc -O2 -std=gnu11 -o %o 07-nvml-events.c -ldl
/* An event loop on NVML: nvmlEventSetWait_v2 for critical Xid errors; NVML by dlopen. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void *nvmlDevice_t, *nvmlEventSet_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
#define XID_CRITICAL 0x8ULL
#define NVML_ERROR_TIMEOUT 10

static const char *(*errstr)(int);

static void *sym(void *lib, const char *n) {
    void *p = dlsym(lib, n);
    if (!p) { fprintf(stderr, "no %s\n", n); exit(1); }
    return p;
}
static void ck(int r) {
    if (!r) return;
    printf("saw: nvml error %d %s\n", r, errstr(r));
    fflush(stdout);
    _exit(3);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_GLOBAL);
    if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    errstr = (const char *(*)(int))sym(lib, "nvmlErrorString");
    int (*init)(void) = (int (*)(void))sym(lib, "nvmlInit_v2");
    int (*handle)(unsigned, nvmlDevice_t *) = (int (*)(unsigned, nvmlDevice_t *))sym(lib, "nvmlDeviceGetHandleByIndex_v2");
    int (*types)(nvmlDevice_t, unsigned long long *) = (int (*)(nvmlDevice_t, unsigned long long *))sym(lib, "nvmlDeviceGetSupportedEventTypes");
    int (*create)(nvmlEventSet_t *) = (int (*)(nvmlEventSet_t *))sym(lib, "nvmlEventSetCreate");
    int (*reg)(nvmlDevice_t, unsigned long long, nvmlEventSet_t) = (int (*)(nvmlDevice_t, unsigned long long, nvmlEventSet_t))sym(lib, "nvmlDeviceRegisterEvents");
    int (*wait)(nvmlEventSet_t, nvmlEventData_t *, unsigned) = (int (*)(nvmlEventSet_t, nvmlEventData_t *, unsigned))sym(lib, "nvmlEventSetWait_v2");

    nvmlDevice_t dev;
    nvmlEventSet_t set;
    unsigned long long mask = 0;
    ck(init());
    ck(handle(0, &dev));
    ck(types(dev, &mask));
    if (!(mask & XID_CRITICAL)) { fprintf(stderr, "no Xid events on this GPU\n"); return 1; }
    ck(create(&set));
    ck(reg(dev, XID_CRITICAL, set));
    printf("ready\n");
    fflush(stdout);
    double t0 = now();
    while (now() - t0 < 25) {
        nvmlEventData_t ev = {0};
        double a = now();
        int r = wait(set, &ev, 40);
        if (r == NVML_ERROR_TIMEOUT) {
            if (now() - a < 0.005) usleep(20000);
            continue;
        }
        ck(r);
        if (ev.eventType & XID_CRITICAL) {
            printf("saw: event xid %llu\n", ev.eventData);
            fflush(stdout);
            _exit(3);
        }
    }
    printf("saw: nothing\n");
    fflush(stdout);
    _exit(0);
}
