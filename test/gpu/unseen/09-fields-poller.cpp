// g++ -O2 -std=c++17 -o %o 09-fields-poller.cpp -ldl -pthread
// A DCGM-like poller: one nvmlDeviceGetFieldValues call per step, on a thread of its own.
#include <dlfcn.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
typedef void *nvmlDevice_t;
union Value { double d; unsigned u; unsigned long ul; unsigned long long ull; long long sll; int i; unsigned short us; };
struct Field {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    Value value;
};
static_assert(sizeof(Field) == 40, "ABI of nvml.h");

struct Want { unsigned id; const char *name; bool zero; };  // zero: not 0 is an alarm from the start
static const Want want[] = {
    {4, "ecc_dbe_vol", true},      {6, "ecc_dbe_agg", false},
    {142, "remapped_cor", false},  {143, "remapped_unc", false},
    {144, "remapped_pending", true}, {145, "remapped_failure", true},
};
static const int N = sizeof(want) / sizeof(want[0]);

static const char *(*errstr)(int);
static int (*initv2)();
static int (*byIndex)(unsigned, nvmlDevice_t *);
static int (*byUuid)(const char *, nvmlDevice_t *);
static int (*uuidOf)(nvmlDevice_t, char *, unsigned);
static int (*count)(unsigned *);
static int (*fields)(nvmlDevice_t, int, Field *);

template <class F> static void load(void *lib, F &f, const char *n) {
    f = (F)dlsym(lib, n);
    if (!f) { fprintf(stderr, "no %s\n", n); _exit(1); }
}
static void finish(const std::string &s, int rc) {
    printf("%s\n", s.c_str());
    fflush(stdout);
    _exit(rc);
}
static void ck(int r) {
    if (r) finish("saw: nvml error " + std::to_string(r) + " " + errstr(r), 3);
}
static long long number(const Field &f) {
    switch (f.valueType) {
    case 0: return (long long)f.value.d;
    case 1: return f.value.u;
    case 2: return (long long)f.value.ul;
    case 3: return (long long)f.value.ull;
    case 4: return f.value.sll;
    case 5: return f.value.i;
    case 6: return f.value.us;
    }
    return 0;
}
static void get(nvmlDevice_t d, Field *f) {
    memset(f, 0, sizeof(Field) * N);
    for (int i = 0; i < N; i++) f[i].fieldId = want[i].id;
    ck(fields(d, N, f));
}

static void poller(nvmlDevice_t d) {
    Field base[N], f[N];
    get(d, base);
    int good = 0;
    for (int i = 0; i < N; i++) {
        int r = base[i].nvmlReturn;
        if (!r) good++;
        else if (r != 3) finish(std::string("saw: field ") + want[i].name + " error " + std::to_string(r) + " " + errstr(r), 3);
    }
    if (!good) { fprintf(stderr, "no field is supported\n"); _exit(1); }
    printf("ready\n");
    fflush(stdout);
    auto t0 = std::chrono::steady_clock::now();
    auto diff = [&]() {
        std::string s;
        get(d, f);
        for (int i = 0; i < N; i++) {
            if (base[i].nvmlReturn) continue;
            std::string one;
            if (f[i].nvmlReturn)
                one = std::string("field ") + want[i].name + " error " + std::to_string(f[i].nvmlReturn) + " " + errstr(f[i].nvmlReturn);
            else if (number(f[i]) != (want[i].zero ? 0 : number(base[i])))
                one = std::string("field ") + want[i].name + " " + std::to_string(number(f[i]));
            if (!one.empty()) s += (s.empty() ? "" : ", ") + one;
        }
        return s;
    };
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count() < 25) {
        if (!diff().empty()) {
            std::string s = diff();  // once more, whole
            if (!s.empty()) finish("saw: " + s, 3);
        }
        usleep(25000);
    }
    finish("saw: nothing", 0);
}

int main() {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    load(lib, errstr, "nvmlErrorString");
    load(lib, initv2, "nvmlInit_v2");
    load(lib, byIndex, "nvmlDeviceGetHandleByIndex_v2");
    load(lib, byUuid, "nvmlDeviceGetHandleByUUID");
    load(lib, uuidOf, "nvmlDeviceGetUUID");
    load(lib, count, "nvmlDeviceGetCount_v2");
    load(lib, fields, "nvmlDeviceGetFieldValues");
    unsigned n = 0;
    nvmlDevice_t d, again;
    char uuid[96];
    ck(initv2());
    ck(count(&n));
    if (!n) finish("saw: no GPU, count 0", 3);
    ck(byIndex(0, &d));
    ck(uuidOf(d, uuid, sizeof uuid));
    ck(byUuid(uuid, &again));
    std::thread t(poller, again);
    t.join();
    return 0;
}
