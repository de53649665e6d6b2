"""Rows of programs that others wrote who knew only NVIDIA's documentation: a program, a fault, and what its last line must be."""

import functools
import os
import re
import subprocess
import sys
import tempfile

from rows import PROFILES, building, case
from shim import ROOT, Child, of_profile, state

UNSEEN = os.path.join(ROOT, "test", "gpu", "unseen")
MODULES = {"01": "nvcc", "02": "g++", "07": "gcc", "09": "g++", "04": "torch", "05": "cupy", "06": "jax", "10": "cuda.bindings", "08": "pynvml"}


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
