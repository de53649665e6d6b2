#!/usr/bin/env python3
"""What real programs see when the shim is armed, and what a real driver says after a real XID: run it on a machine with a GPU.

It needs python3 and the built shim (cudafault/lib); a row for PyTorch, CuPy, JAX, numba, Triton, cuda-python or nvcc is left out, and said to be,
where that is missing. Nothing is installed or changed. Each row is a process of its own with the shim preloaded. It prints a table in Markdown, for
docs/fidelity.md, and exits 1 when a row is not as wanted.

    python3 test/gpu/fidelity.py                 # everything
    python3 test/gpu/fidelity.py --only driver   # only rows that begin so: those of the driver also on the fake one
"""

import argparse
import concurrent.futures
import functools
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

from shim import ALL, COPY, LAUNCH, NEXT_SYNC, ROOT, Bench, Child, image, of_profile, profiles, state

# What every child can use. `ready` waits until the parent has armed the shim.
PRELUDE = """
import ctypes, json, os, sys, time
def say(**answer): print(json.dumps(answer), flush=True)
def ready(): print("ready", flush=True); sys.stdin.readline()
def words(e): return type(e).__name__ + ": " + (str(e).strip().splitlines() or [""])[0]
def until_it_fails(step, seconds=20):
    end = time.time() + seconds
    try:
        while time.time() < end: step(); time.sleep(0.01)
        say(text="nothing happened")
    except BaseException as e: say(text=words(e))
"""
TORCH = PRELUDE + "import torch\n"
DRIVER = PRELUDE + """
cu, IMAGE = ctypes.CDLL("libcuda.so.1"), b'''""" + image() + """'''
dev, ctx, ptr, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
module, kernel, stream, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(64)
def init():
    for rc in (cu.cuInit(0), cu.cuDeviceGet(ctypes.byref(dev), 0), cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), dev), cu.cuCtxSetCurrent(ctx),
               cu.cuModuleLoadData(ctypes.byref(module), IMAGE), cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"noop"),
               cu.cuStreamCreate(ctypes.byref(stream), 1), cu.cuMemAlloc_v2(ctypes.byref(ptr), ctypes.c_size_t(64))):
        if rc: return rc
    return 0
def launch(): return cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
def sync(): return cu.cuCtxSynchronize()
def copy(): return cu.cuMemcpyDtoH_v2(host, ptr, ctypes.c_size_t(64))
def alloc(size):
    p = ctypes.c_uint64()
    return cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(size)) or cu.cuMemFree_v2(p)
def until(call, wanted=lambda rc: rc != 0, seconds=10):
    end = time.time() + seconds
    while True:
        rc = call()
        if wanted(rc) or time.time() > end: return rc
        time.sleep(0.02)
"""
NVML = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Field(ctypes.Structure): _fields_ = [("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("stamp", ctypes.c_longlong), ("took", ctypes.c_longlong),
                                           ("type", ctypes.c_uint), ("code", ctypes.c_uint), ("value", ctypes.c_ulonglong)]
class Event(ctypes.Structure): _fields_ = [("device", ctypes.c_void_p), ("type", ctypes.c_ulonglong), ("data", ctypes.c_ulonglong),
                                           ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
def device():
    h = ctypes.c_void_p()
    return nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h)), h
def counters(h):
    total, kinds = ctypes.c_ulonglong(), [ctypes.c_uint() for _ in range(4)]
    codes = [nvml.nvmlDeviceGetTotalEccErrors(h, 1, 0, ctypes.byref(total))]
    codes.append(nvml.nvmlDeviceGetRemappedRows(h, *map(ctypes.byref, kinds)))
    fields = (Field * 4)(*(Field(id=i) for i in (4, 143, 144, 145)))  # ECC_DBE_VOL_TOTAL, REMAPPED_UNC, REMAPPED_PENDING, REMAPPED_FAILURE
    codes.append(nvml.nvmlDeviceGetFieldValues(h, 4, fields))
    return dict(codes=codes, ecc=total.value, rows=[k.value for k in kinds], fields=[(f.code, f.value) for f in fields])
"""

# A training loop, until something goes wrong; the text is what people find in their logs.
STACKS = {
    "torch": ("torch", 'a = torch.randn(256, 256, device="cuda"); a = torch.tanh(a @ a); torch.cuda.synchronize(); ready()\n'
              "def step(): global a; a = torch.tanh(a @ a); torch.cuda.synchronize()\n"),
    "torch, pinned copies": ("torch", 'p = torch.ones(4096).pin_memory(); p.to("cuda", non_blocking=True); torch.cuda.synchronize(); ready()\n'
                             'def step(): p.to("cuda", non_blocking=True).sum().item()\n'),
    "torch.compile": ("torch", "f = torch.compile(lambda a: torch.tanh(a) * 2 + 1)\na = torch.randn(4096, device='cuda'); f(a).sum().item(); ready()\n"
                      "def step(): f(a).sum().item()\n"),
    "NCCL, one rank": ("torch", "import torch.distributed as d\nos.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(20000 + os.getpid() % 20000))\n"
                       "d.init_process_group('nccl', rank=0, world_size=1); a = torch.ones(1024, device='cuda'); b = torch.ones_like(a)\n"
                       "d.all_gather_into_tensor(b, a); torch.cuda.synchronize(); ready()\n"
                       "def step(): d.all_gather_into_tensor(b, a); torch.cuda.synchronize()\n"),
    "transformers, a training step": ("transformers", "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
                                      "m = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=128)).cuda(); o = torch.optim.AdamW(m.parameters())\n"
                                      "x = torch.randint(0, 128, (2, 32), device='cuda')\n"
                                      "def step(): m(x, labels=x).loss.backward(); o.step(); o.zero_grad(); torch.cuda.synchronize()\nstep(); ready()\n"),
    "CuPy": ("cupy", "a = cupy.ones((256, 256), dtype='f4'); (a @ a).sum().get(); ready()\ndef step(): cupy.tanh(a @ a).sum().get()\n"),
    "JAX": ("jax", "import jax.numpy as jnp\nf = jax.jit(lambda a: jnp.tanh(a @ a)); a = jnp.ones((256, 256)); f(a).block_until_ready(); ready()\n"
            "def step(): f(a).block_until_ready()\n"),
    "numba": ("numba", "import numpy\nnumpy.row_stack = numpy.vstack  # which this numba still asks for\nfrom numba import cuda\n@cuda.jit\ndef f(a): a[cuda.grid(1)] += 1\n"
              "a = cuda.to_device(numpy.zeros(256)); f[1, 256](a); cuda.synchronize(); ready()\ndef step(): f[1, 256](a); cuda.synchronize()\n"),
    "Triton": ("triton", "import torch, triton.language as tl\n@triton.jit\ndef f(p): tl.store(p + tl.program_id(0), 1.0)\n"
               "a = torch.zeros(64, device='cuda'); f[(64,)](a); torch.cuda.synchronize(); ready()\ndef step(): f[(64,)](a); torch.cuda.synchronize()\n"),
    "cuda-python": ("cuda.bindings", "from cuda.bindings import driver as d\n"
                    "def ok(r):\n    if r[0] != 0: raise RuntimeError(d.cuGetErrorName(r[0])[1].decode())\n    return r[1:]\n"
                    "ok(d.cuInit(0)); g, = ok(d.cuDeviceGet(0)); c, = ok(d.cuDevicePrimaryCtxRetain(g)); ok(d.cuCtxSetCurrent(c))\n"
                    "m, = ok(d.cuModuleLoadData(IMAGE)); k, = ok(d.cuModuleGetFunction(m, b'noop')); ready()\n"
                    "def step(): ok(d.cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())\n"),
}

CASES = []


def case(name, wants, needs="", alone=False):
    """Registers a row: the function returns what was seen, and whether it is what was wanted. needs: a Python module, or nvcc; alone: it measures."""
    def add(run):
        CASES.append((name, wants, needs, alone, run))
        return run
    return add


def has(needs):
    if needs == "nvcc":
        return bool(shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"))
    try:
        return not needs or importlib.util.find_spec(needs) is not None
    except ModuleNotFoundError:
        return False


@functools.lru_cache(maxsize=None)
def program(cudart):
    """The program of program.cu with a static or a shared cudart, built once."""
    path = os.path.join(tempfile.mkdtemp(prefix="gpu-fault-nvcc-"), "program")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, "-O2", "-arch=native", "-cudart", cudart, "-o", path, os.path.join(ROOT, "test", "gpu", "program.cu")], check=True)
    return path


building = threading.Lock()


def built(cudart):
    with building:
        return program(cudart)


def spread(times):
    """The median of some processes' figures, and how far they are apart."""
    times = sorted(times)
    return times[len(times) // 2], times[-1] - times[0]


def compared(what, ways, unit):
    """ways: the figures of the processes of each way; the first is without the shim. Less than their spread cannot be told from nothing."""
    (bare, apart), text, good = spread(ways["without"]), [], True
    for way, times in ways.items():
        if way != "without":
            more = spread(times)[0] - bare
            text.append(f"{way} {more:+.2f}")
            good = good and more <= max(0.01 * bare, apart)
    return f"{what} {bare:.2f} {unit} (processes differ by {apart:.2f}): {', '.join(text)}", good


WAYS = {"without": None, "idle": state(armed=False), "armed": state(error=214, after_calls=10**12, classes=LAUNCH)}


@case("cost: PyTorch, 20,000 small operations", "no more than 1 %, or than processes differ without the shim", "torch", alone=True)
def overhead(b):
    code = TORCH + """
a = torch.ones(8, device="cuda"); times = []
for _ in range(9):
    torch.cuda.synchronize(); t = time.perf_counter()
    for _ in range(20000): a.add_(1)
    torch.cuda.synchronize(); times.append(time.perf_counter() - t)
say(took=sorted(times)[2] / 20000 * 1e6)
"""
    found = {way: [] for way in WAYS}
    for _ in range(3):
        for way, content in WAYS.items():
            found[way].append(Child(b, code, preload=way != "without", armed=content).answer()["took"])
    return compared("an operation", found, "us")


for cudart in ("static", "shared"):
    @case(f"cost: launches, and cudaMallocAsync with cudaFreeAsync, {cudart} cudart", "no more than 1 %, or than processes differ without the shim", "nvcc", alone=True)
    def cost(b, cudart=cudart):
        found = {what: {way: [] for way in WAYS} for what in ("launch", "allocation")}
        for _ in range(5):
            for way, content in WAYS.items():
                a = Child(b, command=[built(cudart), "cost"], preload=way != "without", armed=content).answer()
                for what in found:
                    found[what][way].append(a[what])
        texts, good = zip(*(compared(what, ways, "ns") for what, ways in found.items()))
        return "; ".join(texts), all(good)


@case("torch: the shim is reached", "by cuGetProcAddress", "torch")
def reached(b):
    text = Child(b, TORCH + "torch.zeros(1, device='cuda'); torch.cuda.synchronize(); say(text='ok')").answer()["text"]
    if text != "ok":
        return text, False
    paths, hooks = b.report()
    return f"{', '.join(paths)}; {hooks} hooks", "cuGetProcAddress" in paths


def training(title, stack, text, content):
    needs, code = STACKS[stack]

    @case(title, f"...{text}...", needs)
    def run(b):
        c = Child(b, (DRIVER if stack == "cuda-python" else PRELUDE) + (f"import {needs}\n" if needs != "numba" else "") + code + "until_it_fails(step)\n")
        c.arm(content)
        seen = c.answer()["text"]
        return seen, text in seen and "nothing happened" not in seen


PROFILES = profiles()
for xid, text in {"13": "unspecified launch failure", "31": "an illegal memory access was encountered", "48": "uncorrectable ECC error encountered",
                  "74": "uncorrectable NVLink error detected", "94": "a hardware error", "109": "unspecified launch failure"}.items():
    training(f"torch: XID {xid}, running", "torch", text, of_profile(PROFILES[xid]))
training("torch: XID 79, running", "torch", "CUBLAS_STATUS_EXECUTION_FAILED", of_profile(PROFILES["79"]))  # the call that fails is cuBLAS's
for name in STACKS:
    if name != "torch":  # the words differ by stack, and are shown
        training(f"stacks: {name}, XID 48, running", name, "", of_profile(PROFILES["48"]))
        training(f"stacks: {name}, XID 79, running", name, "", of_profile(PROFILES["79"]))
for cudart in ("static", "shared"):
    for xid, text in {"31": "700", "48": "214", "79": "999"}.items():
        @case(f"nvcc: {cudart} cudart, XID {xid}, running", f"...{text}...", "nvcc")
        def compiled(b, cudart=cudart, xid=xid, text=text):
            c = Child(b, command=[built(cudart), "work"])
            c.arm(of_profile(PROFILES[xid]))
            seen = c.answer()["text"]
            return seen, text in seen


@case("torch: XID 79, new process", "no GPU for PyTorch; NVML: GPU is lost", "torch")
def new_process(b):
    code = TORCH + NVML + """
nvml.nvmlInit_v2(); rc, h = device()
try: torch.zeros(1, device="cuda"); text = "it works"
except Exception as e: text = words(e)
say(text=text, nvml=rc)
"""
    a = Child(b, code, armed=state(error=999, error_init=100, nvml_error=15)).answer()
    return f"{a['text']} (NVML {a.get('nvml')})", "it works" not in a["text"] and a.get("nvml") == 15


def of_the_profile(name, row):
    """Each profile at the driver: a running process, a new one, NVML."""
    number = lambda column: int(row[column] or 0)
    works = dict(running=number("running"), then=number("running") if row["sticky"] == "yes" else 0, new=number("new"), init=number("nvml_init"),
                 device=number("nvml"))

    @case(f"driver: {'XID ' if name.isdigit() else ''}{name}", ", ".join(f"{k} {v}" for k, v in works.items()))
    def run(b):
        c = Child(b, DRIVER + "version = ctypes.c_int(); rc = init(); cu.cuDriverGetVersion(ctypes.byref(version)); ready()\n"
                  "def step(): return launch() or copy() or sync() or alloc(1024)\n"
                  f"first = until(step, seconds={8 if works['running'] else 2}) if rc == 0 else f'init {{rc}}'\n"
                  "then = sync(); ready()\nsay(running=first, then=then, healed=until(lambda: launch() or sync(), lambda rc: rc == 0), version=version.value)")
        c.arm(of_profile(row))
        if c.line() != "ready":
            return c.answer()["text"], False
        n = Child(b, DRIVER + NVML + "rc = nvml.nvmlInit_v2(); code, h = device()\nm = (ctypes.c_ulonglong * 3)(); code = code or nvml.nvmlDeviceGetMemoryInfo(h, m)\nsay(new=init(), init=rc, device=code)", keep=True).answer()
        b.write(state(armed=False))
        time.sleep(0.6)
        c.go()
        a = c.answer()
        wanted = dict(works, healed=0)
        if row["min_driver"] and a.get("version", 0) < number("min_driver"):
            wanted["running"] = wanted["then"] = number("fallback")
        if works["init"]:
            wanted["device"] = 1  # uninitialized: what NVML itself says then
        seen = {k: {**a, **n}.get(k, a.get("text", "?")) for k in wanted}
        return ", ".join(f"{k} {v}" for k, v in seen.items()), seen == wanted


def counted(name, row):
    """What NVML's readers see of a profile: the event, and the counters."""
    wants_event = row["nvml_event"] == "yes"
    ecc, rows = "ecc" in row["nvml_values"].split(","), [word in row["nvml_values"] for word in ("remapped", "pending", "failed")]

    @case(f"NVML: XID {name}", ("event " + name if wants_event else "no event") + f", uncorrectable +{ecc:d}, rows remapped, pending, failed "
          + ", ".join(f"+{r:d}" for r in rows))
    def run(b):
        c = Child(b, PRELUDE + NVML + """
nvml.nvmlInit_v2(); rc, h = device(); events = ctypes.c_void_p(); e = Event()
rc = rc or nvml.nvmlEventSetCreate(ctypes.byref(events)) or nvml.nvmlDeviceRegisterEvents(h, ctypes.c_ulonglong(8), events)
before = counters(h); ready()
code = nvml.nvmlEventSetWait_v2(events, ctypes.byref(e), 2500); after = counters(h)
say(register=rc, code=code, event=e.data, type=e.type, gi=e.gi, before=before, after=after)
""")
        c.arm(of_profile(row))
        a = c.answer()
        if "code" not in a:
            return a["text"], False
        rises = lambda f: f(a["after"]) - f(a["before"])
        got = [rises(lambda x: x["ecc"]), rises(lambda x: x["rows"][1]), rises(lambda x: x["rows"][2]), rises(lambda x: x["rows"][3])]
        fields = [rises(lambda x, i=i: x["fields"][i][1]) for i in range(4)]
        text = f"{'event %d' % a['event'] if a['code'] == 0 else 'code %d' % a['code']}, counters {got}, fields {fields}"
        if a["register"] or any(a["before"]["codes"]):
            text += f" (registering {a['register']}, counters' codes {a['before']['codes']})"
        want = [int(ecc)] + [int(r) for r in rows]
        event = (a["code"], a["event"]) == (0, int(name)) if wants_event else a["code"] in (10, 15)
        return text, event and got == want and fields == want


for name, row in PROFILES.items():
    if any(row[column] for column in ("running", "new", "nvml", "nvml_init")):
        of_the_profile(name, row)
for name in ("48", "63", "64", "79", "94"):
    counted(name, PROFILES[name])


@case("nvidia-smi: nothing armed", "the same output as without the shim, less what changes by itself")
def smi(b):
    ask = ["nvidia-smi", "--query-gpu=name,uuid,pci.bus_id,driver_version,ecc.errors.uncorrected.volatile.total,remapped_rows.pending", "--format=csv"]
    outs = [Child(b, command=ask, preload=preload).process.communicate(timeout=60)[0] for preload in (True, False)]
    return outs[0].strip().splitlines()[-1] if outs[0].strip() else "nothing", outs[0] == outs[1] != ""


for xid, ask, wanted in (("79", ["-L"], ""), ("79", [], ""), ("48", ["-q", "-d", "ECC"], ""), ("63", ["-q", "-d", "ROW_REMAPPER"], "Pending"),
                         ("driver-mismatch", [], "version mismatch")):
    @case(f"nvidia-smi: {' '.join(ask) or 'no arguments'}, {'XID ' if xid.isdigit() else ''}{xid}", f"...{wanted}..." if wanted else "what it says")
    def smi_armed(b, xid=xid, ask=ask, wanted=wanted):
        out, err = Child(b, command=["nvidia-smi", *ask], armed=of_profile(PROFILES[xid], after_calls=0)).process.communicate(timeout=90)
        lines = [" ".join(line.split()) for line in (out + err).splitlines() if line.strip() and "gpu-fault" not in line]
        keep = [line for line in lines if any(w in line for w in ("ncorrect", "emapp", "Pending", "lost", "GPU 0", "ailed", "ismatch", "Unable", "ERR"))]
        return "; ".join(keep[:6]) or "; ".join(lines[:3]), wanted in out + err


for defect, codes in (("stray", ("700",)), ("trap", ("719",)), ("assert", ("710",)), ("shared", ("719", "700", "715"))):
    @case(f"real XID: a kernel with a defect ({defect})", "error " + " or ".join(codes) + ", for good; an NVML event through the shim; a new process works", "nvcc", alone=True)
    def real(b, defect=defect, codes=codes):
        w = Child(b, PRELUDE + NVML + """
nvml.nvmlInit_v2(); rc, h = device(); events = ctypes.c_void_p(); e = Event(); got = []
nvml.nvmlEventSetCreate(ctypes.byref(events)); nvml.nvmlDeviceRegisterEvents(h, ctypes.c_ulonglong(8), events); ready()
end = time.time() + 6
while time.time() < end:
    if nvml.nvmlEventSetWait_v2(events, ctypes.byref(e), 500) == 0: got.append((e.data, e.gi, e.ci))
say(events=got)
""")
        while w.line() != "ready":
            pass
        w.go()
        p = Child(b, command=[built("static"), defect], keep=True)
        out, _ = p.process.communicate(timeout=60)
        healthy = Child(b, DRIVER + "say(rc=init() or launch() or sync())", keep=True).answer()
        events = w.answer().get("events")
        seen = "; ".join(json.loads(line)["text"] for line in out.splitlines() if line.startswith("{"))
        return f"{seen}; events {events}; new process {healthy.get('rc', healthy)}", any(c in seen for c in codes) and healthy.get("rc") == 0 and bool(events)


@case("real XID: the kernel log", "lines of NVRM, where it may be read")
def kernel_log(b):
    time.sleep(0.1)
    try:
        out = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10).stdout
    except OSError as e:
        return f"not readable: {e}", True
    lines = [line for line in out.splitlines() if "Xid" in line]
    return "; ".join(lines[-4:]) or "readable, without an XID" if out else "not readable", True


@case("torch: memory limit", "OutOfMemoryError, and mem_get_info tells the same", "torch", alone=True)  # what others use counts
def memory(b):
    code = TORCH + """
free, total = torch.cuda.mem_get_info(); ready()
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


@case("torch: all devices hidden", "torch.cuda.is_available() is False", "torch")
def hidden(b):
    a = Child(b, TORCH + "say(text=str(torch.cuda.is_available()))", armed=state(hide=ALL)).answer()
    return a["text"], a["text"] == "False"


@case("torch: CUDA graph, armed while it is captured", "the capture ends well, a replay fails", "torch")
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


@case("torch: DataLoader with forked workers", "all batches, no worker dies", "torch")
def fork(b):
    code = TORCH + """
from torch.utils.data import DataLoader, TensorDataset
torch.zeros(1, device="cuda")
batches = sum(1 for (x,) in DataLoader(TensorDataset(torch.arange(64.)), batch_size=4, num_workers=4) if x.cuda().sum() >= 0)
say(text=f"{batches} batches")
"""
    a = Child(b, code).answer()
    return a["text"], a["text"] == "16 batches"


@case("torch: latency of 5 ms on launches", "100 launches take 0.5 s longer", "torch")
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


@case("torch: bit flips in copies to the host", "about a tenth of the copies differ", "torch")
def corrupt(b):
    code = TORCH + """
a = torch.zeros(4096, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize(); ready()
say(differ=sum(int(a.cpu().any()) for _ in range(200)))
"""
    c = Child(b, code)
    c.arm(state(corrupt=0.1, classes=COPY))
    a = c.answer()
    return f"{a.get('differ', a)} of 200 copies", 5 <= a.get("differ", 0) <= 40


@case("torch: expired", "a new process works", "torch")
def expired(b):
    a = Child(b, TORCH + "torch.zeros(1, device='cuda'); say(text='it works')", armed=state(error=999, error_init=100, expires=time.time() - 1)).answer()
    return a["text"], a["text"] == "it works"


@case("driver: memory limit", "cuMemGetInfo, NVML and every kind of allocation agree", alone=True)
def driver_memory(b):
    c = Child(b, DRIVER + NVML + """
nvml.nvmlInit_v2(); code, h = device(); init(); ready(); m, limit = (ctypes.c_ulonglong * 3)(), 12 << 30
def info(): cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)); return total.value
until(info, lambda t: t == limit); code = nvml.nvmlDeviceGetMemoryInfo(h, m)
kinds = [lambda n: cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n)) or cu.cuMemFree_v2(p),
         lambda n: cu.cuMemAllocAsync(ctypes.byref(p), ctypes.c_size_t(n), stream) or cu.cuMemFreeAsync(p, stream) or sync(),
         lambda n: cu.cuMemAllocPitch_v2(ctypes.byref(p), ctypes.byref(q), ctypes.c_size_t(1 << 20), ctypes.c_size_t(n >> 20), 4) or cu.cuMemFree_v2(p)]
p, q = ctypes.c_uint64(), ctypes.c_size_t()
say(total=total.value - limit, nvml=[code, m[0] - limit, m[0] - m[1] - m[2]], less=[k(free.value - (1 << 30)) for k in kinds], more=[k(limit + (1 << 20)) for k in kinds])
""")
    c.arm(state(mem_limit=12 << 30))
    a = c.answer()
    return a.get("text") or str(a), a == dict(total=0, nvml=[0, 0, 0], less=[0, 0, 0], more=[2, 2, 2])


@case("driver: names and texts of its errors", "those of cudafault/fakecuda/errors.tsv")
def errors(b):
    with open(os.path.join(ROOT, "cudafault", "fakecuda", "errors.tsv")) as f:
        known = [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]
    c = Child(b, DRIVER + "t = ctypes.c_char_p()\ndef text(f, code): t.value = None; f(code, ctypes.byref(t)); return (t.value or b'').decode()\n"
              "say(all={n: (text(cu.cuGetErrorName, n), text(cu.cuGetErrorString, n)) for n in range(1000)})")
    real = {int(n): tuple(v) for n, v in c.answer()["all"].items()}
    known = {int(k[0]): (k[1], k[2]) for k in known}
    wrong = [f"{n}: {' '.join(v)}, here {' '.join(known.get(n, ('unknown',)))}" for n, v in real.items() if v[0] and v != known.get(n)]
    return "; ".join(wrong) or f"{sum(bool(v[0]) for v in real.values())} codes", not wrong


for tool, command in {"compute-sanitizer": ["compute-sanitizer", "--tool", "memcheck"], "ncu": ["ncu", "--clock-control", "none"]}.items():
    @case(f"tools: {tool} beside the shim", "the program's own words, and the same end", "nvcc")
    def tools(b, command=command):
        if not shutil.which(command[0]):
            return "not installed", True
        seen = []
        for preload in (False, True):
            p = Child(b, command=[*command, built("static"), "work"], preload=preload)
            if preload:
                p.arm(of_profile(PROFILES["48"]))
            else:
                p.process.kill()
                p = Child(b, command=[*command, built("static"), "trap"], preload=True)
            seen.append(p.answer()["text"])
        return "unarmed, real trap: " + seen[0] + "; armed, XID 48: " + seen[1], "719" in seen[0] and "214" in seen[1]


# What others wrote who knew only NVIDIA's documentation: a program, a fault, and what its last line must be.
UNSEEN = os.path.join(ROOT, "test", "gpu", "unseen")
MODULES = {"01": "nvcc", "04": "torch", "05": "cupy", "06": "jax", "10": "cuda.bindings", "08": "pynvml"}


@functools.lru_cache(maxsize=None)
def other(name):
    """The command of a program of UNSEEN; the first line of a compiled one says how it is built."""
    file = next(f for f in sorted(os.listdir(UNSEEN)) if f.startswith(name + "."))
    if file.endswith(".py"):
        return [sys.executable, os.path.join(UNSEEN, file)]
    out = os.path.join(tempfile.mkdtemp(prefix="gpu-fault-unseen-"), name)
    with open(os.path.join(UNSEEN, file)) as f:
        command = f.readline().strip("/* \n").replace("%o", out)
    subprocess.run(command, shell=True, check=True, cwd=UNSEEN, capture_output=True)
    return [out]


def unseen(name, fault, pattern):
    @case(f"unseen: {name}, {fault}", pattern, MODULES.get(name[:2], ""))
    def run(b):
        with building:
            command = other(name)
        c = Child(b, command=command)
        first = c.line()
        while first != "ready" and c.process.poll() is None:
            first = c.line()
        if fault == "memory-2GiB":
            b.write(state(mem_limit=2 << 30), forget=True)
        elif fault != "nothing":
            b.write(of_profile(PROFILES[fault]), forget=True)
        try:
            out, err = c.process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            c.process.kill()
            return "it hung", False
        said = [line for line in out.splitlines() if line.startswith("saw:")]
        return said[-1] if said else f"exit {c.process.returncode}, " + (err.strip().splitlines() or ["nothing said"])[-1], bool(said and re.search(pattern, said[-1]))


if os.path.exists(UNSEEN):
    with open(os.path.join(UNSEEN, "truth.tsv")) as f:
        TRUTH = [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]
    for name in sorted({t[0] for t in TRUTH}):
        unseen(name, "nothing", "^saw: nothing$")
    for name, fault, pattern, *_ in TRUTH:
        unseen(name, fault, pattern)


def versions():
    """A line about the machine: GPU, driver, PyTorch."""
    lines = []
    for command in (["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                    [sys.executable, "-c", "import torch; print('PyTorch', torch.__version__, 'CUDA', torch.version.cuda)"]):
        try:
            lines.append(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip().splitlines()[0])
        except (OSError, IndexError):
            lines.append("no nvidia-smi" if command[0] == "nvidia-smi" else "no PyTorch")
    return ", ".join([time.strftime("%Y-%m-%d"), platform.machine(), f"Python {platform.python_version()}"] + lines)


def main():
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the rows whose name begins with what this regular expression matches")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="how many rows run side by side")
    parser.add_argument("--shim", default=os.path.join(ROOT, "cudafault", "lib", platform.machine(), "libgpufault.so"))
    args = parser.parse_args()
    if not os.path.exists(args.shim):
        parser.error(f"{args.shim} is not there: give the shim with --shim")
    print(versions(), "\n\n| what | wanted | seen | |\n|---|---|---|---|", sep="")
    chosen = [c for c in CASES if re.match(args.only, c[0])]
    left_out = sorted({c[2] for c in chosen if not has(c[2])})
    chosen = [c for c in chosen if has(c[2])]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gpu-fault-") as folder, concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        def row(i, run):
            try:
                return run(Bench(os.path.join(folder, str(i)), args.shim))
            except Exception as e:  # a row that breaks must not hide the others
                return f"{type(e).__name__}: {e}", False

        # First, one by one, what measures, and the real XIDs, which the readers of NVML would see.
        measured = {i: row(i, c[4]) for i, c in enumerate(chosen) if c[3]}
        running = {i: pool.submit(row, i, c[4]) for i, c in enumerate(chosen) if not c[3]}
        for i, (name, wants, *_) in enumerate(chosen):
            seen, ok = measured[i] if i in measured else running[i].result()
            wrong += not ok
            print(f"| {name} | {wants} | {str(seen).replace('|', '/')} | {'ok' if ok else 'NO'} |", flush=True)
    if left_out:
        print(f"\nleft out, for want of {', '.join(left_out)}")
    print(f"\n{len(chosen) - wrong} of {len(chosen)} as wanted")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
