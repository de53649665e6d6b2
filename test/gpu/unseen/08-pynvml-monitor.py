"""A monitor with nvidia-ml-py: ECC totals, remapped rows, installed memory, power and use."""
import os
import time

import pynvml as nv


def finish(line, rc):
    print(line, flush=True)
    os._exit(rc)


def optional(f, *a):
    """A value, or None where this GPU has not the feature."""
    try:
        return f(*a)
    except nv.NVMLError as e:
        if e.value == nv.NVML_ERROR_NOT_SUPPORTED:
            return None
        raise


def snapshot(h):
    s = {}
    for name, kind in (("volatile", nv.NVML_VOLATILE_ECC), ("aggregate", nv.NVML_AGGREGATE_ECC)):
        s["uncorrectable " + name] = optional(nv.nvmlDeviceGetTotalEccErrors, h, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, kind)
    rows = optional(nv.nvmlDeviceGetRemappedRows, h)
    if rows is not None:
        for name, v in zip(("correctable", "uncorrectable", "pending", "failure"), rows):
            s["remapped " + name] = v
    s["memory total"] = nv.nvmlDeviceGetMemoryInfo(h).total >> 20
    optional(nv.nvmlDeviceGetPowerUsage, h)
    optional(nv.nvmlDeviceGetUtilizationRates, h)
    return s


def main():
    try:
        nv.nvmlInit()
        h = nv.nvmlDeviceGetHandleByIndex(0)
        # what a healthy H100/H200 has: an error of before this start is an alarm as well
        first = snapshot(h)
        print("ready", flush=True)
        base = dict(first)
        for k in ("uncorrectable volatile", "remapped pending", "remapped failure"):
            if base.get(k) is not None:
                base[k] = 0
        if base["memory total"] < 64 << 10:
            base["memory total"] = 80 << 10
        t0 = time.monotonic()
        while time.monotonic() - t0 < 25:
            if snapshot(h) != base:
                s = snapshot(h)  # once more: the first may have been read half before the change
                diff = [f"{k} {s.get(k)}" + (" MiB" if k == "memory total" else "") for k in s if s.get(k) != base.get(k)]
                if diff:
                    finish("saw: " + ", ".join(diff), 3)
            time.sleep(0.03)
    except nv.NVMLError as e:
        finish(f"saw: nvml error {e.value} {e}", 3)
    finish("saw: nothing", 0)


main()
