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
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
import time

import applications  # noqa: F401 - each module registers its rows
import costs  # noqa: F401
import driver  # noqa: F401
import others  # noqa: F401
from rows import CASES, has
from shim import ROOT, Bench


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
