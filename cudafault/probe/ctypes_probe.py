# What CuPy, cuda-python, numba and one-line scripts do: ctypes, which is dlopen and dlsym.
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def say(kind, name, *arguments):
    print(kind, name, getattr(cuda, name)(*arguments), flush=True)


n = 1024
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
count = ctypes.c_int()
say("NOTE", "cuInit", 0)
say("NOTE", "cuDeviceGetCount", ctypes.byref(count))
say("NOTE", "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
say("NOTE", "cuCtxSetCurrent", context)
say("NOTE", "cuModuleLoadData", ctypes.byref(module), b"image")
say("NOTE", "cuModuleGetFunction", ctypes.byref(function), module, b"fill")
at, value, size = ctypes.c_uint64(), ctypes.c_float(1.5), ctypes.c_int(n)
host = (ctypes.c_float * n)()
say("CALL", "cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(4 * n))
say("CALL", "cuMemcpyHtoD_v2", at, host, ctypes.c_size_t(4 * n))
arguments = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in (at, value, size)))
say("CALL", "cuLaunchKernel", function, 4, 1, 1, 256, 1, 1, 0, None, arguments, None)
say("CALL", "cuCtxSynchronize")
say("CALL", "cuMemcpyDtoH_v2", host, at, ctypes.c_size_t(4 * n))
print("devices", count.value, "sum", sum(host))
