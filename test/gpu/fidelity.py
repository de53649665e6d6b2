#!/usr/bin/env python3
"""What real programs see when the shim is armed: run it on a machine with a GPU.

It needs python3, the built shim (cudafault/lib) and, for most rows, PyTorch; nothing is installed or changed. Each row is a process of its
own with the shim preloaded. It prints a table in Markdown, for docs/fidelity.md, and exits 1 when a row is not as expected.

    python3 test/gpu/fidelity.py             # everything
    python3 test/gpu/fidelity.py --no-torch  # only the rows that use the driver directly: also on the fake driver of cudafault/fakecuda
"""

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Classes of functions and flags, as in cudafault/shim/state.h.
DEVICE_WORK = 16 | 64 | 128 | 256 | 512 | 1024 | 2048  # ALLOC COPY SET LAUNCH SYNC QUERY EVENT
LAUNCH, COPY, SYNC = 256, 64, 512
STICKY = 1
CALL, NEXT_SYNC = 0, 1


def state(armed=True, expires=0.0, **fields):
    """The bytes of a state file (cudafault/state.go). Times are in seconds, as time.time()."""
    f = dict(process=b"", rank=-1, devices=0, function=b"", classes=DEVICE_WORK, surface=CALL, after_calls=0, every=0, probability=0.0, flags=STICKY,
             seed=1, max=0, after_ms=0, window_from=0, window_to=0, error=0, error_init=0, nvml_error=0, error_fallback=0, error_min_driver=0,
             latency_us=0, jitter_us=0, latency_classes=0, mem_limit=0, hide=0, corrupt=0.0, hang_classes=0, nvml_init_error=0)
    unknown = set(fields) - set(f)
    if unknown:
        raise ValueError(f"no such field: {unknown}")
    f.update(fields)
    share = lambda p: min(int(p * 2**32), 2**32 - 1)
    head = struct.pack("<8sII", b"GPUFAULT", 1, 1024)
    body = struct.pack("<Qqq32s64siIQ", time.time_ns(), int(time.time() * 1000) if armed else 0, int(expires * 1000), b"gpu-test", f["process"],
                       f["rank"], 0, f["devices"]) + bytes(512)
    body += struct.pack("<64sIIQQIIQQqqqiiiiiIIIQQIIi", f["function"], f["classes"], f["surface"], f["after_calls"], f["every"], share(f["probability"]),
                        f["flags"], f["seed"], f["max"], f["after_ms"], f["window_from"], f["window_to"], f["error"], f["error_init"], f["nvml_error"],
                        f["error_fallback"], f["error_min_driver"], f["latency_us"], f["jitter_us"], f["latency_classes"], f["mem_limit"], f["hide"],
                        share(f["corrupt"]), f["hang_classes"], f["nvml_init_error"])
    body = body.ljust(1024 - 24, b"\0")
    return head + struct.pack("<Q", fnv(head + bytes(8) + body)) + body


def fnv(data):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


# What every child can use. `ready` waits until the parent has armed the shim.
PRELUDE = """
import ctypes, json, os, sys, time
def say(**answer): print(json.dumps(answer), flush=True)
def ready(): print("ready", flush=True); sys.stdin.readline()
"""
TORCH = PRELUDE + "import torch\n"
DRIVER = PRELUDE + """
cu = ctypes.CDLL("libcuda.so.1")
dev, ctx, ptr, free, total, n = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
def init():
    for rc in (cu.cuInit(0), cu.cuDeviceGet(ctypes.byref(dev), 0), cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), dev), cu.cuCtxSetCurrent(ctx)):
        if rc: return rc
    return 0
def alloc(size): return cu.cuMemAlloc_v2(ctypes.byref(ptr), ctypes.c_size_t(size))
def until(call, wanted=lambda rc: rc != 0, seconds=10):
    end = time.time() + seconds
    while True:
        rc = call()
        if wanted(rc) or time.time() > end: return rc
        time.sleep(0.02)
"""

# A training loop, until something goes wrong; the text is what people find in their logs.
TRAINING = TORCH + """
a = torch.randn(256, 256, device="cuda"); torch.cuda.synchronize(); ready()
end = time.time() + 20
try:
    while time.time() < end:
        a = torch.tanh(a @ a); torch.cuda.synchronize(); time.sleep(0.01)
    say(text="nothing happened")
except Exception as e:
    say(text=type(e).__name__ + ": " + str(e).splitlines()[0])
"""

CASES = []


def case(name, wants, torch=True):
    """Registers a row: the function returns what was seen, and whether it is what was wanted."""
    def add(run):
        CASES.append((name, wants, torch, run))
        return run
    return add


class Child:
    """A Python process with the shim preloaded."""

    def __init__(self, bench, code, preload=True, armed=None):
        self.bench = bench
        bench.write(armed or state(armed=False))
        env = dict(os.environ, GPU_FAULT_STATE=bench.state, GPU_FAULT_RUN=bench.processes)
        if preload:
            env["LD_PRELOAD"] = bench.shim
        self.process = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self):
        return self.process.stdout.readline().strip()

    def arm(self, content):
        """Waits until the child is ready, arms the shim and lets the child go on."""
        first = self.line()
        if first != "ready":
            raise RuntimeError(f"the child said {first!r}: {self.process.stderr.read()[-500:]}")
        self.bench.write(content)
        time.sleep(1.1)  # the shim looks once a second: this is about what happens after
        self.go()

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self, timeout=120):
        out, err = self.process.communicate(timeout=timeout)
        for line in reversed(out.splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        return {"text": f"exit {self.process.returncode}: {err.strip().splitlines()[-1] if err.strip() else 'nothing said'}"}


class Bench:
    def __init__(self, folder, shim):
        self.shim = shim
        self.state = os.path.join(folder, "state")
        self.processes = os.path.join(folder, "processes")

    def write(self, content):
        if os.path.exists(self.processes):
            os.remove(self.processes)
        with open(self.state + ".new", "wb") as f:
            f.write(content)
        os.replace(self.state + ".new", self.state)


def report(bench):
    """paths and hooks of the first process in the processes file."""
    with open(bench.processes, "rb") as f:
        slot = f.read()[128:384]
    paths, hooks = struct.unpack_from("<II", slot, 36)
    names = ("linked", "dlsym", "cuGetProcAddress", "audit", "nvml", "runtime")
    return [n for i, n in enumerate(names) if paths >> i & 1], hooks


@case("the shim is reached", "by cuGetProcAddress")
def reached(b):
    c = Child(b, TORCH + "torch.zeros(1, device='cuda'); torch.cuda.synchronize(); say(text='ok')")
    text = c.answer()["text"]
    if text != "ok":
        return text, False
    paths, hooks = report(b)
    return f"{', '.join(paths)}; {hooks} hooks", "cuGetProcAddress" in paths


@case("pass-through, small operations", "under 1 % slower, medians of 7 in turns")
def overhead(b):
    code = TORCH + """
a = torch.ones(8, device="cuda")
def once():
    torch.cuda.synchronize(); t = time.perf_counter()
    for _ in range(20000): a.add_(1)
    torch.cuda.synchronize(); return time.perf_counter() - t
once()
for _ in range(7): ready(); print(once(), flush=True)
say(text="ok")
"""
    with_shim, without = Child(b, code), Child(b, code, preload=False)
    times = {with_shim: [], without: []}
    for _ in range(7):  # in turns: they share the GPU
        for c in times:
            c.line()
            c.go()
            times[c].append(float(c.line()))
    for c in times:
        c.answer()
    median = lambda v: sorted(v)[len(v) // 2]
    ratio = median(times[with_shim]) / median(times[without])
    return f"{(ratio - 1) * 100:+.2f} %", ratio < 1.01


def training(title, code, text, **fields):
    @case(title, f"...{text}...")
    def run(b):
        c = Child(b, TRAINING)
        c.arm(state(error=code, **fields))
        seen = c.answer()["text"]
        return seen, text in seen


training("XID 13, running", 719, "unspecified launch failure", classes=LAUNCH, surface=NEXT_SYNC)
training("XID 31, running", 700, "an illegal memory access was encountered", classes=LAUNCH, surface=NEXT_SYNC)
training("XID 48, running", 214, "uncorrectable ECC error encountered", surface=NEXT_SYNC)
training("XID 74, running", 220, "uncorrectable NVLink error detected", surface=NEXT_SYNC)
training("XID 79, running", 999, "unknown error")
training("XID 94, running", 226, "", surface=NEXT_SYNC, error_fallback=214, error_min_driver=12080)


@case("XID 79, new process", "no GPU for PyTorch; NVML: GPU is lost")
def new_process(b):
    code = TORCH + """
nvml = ctypes.CDLL("libnvidia-ml.so.1"); nvml.nvmlInit_v2(); h = ctypes.c_void_p()
rc = nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))
try: torch.zeros(1, device="cuda"); text = "it works"
except Exception as e: text = type(e).__name__ + ": " + str(e).splitlines()[0]
say(text=text, nvml=rc)
"""
    a = Child(b, code, armed=state(error=999, error_init=100, nvml_error=15)).answer()
    return f"{a['text']} (NVML {a.get('nvml')})", "it works" not in a["text"] and a.get("nvml") == 15


@case("memory limit", "OutOfMemoryError, and mem_get_info tells the same")
def memory(b):
    code = TORCH + """
free, total = torch.cuda.mem_get_info(); used = total - free; ready()
free, total = torch.cuda.mem_get_info()
try: torch.empty(4 << 30, dtype=torch.uint8, device="cuda"); text = "4 GiB were given"
except Exception as e: text = type(e).__name__
torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
say(text=text, total=total, free=free)
"""
    c, limit = Child(b, code), 3 << 30
    c.arm(state(mem_limit=limit))
    a = c.answer()
    return f"{a['text']}, total {a.get('total', 0) >> 20} MiB", a["text"] == "OutOfMemoryError" and a.get("total") == limit


@case("all devices hidden", "torch.cuda.is_available() is False")
def hidden(b):
    a = Child(b, TORCH + "say(text=str(torch.cuda.is_available()))", armed=state(hide=2**64 - 1)).answer()
    return a["text"], a["text"] == "False"


@case("CUDA graph, armed while it is captured", "the capture ends well, a replay fails")
def graph(b):
    code = TORCH + """
a = torch.ones(64, device="cuda"); s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s): a.add_(1)
torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(g):
        a.add_(1); ready(); a.add_(1)
    text = "captured"
    end = time.time() + 10
    while time.time() < end: g.replay(); torch.cuda.synchronize(); time.sleep(0.01)
except Exception as e: text += "; " + str(e).splitlines()[0]
say(text=text)
"""
    c = Child(b, code)
    c.arm(state(error=719, classes=LAUNCH, surface=NEXT_SYNC))
    seen = c.answer()["text"]
    return seen, seen.startswith("captured; ") and "unspecified launch failure" in seen


@case("DataLoader with forked workers", "all batches, no worker dies")
def fork(b):
    code = TORCH + """
from torch.utils.data import DataLoader, TensorDataset
torch.zeros(1, device="cuda")
batches = sum(1 for (x,) in DataLoader(TensorDataset(torch.arange(64.)), batch_size=4, num_workers=4) if x.cuda().sum() >= 0)
say(text=f"{batches} batches")
"""
    a = Child(b, code).answer()
    return a["text"], a["text"] == "16 batches"


@case("latency of 5 ms on launches", "100 launches take 0.5 s longer")
def latency(b):
    code = TORCH + """
a = torch.ones(8, device="cuda"); torch.cuda.synchronize(); ready(); t = time.time()
for _ in range(100): a.add_(1)
torch.cuda.synchronize(); say(text=f"{time.time() - t:.2f} s", took=time.time() - t)
"""
    c = Child(b, code)
    c.arm(state(latency_us=5000, latency_classes=LAUNCH, classes=LAUNCH))
    a = c.answer()
    return a["text"], 0.5 <= a.get("took", 0) < 2


@case("bit flips in copies to the host", "as many copies differ as the shim says")
def corrupt(b):
    code = TORCH + """
a = torch.zeros(4096, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize(); ready()
say(text="", differ=sum(int(a.cpu().any()) for _ in range(200)))
"""
    c = Child(b, code)
    c.arm(state(corrupt=0.1, classes=COPY))
    out, err = c.process.communicate(timeout=120)
    differ = json.loads(out.splitlines()[-1])["differ"]
    return f"{differ} of 200 copies", 5 <= differ <= 40


@case("expired", "a new process works")
def expired(b):
    a = Child(b, TORCH + "torch.zeros(1, device='cuda'); say(text='it works')", armed=state(error=999, error_init=100, expires=time.time() - 1)).answer()
    return a["text"], a["text"] == "it works"


@case("driver API: running process, cuMemAlloc fails with 214 and then everything does", "214, 214, healed 0", torch=False)
def driver_sticky(b):
    c = Child(b, DRIVER + "init(); alloc(1024); ready()\n"
              "first = until(lambda: alloc(1024)); then = cu.cuCtxSynchronize(); ready()\nsay(text=f'{first}, {then}, healed {until(lambda: alloc(1024), lambda rc: rc == 0)}')")
    c.arm(state(error=214))
    c.arm(state(armed=False))
    seen = c.answer()["text"]
    return seen, seen == "214, 214, healed 0"


@case("driver API: new process", "cuInit 100", torch=False)
def driver_new(b):
    a = Child(b, DRIVER + "say(text=f'cuInit {cu.cuInit(0)}')", armed=state(error=999, error_init=100)).answer()
    return a["text"], a["text"] == "cuInit 100"


@case("driver API: memory limit", "cuMemGetInfo and cuMemAlloc agree", torch=False)
def driver_memory(b):
    c = Child(b, DRIVER + "init(); ready()\n"
              "until(lambda: cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) or total.value, lambda t: t == 1 << 30)\n"
              "say(text=f'total {total.value >> 20} MiB, more than free: {alloc(free.value + 1)}, half of it: {alloc(free.value // 2)}')")
    c.arm(state(mem_limit=1 << 30))
    seen = c.answer()["text"]
    return seen, seen == "total 1024 MiB, more than free: 2, half of it: 0"


def versions():
    """A line about the machine: GPU, driver, PyTorch."""
    lines = []
    for command in (["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], [sys.executable, "-c", "import torch; print('PyTorch', torch.__version__, 'CUDA', torch.version.cuda)"]):
        try:
            lines.append(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip().splitlines()[0])
        except (OSError, IndexError):
            lines.append(f"no {command[0] if len(command) == 3 and command[0] == 'nvidia-smi' else 'PyTorch'}")
    return ", ".join([time.strftime("%Y-%m-%d"), platform.machine(), f"Python {platform.python_version()}"] + lines)


def main():
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="only the rows that use the driver directly")
    parser.add_argument("--shim", default=os.path.join(ROOT, "cudafault", "lib", platform.machine(), "libgpufault.so"))
    args = parser.parse_args()
    if not os.path.exists(args.shim):
        parser.error(f"{args.shim} is not there: give the shim with --shim")
    print(versions(), "\n\n| what | wanted | seen | |\n|---|---|---|---|", sep="")
    wrong = rows = 0
    with tempfile.TemporaryDirectory(prefix="gpu-fault-") as folder:
        for name, wants, torch, run in CASES:
            if torch and args.no_torch:
                continue
            try:
                seen, ok = run(Bench(folder, args.shim))
            except Exception as e:  # a row that breaks must not hide the others
                seen, ok = f"{type(e).__name__}: {e}", False
            rows, wrong = rows + 1, wrong + (not ok)
            print(f"| {name} | {wants} | {str(seen).replace('|', '/')} | {'ok' if ok else 'NO'} |", flush=True)
    print(f"\n{rows - wrong} of {rows} as wanted")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
