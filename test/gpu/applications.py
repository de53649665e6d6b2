"""Rows of applications: PyTorch and other stacks, programs of nvcc, profilers beside the shim."""

import shutil
import time

from rows import DRIVER, NVML, PRELUDE, PROFILES, TORCH, built, case
from shim import ALL, COPY, LAUNCH, NEXT_SYNC, Child, of_profile, state

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
