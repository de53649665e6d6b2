"""PyTorch: a small training step under torch.compile, and a cache of tensors that grows to 3 GiB and is dropped."""
import os
import sys
import time

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def one(e):
    return type(e).__name__ + " " + (str(e).strip().splitlines() or [""])[0]


def main():
    import torch

    seen = None
    try:
        dev = torch.device("cuda:0")
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).to(dev)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def loss_of(x):
            return (net(x) - x).square().mean()

        x = torch.randn(512, 256, device=dev)
        loss_of(x).backward()
        opt.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        fn = torch.compile(loss_of)
        try:
            fn(x).backward()
            torch.cuda.synchronize()
        except Exception as e:  # no compiler on this machine: eager does as well; a broken GPU fails below again
            print("torch.compile: " + one(e), file=sys.stderr)
            fn = loss_of
        opt.zero_grad(set_to_none=True)
        cache = []
        ready = False
        t0 = time.monotonic()
        step = 0
        while time.monotonic() - t0 < 25:
            loss = fn(x)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            loss.item()
            if not ready:
                ready = True
                print("ready", flush=True)
                t0 = time.monotonic()
            if step % 4 == 3:
                if len(cache) >= 12:
                    cache.clear()
                    torch.cuda.empty_cache()
                cache.append(torch.full((64 << 20,), 1.0, device=dev))
                torch.cuda.synchronize()
            step += 1
            time.sleep(0.03)
    except Exception as e:
        seen = "saw: " + one(e)
        if "out of memory" not in seen:
            try:  # a library (cuBLAS) may have hidden the CUDA error: ask again
                torch.cuda.synchronize()
            except Exception as e2:
                if one(e2) != one(e):
                    seen += " | " + one(e2)
    print(seen or "saw: nothing", flush=True)
    os._exit(3 if seen else 0)


main()
