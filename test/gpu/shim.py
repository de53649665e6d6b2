"""The shim's state file and its processes file, and programs that run with the shim preloaded."""

import csv
import json
import os
import re
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Classes of functions and flags, as in cudafault/shim/state.h.
CLASSES = {name: 1 << i for i, name in enumerate(
    "init device context module alloc free copy set launch sync query event stream peer ipc capture".split())}
DEVICE_WORK = sum(CLASSES[name] for name in ("alloc", "copy", "set", "launch", "sync", "query", "event"))
LAUNCH, COPY = CLASSES["launch"], CLASSES["copy"]
ALL = 2**64 - 1  # devices
STICKY = 1
CALL, NEXT_SYNC = 0, 1


def state(armed=True, expires=0.0, **fields):
    """The bytes of a state file (cudafault/state.go). Times are in seconds, as time.time()."""
    f = dict(process=b"", rank=-1, devices=0, function=b"", classes=DEVICE_WORK, surface=CALL, after_calls=0, every=0, probability=0.0, flags=STICKY,
             seed=1, max=0, after_ms=0, window_from=0, window_to=0, error=0, error_init=0, nvml_error=0, error_fallback=0, error_min_driver=0,
             latency_us=0, jitter_us=0, latency_classes=0, mem_limit=0, hide=0, corrupt=0.0, hang_classes=0, nvml_init_error=0, nvml_xid=0, nvml_ecc=0,
             nvml_rows=0)
    unknown = set(fields) - set(f)
    if unknown:
        raise ValueError(f"no such field: {unknown}")
    f.update(fields)
    share = lambda p: min(int(p * 2**32), 2**32 - 1)
    head = struct.pack("<8sII", b"GPUFAULT", 1, 1024)
    body = struct.pack("<Qqq32s64siIQ", time.time_ns(), int(time.time() * 1000) if armed else 0, int(expires * 1000), b"gpu-test", f["process"],
                       f["rank"], 0, f["devices"]) + bytes(512)
    body += struct.pack("<64sIIQQIIQQqqqiiiiiIIIQQIIiIII", f["function"], f["classes"], f["surface"], f["after_calls"], f["every"], share(f["probability"]),
                        f["flags"], f["seed"], f["max"], f["after_ms"], f["window_from"], f["window_to"], f["error"], f["error_init"], f["nvml_error"],
                        f["error_fallback"], f["error_min_driver"], f["latency_us"], f["jitter_us"], f["latency_classes"], f["mem_limit"], f["hide"],
                        share(f["corrupt"]), f["hang_classes"], f["nvml_init_error"], f["nvml_xid"], f["nvml_ecc"], f["nvml_rows"])
    body = body.ljust(1024 - 24, b"\0")
    return head + struct.pack("<Q", fnv(head + bytes(8) + body)) + body


def fnv(data):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h



def profiles():
    """The rows of cudafault/profiles.tsv by name: what the tool makes programs see after an XID."""
    with open(os.path.join(ROOT, "cudafault", "profiles.tsv")) as f:
        rows = csv.DictReader((line for line in f if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["name"]: {k: "" if v == "-" else v for k, v in row.items()} for row in rows}


def of_profile(row, **changes):
    """The state of a profile, as cudafault/fault.go makes it; waits are cut to a second."""
    number = lambda column: int(row[column] or 0)
    classes = lambda column: sum(CLASSES[name] for name in row[column].split(",") if name)
    values = row["nvml_values"].split(",")
    fields = dict(
        classes=classes("classes") or DEVICE_WORK, surface=NEXT_SYNC if row["surface"] == "sync" else CALL, flags=STICKY if row["sticky"] == "yes" else 0,
        error=number("running"), error_init=number("new"), nvml_error=number("nvml"), nvml_init_error=number("nvml_init"),
        error_fallback=number("fallback"), error_min_driver=number("min_driver"), latency_us=1000000 if row["latency"] else 0,
        latency_classes=classes("latency_classes"), hang_classes=classes("hang"), nvml_xid=int(row["name"]) if row["nvml_event"] == "yes" else 0,
        nvml_ecc="ecc" in values, nvml_rows=sum(1 << i for i, name in enumerate(("remapped", "pending", "failed")) if name in values))
    return state(**{**fields, **changes})


class Child:
    """A program with the shim preloaded: Python code, or a command. Its output is read up to "ready" by arm, and to its end by answer."""

    def __init__(self, bench, code="", command=None, preload=True, armed=None, keep=False):
        """armed: the state it starts with; keep: the one that is there, with what other processes have noted."""
        self.bench = bench
        if not keep:
            bench.write(armed or state(armed=False), forget=True)
        env = dict(os.environ, GPU_FAULT_STATE=bench.state, GPU_FAULT_RUN=bench.processes, XLA_PYTHON_CLIENT_PREALLOCATE="false")
        if preload:
            env["LD_PRELOAD"] = bench.shim
        if command is None:
            path = os.path.join(bench.folder, f"child{len(os.listdir(bench.folder))}.py")  # a file: Triton reads its source
            with open(path, "w") as f:
                f.write(code)
            command = [sys.executable, path]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self):
        return self.process.stdout.readline().strip()

    def arm(self, content, forget=True):
        """Waits until the child is ready, arms the shim and lets the child go on."""
        first = self.line()
        while first and first != "ready" and self.process.poll() is None:
            first = self.line()
        if first != "ready":
            raise RuntimeError(f"the child said {first!r}: {self.process.stderr.read()[-500:]}")
        self.bench.write(content, forget)
        time.sleep(1.1)  # the shim looks four times a second: this is about what happens after
        self.go()

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self, timeout=90):
        """Its last line of JSON; or its last words."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return {"text": f"hung for {timeout} s"}
        for line in reversed(out.splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        said = [line for line in (out + "\n" + err).splitlines() if line.strip() and not line.startswith("gpu-fault:")]
        return {"text": f"exit {self.process.returncode}: {said[-1] if said else 'nothing said'}"}


class Bench:
    """A folder with the two files, for the processes of one row."""

    def __init__(self, folder, shim):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.shim = folder, shim
        self.state = os.path.join(folder, "state")
        self.processes = os.path.join(folder, "processes")

    def write(self, content, forget=False):
        if forget and os.path.exists(self.processes):
            os.remove(self.processes)
        with open(self.state + ".new", "wb") as f:
            f.write(content)
        os.replace(self.state + ".new", self.state)

    def report(self):
        """The paths by which the first process has reached the shim, and its number of hooks."""
        with open(self.processes, "rb") as f:
            slot = f.read()[128:384]
        paths, hooks = struct.unpack_from("<II", slot, 36)
        names = ("linked", "dlsym", "cuGetProcAddress", "audit", "nvml", "runtime")
        return [n for i, n in enumerate(names) if paths >> i & 1], hooks


def image():
    """The PTX of cudafault/probe/image.h."""
    with open(os.path.join(ROOT, "cudafault", "probe", "image.h")) as f:
        return "".join(line + "\n" for line in re.findall(r'^\t"(.*)\\n"', f.read(), re.M))
