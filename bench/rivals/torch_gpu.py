"""Times whole training steps of PyTorch on a GPU: forward, loss, backward, SGD with momentum, on samples that are on the GPU.

usage: torch_gpu.py [--device cuda] --cells lenet5:100,nin:1024 --precisions tf32,bf16 [--seconds 0.4] [--limit 120] [--profile] [--warm]
For each net and batch, in each precision (f32, tf32, or bf16 by autocast with float masters), tries every way that works: torch.compile and
eager, each plain and as a CUDA graph, in channels_last and NCHW.  The ways that are fastest as a rule come first for all cells, so that
--limit seconds cut off the slow ones.  Each way has two rates: `queued`, steps enqueued one after the other, and `waited`, the host waits
for the end of each step.  Prints a line of JSON for a cell after each way; a cell's last line has all ways, and those not tried.
--profile: at the end a line with the kernels of each cell's fastest way, by torch.profiler.  --warm: only compiles, which fills the cache for
a later run.
"""
import argparse
import json
import statistics
import sys
import time

from fair import settle

settle(1)
import torch  # noqa: E402  (reads the environment)
from torch import nn
from torch_nets import model, samples

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
flags.add_argument("--device", default="cuda")
flags.add_argument("--cells", default="lenet5:100,mlp:100,resnet9:1024,nin:1024,resnet9:100,nin:100")
flags.add_argument("--precisions", default="tf32,bf16")
flags.add_argument("--seconds", type=float, default=0.4)
flags.add_argument("--limit", type=float, default=120)
flags.add_argument("--profile", action="store_true")
flags.add_argument("--warm", action="store_true")
options = flags.parse_args()
begun = time.perf_counter()
on_gpu = options.device.startswith("cuda")
if on_gpu and not torch.cuda.is_available():
    sys.exit("torch_gpu.py: PyTorch sees no GPU")
if on_gpu:
    torch.cuda.set_stream(torch.cuda.Stream())   # work on the default stream cannot be captured later


def synchronise():
    if on_gpu:
        torch.cuda.synchronize()


class Step:
    """One training step, built once and called repeatedly."""

    def __init__(self, net, batch, precision, channels_last, compiled):
        torch.manual_seed(1)
        tf32 = precision != "f32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        order = torch.channels_last if channels_last else torch.contiguous_format
        self.made = model(net).to(options.device).to(memory_format=order)
        C, H = samples[net]
        self.images = torch.randn(batch, C, H, H, device=options.device).to(memory_format=order)
        self.labels = torch.arange(batch, device=options.device) % 10
        self.bf16 = precision == "bf16"
        fused = {"fused": True} if on_gpu else {}
        self.optimiser = torch.optim.SGD(self.made.parameters(), lr=1e-6, momentum=0.9, **fused)
        self.loss_of = nn.CrossEntropyLoss()
        if compiled:
            torch.compiler.reset()   # avoids config.recompile_limit after eight nets; the disk cache stays
        self.forward = torch.compile(self.loss, dynamic=False) if compiled else self.loss

    def graph(self):
        """The same step as a CUDA graph."""
        for _ in range(3):
            self.run()
        self.captured = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.captured):
            self.run()
        return self.captured.replay

    def loss(self, images, labels):
        with torch.autocast(options.device.split(":")[0], dtype=torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            return self.loss_of(self.made(images), labels)

    def run(self):
        self.optimiser.zero_grad(set_to_none=True)
        self.forward(self.images, self.labels).backward()
        self.optimiser.step()


def measure(run, waits):
    """Median seconds of a step: rounds of steps that take some 20 ms each.  waits: for the end of each step, not of each round."""
    for _ in range(3):
        run()
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    count = max(1, int(0.02 / max(time.perf_counter() - start, 1e-6)))
    times, until = [], time.perf_counter() + options.seconds
    while len(times) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(count):
            run()
            if waits:
                synchronise()
        synchronise()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


found, failed, fastest = {}, {}, {}   # by cell: rates by way; errors by way; the fastest way's rate and what runs it
cells = [(each.split(":")[0], int(each.split(":")[1]), precision) for each in options.cells.split(",") for precision in options.precisions.split(",")]


def name(compiled, graph, channels_last):
    return " ".join(word for word, said in (("compile", compiled), ("graph", graph), ("channels_last", channels_last)) if said) or "eager"


def ways(cell):
    return [name(compiled, graph, last) for compiled in (1, 0) for last in orders(cell) for graph in range(1 + on_gpu)]


def orders(cell):
    return (0,) if cell[0] == "mlp" else (1, 0)


def show(cell):
    here, broken = found.get(cell, {}), failed.get(cell, {})
    best = max(here, key=lambda way: here[way]["queued"]) if here else None
    print(json.dumps({"bench": "step", "rival": "torch", "version": torch.__version__, "net": cell[0], "batch": cell[1], "precision": cell[2], "best": best,
                      "images_per_s": here[best]["queued"] if best else None, "waited": max((rate["waited"] for rate in here.values()), default=None),
                      "ways": here, "failed": broken, "untried": [way for way in ways(cell) if way not in here and way not in broken]}), flush=True)  # fmt: skip


def late():
    return time.perf_counter() - begun > options.limit


def measured(cell, compiled, channels_last):
    """Plain and as a CUDA graph, from one compilation."""
    step = None
    for graph in range(1 if options.warm else 1 + on_gpu):
        way = name(compiled, graph, channels_last)
        try:
            step = step or Step(*cell, channels_last, compiled)
            run = step.graph() if graph else step.run
            if options.warm:
                run()
                continue
            rates = {kind: round(cell[1] / measure(run, kind == "waited"), 1) for kind in ("queued", "waited")}
            found.setdefault(cell, {})[way] = rates
            if rates["queued"] > fastest.get(cell, (0,))[0]:
                fastest[cell] = (rates["queued"], way, run, step)   # step: keeps the graph's memory
        except Exception as error:  # a way that fails is skipped and reported
            failed.setdefault(cell, {})[way] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def profile(cell, steps=3):
    """The kernels of a step, longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    _, way, run, _ = fastest[cell]
    with profiler(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as trace:
        for _ in range(steps):
            run()
        synchronise()
    spent = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    kernels = sorted(((each.key, each.count / steps, round(getattr(each, spent) / steps, 2)) for each in trace.key_averages()), key=lambda each: -each[2])
    print(json.dumps({"bench": "kernels", "rival": "torch", "net": cell[0], "batch": cell[1], "precision": cell[2], "way": way,
                      "us": round(sum(each[2] for each in kernels), 1),
                      "kernels": [{"name": text[:120], "calls": calls, "us": us} for text, calls, us in kernels[:40] if us > 0]}), flush=True)  # fmt: skip


for compiled in (1,) if options.warm else (1, 0):
    for turn in range(2):
        for cell in cells:
            if turn < len(orders(cell)) and not late():
                measured(cell, compiled, orders(cell)[turn])
                if not options.warm:
                    show(cell)
for cell in cells if late() and not options.warm else []:
    show(cell)
for cell in fastest if options.profile else []:
    try:
        profile(cell)
    except Exception as error:  # a profiler that may not read the GPU's times is no reason to lose the rates
        print(json.dumps({"bench": "kernels", "rival": "torch", "net": cell[0], "batch": cell[1], "precision": cell[2], "error": str(error)[:200]}), flush=True)
