// Makes an error on a GPU, so that NVIDIA's driver itself reports an XID: crash XID, with 13, 31 or 43.
//
// It prints one line, and writes the same line to the container's termination message:
//   gpufault result XID ERROR PCI UUID   CUDA reported ERROR for what the kernel did on this GPU
//   gpufault refused TEXT                no kernel was launched, because others could be harmed
//   gpufault failed TEXT                 CUDA did not get so far, or reported no error
//
// The error is one of this process alone: the driver ends the channel and the context of the process, and other processes with contexts of
// their own continue. That is not so below an MPS server, where clients share a context's fate, and with several instances on one GPU, so
// the program refuses both.
//
// The program is linked without any version of a symbol and with no headers of a C library, so that it runs with every glibc that libcuda
// runs with; hack/shim.sh builds it.

typedef unsigned long u64;
typedef int result; // CUresult

extern void *dlopen(const char *file, int flags);
extern void *dlsym(void *library, const char *name);
extern char *dlerror(void);
extern int snprintf(char *to, u64 size, const char *format, ...) __attribute__((format(printf, 3, 4)));
extern int open(const char *path, int flags, ...);
extern long write(int fd, const void *from, u64 size);
extern int access(const char *path, int mode);
extern char *getenv(const char *name);
extern char *strstr(const char *in, const char *what);
extern int strcmp(const char *a, const char *b);
extern int memcmp(const void *a, const void *b, u64 size);
extern u64 strlen(const char *text);
extern void _exit(int status) __attribute__((noreturn));

// PTX of an old version, which every driver that supports a GPU since 2014 compiles. The address is an argument, so that the compiler
// cannot see what is wrong with it. __assertfail is what assert() calls on a device; the driver has it.
static const char ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".extern .func __assertfail (.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);\n"
	".global .align 1 .b8 text[10] = {103, 112, 117, 45, 102, 97, 117, 108, 116, 0};\n"
	".visible .entry gpufault_store(.param .u64 address)\n"
	"{\n"
	"	.reg .b32 %r<2>;\n"
	"	.reg .b64 %rd<2>;\n"
	"	ld.param.u64 %rd1, [address];\n"
	"	mov.u32 %r1, 31;\n"
	"	st.global.u32 [%rd1], %r1;\n"
	"	ret;\n"
	"}\n"
	".visible .entry gpufault_assert(.param .u64 unused)\n"
	"{\n"
	"	.reg .b64 %rd<3>;\n"
	"	mov.u64 %rd1, text;\n"
	"	cvta.global.u64 %rd2, %rd1;\n"
	"	{\n"
	"	.param .b64 param0;\n"
	"	st.param.b64 [param0+0], %rd2;\n"
	"	.param .b64 param1;\n"
	"	st.param.b64 [param1+0], %rd2;\n"
	"	.param .b32 param2;\n"
	"	st.param.b32 [param2+0], 43;\n"
	"	.param .b64 param3;\n"
	"	st.param.b64 [param3+0], %rd2;\n"
	"	.param .b64 param4;\n"
	"	st.param.b64 [param4+0], 1;\n"
	"	call.uni __assertfail, (param0, param1, param2, param3, param4);\n"
	"	}\n"
	"	ret;\n"
	"}\n";

enum { RTLD_NOW = 2, O_WRONLY = 1, COMPUTE_MODE = 20, LINE = 512 };

// The first page is mapped in no process and in no context: the store is a fault of the GPU's MMU, also where a GPU may use the memory of
// its process (HMM, ATS). Beyond the range of addresses, it would be another XID.
static const u64 unmapped = 4096;

static void say(int status, const char *line) __attribute__((noreturn));
static void say(int status, const char *line)
{
	int message = open("/dev/termination-log", O_WRONLY);
	u64 size = strlen(line);
	if (write(1, line, size) != (long)size) status = 1;
	if (message >= 0 && write(message, line, size) != (long)size) status = 1;
	_exit(status); // without CUDA's own cleanup, which could hang after the error
}

#define SAY(status, ...) do { char line_[LINE]; snprintf(line_, sizeof line_, "gpufault " __VA_ARGS__); say(status, line_); } while (0)

static void *driver(void)
{
	// The loader's own paths first: a container toolkit puts the library there. GKE's device plugin mounts it elsewhere.
	static const char *const files[] = {
		"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
		"/usr/lib/aarch64-linux-gnu/libcuda.so.1",
	};
	char why[LINE / 2] = "";
	for (u64 i = 0; i < sizeof files / sizeof *files; i++) {
		void *library = dlopen(files[i], RTLD_NOW);
		if (library) return library;
		const char *text = dlerror();
		if (i == 0) snprintf(why, sizeof why, "%s", text ? text : "libcuda.so.1 is not found");
	}
	SAY(3, "failed load libcuda.so.1: %s\n", why);
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (!found) SAY(3, "failed the driver has no %s\n", name);
	return found;
}

static void check(result r, const char *what)
{
	if (r) SAY(3, "failed %s returned %d\n", what, r);
}

// others refuses what an error could reach beyond this process.
static void others(void *library, int device, unsigned char uuid[16])
{
	static const char *const lists[] = {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"};
	for (int i = 0; i < 2; i++) {
		const char *list = getenv(lists[i]);
		if (list && strstr(list, "MIG-")) SAY(2, "refused the device is a MIG instance\n");
	}
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") || !access("/tmp/nvidia-mps/control", 0)) SAY(2, "refused an MPS server shares the GPU\n");
	int mode = 0;
	result (*attribute)(int *, int, int) = function(library, "cuDeviceGetAttribute");
	check(attribute(&mode, COMPUTE_MODE, device), "cuDeviceGetAttribute");
	if (mode) SAY(2, "refused the GPU is not in the default compute mode but in mode %d\n", mode);
	// The older function returns the UUID of the GPU, and the newer one that of the instance.
	unsigned char instance[16];
	result (*get_uuid)(unsigned char *, int) = function(library, "cuDeviceGetUuid");
	check(get_uuid(uuid, device), "cuDeviceGetUuid");
	result (*instance_uuid)(unsigned char *, int) = dlsym(library, "cuDeviceGetUuid_v2");
	if (!instance_uuid) return;
	check(instance_uuid(instance, device), "cuDeviceGetUuid_v2");
	if (memcmp(uuid, instance, 16)) SAY(2, "refused the device is a MIG instance\n");
}

// launch returns what CUDA reports about one thread of a kernel.
static result launch(void *library, const char *kernel, u64 argument)
{
	result (*load)(void **, const void *) = function(library, "cuModuleLoadData");
	result (*find)(void **, void *, const char *) = function(library, "cuModuleGetFunction");
	result (*start)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
		function(library, "cuLaunchKernel");
	result (*synchronize)(void) = function(library, "cuCtxSynchronize");
	void *module, *entry, *arguments[] = {&argument};
	check(load(&module, ptx), "cuModuleLoadData");
	check(find(&entry, module, kernel), "cuModuleGetFunction");
	result r = start(entry, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0);
	return r ? r : synchronize();
}

int main(int argc, char **argv)
{
	const char *xid = argc == 2 ? argv[1] : "";
	if (strcmp(xid, "13") && strcmp(xid, "31") && strcmp(xid, "43")) SAY(2, "refused usage: crash 13|31|43\n");
	void *library = driver();
	int device = 0, count = 0;
	char pci[32] = "";
	unsigned char uuid[16];
	void *context;
	u64 memory = 0;

	result (*init)(unsigned) = function(library, "cuInit");
	result (*devices)(int *) = function(library, "cuDeviceGetCount");
	result (*get)(int *, int) = function(library, "cuDeviceGet");
	result (*get_pci)(char *, int, int) = function(library, "cuDeviceGetPCIBusId");
	result (*create)(void **, unsigned, int) = function(library, "cuCtxCreate_v2");
	result (*allocate)(u64 *, u64) = function(library, "cuMemAlloc_v2");
	check(init(0), "cuInit");
	check(devices(&count), "cuDeviceGetCount");
	if (count != 1) SAY(2, "refused the container has %d GPUs, not the one that it requested\n", count);
	check(get(&device, 0), "cuDeviceGet");
	check(get_pci(pci, sizeof pci, device), "cuDeviceGetPCIBusId");
	others(library, device, uuid);
	check(create(&context, 0, device), "cuCtxCreate");
	check(allocate(&memory, 64), "cuMemAlloc");

	result r = !strcmp(xid, "43") ? launch(library, "gpufault_assert", 0)
		: launch(library, "gpufault_store", !strcmp(xid, "31") ? unmapped : memory + 1);
	if (!r) SAY(3, "failed the kernel ended without an error\n");
	char text[33];
	for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", uuid[i]);
	SAY(0, "result %s %d %s GPU-%.8s-%.4s-%.4s-%.4s-%s\n", xid, r, pci, text, text + 8, text + 12, text + 16, text + 20);
}
