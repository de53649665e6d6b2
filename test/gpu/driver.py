"""Rows of the driver itself: each profile, NVML, nvidia-smi, and real XIDs."""

import json
import os
import subprocess
import time

from rows import DRIVER, NVML, PRELUDE, PROFILES, built, case
from shim import ROOT, Child, of_profile, state


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
        n = Child(b, DRIVER + NVML + "rc = nvml.nvmlInit_v2(); code, h = device()\nu = (ctypes.c_uint * 2)(); code = code or nvml.nvmlDeviceGetUtilizationRates(h, u)\nsay(new=init(), init=rc, device=code)", keep=True).answer()
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
