"""What the rows of fidelity.py share: the list of them, what a child process begins with, and the program that nvcc builds."""

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading

from shim import ROOT, image, profiles

PROFILES = profiles()

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
    if needs in ("gcc", "g++"):
        return bool(shutil.which(needs))
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


building = threading.Lock()  # side by side, rows would build the same


def built(cudart):
    with building:
        return program(cudart)
