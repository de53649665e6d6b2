"""Rows that measure what the shim costs. Nothing else must run."""

from rows import TORCH, built, case
from shim import LAUNCH, Child, state


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
