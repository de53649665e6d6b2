"""Two forked workers: one computes with cuda-bindings (driver API), one reads NVML (ctypes, a new nvmlInit each step as nvidia-smi does).
The parent touches no GPU; at the first report it waits up to 5 s for the other worker's, and prints both on one line."""
import ctypes as C
import os
import select
import signal
import sys
import time


def tell(fd, text):
    os.write(fd, (text.replace("\n", " ")[:400] + "\n").encode())


def cuda_worker(fd):
    from cuda.bindings import driver as cu

    def ck(res):
        err = res[0]
        if int(err) != 0:
            try:
                text = cu.cuGetErrorString(err)[1].decode()
            except Exception:
                text = "?"
            tell(fd, f"saw cuda {err.name} {int(err)} {text}")
            time.sleep(60)  # keep the context (and the driver's state) until the parent ends this worker
            os._exit(3)
        return res[1] if len(res) > 1 else None

    ck(cu.cuInit(0))
    dev = ck(cu.cuDeviceGet(0))
    ctx = ck(cu.cuDevicePrimaryCtxRetain(dev))
    ck(cu.cuCtxSetCurrent(ctx))
    n = 1 << 20
    ptr = ck(cu.cuMemAlloc(n * 4))
    back = (C.c_uint32 * n)()
    step = 0
    while True:
        step += 1
        ck(cu.cuMemsetD32(ptr, step, n))
        ck(cu.cuCtxSynchronize())
        ck(cu.cuMemcpyDtoH(C.addressof(back), ptr, n * 4))
        if back[0] != step or back[n - 1] != step:
            tell(fd, f"saw cuda wrong data {back[n - 1]} instead of {step}")
            os._exit(3)
        if step == 1:
            tell(fd, "ready")
        time.sleep(0.02)


def nvml_worker(fd):
    nv = C.CDLL("libnvidia-ml.so.1")
    nv.nvmlErrorString.restype = C.c_char_p

    def ck(r, optional=False):
        if r == 0:
            return True
        if optional and r == 3:  # NVML_ERROR_NOT_SUPPORTED
            return False
        tell(fd, f"saw nvml error {r} {nv.nvmlErrorString(r).decode()}")
        os._exit(3)

    def read():
        s = {}
        ck(nv.nvmlInit_v2())
        h = C.c_void_p()
        ck(nv.nvmlDeviceGetHandleByIndex_v2(C.c_uint(0), C.byref(h)))
        c = C.c_ulonglong()
        # UNCORRECTED = 1, VOLATILE = 0, DRAM (device memory) = 2
        if ck(nv.nvmlDeviceGetMemoryErrorCounter(h, C.c_int(1), C.c_int(0), C.c_int(2), C.byref(c)), True):
            s["dram uncorrectable"] = c.value
        if ck(nv.nvmlDeviceGetTotalEccErrors(h, C.c_int(1), C.c_int(0), C.byref(c)), True):
            s["total uncorrectable"] = c.value
        r = [C.c_uint() for _ in range(4)]
        if ck(nv.nvmlDeviceGetRemappedRows(h, *[C.byref(x) for x in r]), True):
            for name, x in zip(("remapped by correctable rows", "remapped by uncorrectable rows", "remap pending", "remap failed"), r):
                s[name] = x.value
        ck(nv.nvmlShutdown())
        return s

    base = read()
    for k in ("dram uncorrectable", "total uncorrectable", "remap pending", "remap failed"):
        if k in base:
            base[k] = 0
    tell(fd, "ready")
    while True:
        if read() != base:
            s = read()
            d = [f"{k} {v}" for k, v in s.items() if v != base.get(k)]
            if d:
                tell(fd, "saw nvml " + ", ".join(d))
                os._exit(3)
        time.sleep(0.03)


def main():
    kids = {}
    for name, f in (("cuda", cuda_worker), ("nvml", nvml_worker)):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(r)
            try:
                f(w)
            except BaseException as e:
                tell(w, f"saw {name} exception {type(e).__name__} {e}")
            os._exit(4)
        os.close(w)
        kids[r] = [name, pid, b"", None, False]  # name, pid, buffer, report, ready
    t0, limit, ready, first = time.monotonic(), 90, False, None
    open_fds = set(kids)
    while True:
        now = time.monotonic()
        reports = [k[3] for k in kids.values()]
        if any(reports):
            first = first or now
            if all(reports) or now - first > 5:
                break
        elif now - t0 > limit:
            break
        got = select.select(list(open_fds), [], [], 0.05)[0] if open_fds else []
        for fd in got:
            k = kids[fd]
            data = os.read(fd, 4096)
            if not data:
                open_fds.discard(fd)
                k[3] = k[3] or f"{k[0]} worker ended without a word"
                continue
            k[2] += data
            *lines, k[2] = k[2].split(b"\n")
            for line in lines:
                t = line.decode(errors="replace")
                if t == "ready":
                    k[4] = True
                elif t.startswith("saw ") and not k[3]:
                    k[3] = t[4:]
        if not ready and all(k[4] for k in kids.values()):
            ready, limit, t0 = True, 25, time.monotonic()
            print("ready", flush=True)
    for k in kids.values():
        try:
            os.kill(k[1], signal.SIGKILL)
        except ProcessLookupError:
            pass
    reports = [k[3] for k in kids.values() if k[3]]
    if not reports and not ready:
        reports = ["hang before ready"]
    print("saw: " + ("; ".join(reports) if reports else "nothing"), flush=True)
    sys.stdout.flush()
    os._exit(3 if reports else 0)


main()
