"""JAX in a child process under a supervisor: the supervisor reports the child's exception, or what it wrote before an abort, or a hang."""
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

CUDA = re.compile(r"(CUDA_ERROR_\w+[^\n\"]{0,120}|RESOURCE_EXHAUSTED[^\n]{0,120})")


def child():
    try:
        import jax
        import jax.numpy as jnp

        dev = jax.devices("gpu")[0]

        @jax.jit
        def step(x):
            return jnp.tanh(x * 0.5 + 1.0) - 0.25

        x = jax.device_put(jnp.arange(1 << 20, dtype=jnp.float32), dev)
        fill = jax.jit(lambda v: jnp.full((64 << 20,), v, dtype=jnp.float32))
        held, n = [], 0
        while True:
            x = step(x)
            x.block_until_ready()
            print("step", flush=True)
            n += 1
            if n > 4 and n % 4 == 0:
                if len(held) >= 12:
                    for h in held:
                        h.delete()
                    held.clear()
                h = fill(float(n))
                h.block_until_ready()
                held.append(h)
            time.sleep(0.03)
    except BaseException as e:
        t = " ".join(str(e).split())
        m = CUDA.search(str(e))
        if m and m.group(1)[:60] not in t[:300]:
            t = m.group(1) + " : " + t
        print(f"error {type(e).__name__} {t[:600]}", flush=True)
        os._exit(3)


def main():
    env = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false", JAX_PLATFORMS="cuda")
    err = tempfile.TemporaryFile()
    p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "child"], stdout=subprocess.PIPE, stderr=err, env=env)
    st = {"steps": 0, "last": time.monotonic(), "error": None, "eof": False}

    def pump():
        for raw in p.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line == "step":
                st["steps"] += 1
                st["last"] = time.monotonic()
            elif line.startswith("error "):
                st["error"] = line[6:]
        st["eof"] = True

    threading.Thread(target=pump, daemon=True).start()
    t0, ready, line = time.monotonic(), False, None
    while True:
        time.sleep(0.02)
        now = time.monotonic()
        if st["steps"] and not ready:
            ready, t0 = True, now
            print("ready", flush=True)
        if st["error"]:
            line = "saw: " + st["error"]
        elif st["eof"]:
            rc = p.wait()
            err.seek(0)
            text = err.read().decode(errors="replace")
            m = CUDA.search(text)
            line = f"saw: child ended {rc} " + (m.group(1) if m else " ".join(text[-300:].split()))
            if st["error"]:
                line = "saw: " + st["error"]
        elif ready and now - st["last"] > 10:
            line = "saw: hang no step for 10 s"
        elif not ready and now - t0 > 90:
            line = "saw: hang no first step in 90 s"
        elif ready and now - t0 > 25:
            break
        if line:
            break
    print(line or "saw: nothing", flush=True)
    p.kill()
    os._exit(3 if line else 0)


child() if sys.argv[1:] == ["child"] else main()
