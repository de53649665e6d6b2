"""CuPy on managed memory, with a raw kernel (NVRTC); events are polled, then the host reads the pages."""
import os
import sys
import time

import cupy as cp
import numpy as np

SRC = r"""
extern "C" __global__ void step(float *x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] + a;
}
"""


def main():
    try:
        cp.cuda.set_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc)
        n = 1 << 20
        x = cp.empty((n,), dtype=cp.float32)
        x.set(np.zeros(n, dtype=np.float32))
        cp.cuda.Device(0).synchronize()
        k = cp.RawKernel(SRC, "step")
        stream = cp.cuda.Stream(non_blocking=True)
        ready, count, t0 = False, 0, time.monotonic()
        while time.monotonic() - t0 < 25:
            with stream:
                k(((n + 255) // 256,), (256,), (x, np.float32(1), np.int32(n)))
                ev = cp.cuda.Event(disable_timing=True)
                ev.record(stream)
            until = time.monotonic() + 10
            while True:
                q = int(cp.cuda.runtime.eventQuery(ev.ptr))  # 600: not ready yet
                if q != 600:
                    break
                if time.monotonic() > until:
                    print("saw: hang event not done in 10 s", flush=True)
                    os._exit(3)
                time.sleep(0.0005)
            if q:
                raise cp.cuda.runtime.CUDARuntimeError(q)
            stream.synchronize()
            count += 1
            h = x.get(stream=stream)
            stream.synchronize()
            if h[0] != count or h[-1] != count:
                print(f"saw: wrong data {h[-1]} instead of {count}", flush=True)
                os._exit(3)
            if not ready:
                ready, t0 = True, time.monotonic()
                print("ready", flush=True)
            time.sleep(0.02)
    except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as e:
        name, _, text = str(e).replace("\n", " ").partition(":")
        print(f"saw: {name.strip()} {e.status} {text.strip()}", flush=True)
        os._exit(3)
    except Exception as e:
        print(f"saw: {type(e).__name__} " + str(e).replace("\n", " ")[:300], flush=True)
        os._exit(3)
    print("saw: nothing", flush=True)
    os._exit(0)


main()
