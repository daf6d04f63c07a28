"""Times whole training steps of PyTorch on a GPU: forward, loss, backward, SGD with momentum, on samples that are on the GPU.

usage: torch_gpu.py [--device cuda] --nets lenet5,mlp --batches 128,1024 --precisions tf32,bf16 [--seconds 0.4] [--limit 120] [--warm]
For each net, batch and precision (f32, tf32, or bf16 by autocast with float masters) tries every way that works: eager and torch.compile, each plain
and as a CUDA graph, in channels_last and NCHW; at most --limit seconds, f32 last.  Prints a line of JSON for a cell after each way; its last line
has all ways, and those not tried for lack of time.  --warm: only compiles, to fill the cache for a later run.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch_nets import model, samples

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
flags.add_argument("--device", default="cuda")
flags.add_argument("--nets", default=",".join(samples))
flags.add_argument("--batches", default="128,1024")
flags.add_argument("--precisions", default="f32,tf32,bf16")
flags.add_argument("--seconds", type=float, default=0.4)
flags.add_argument("--limit", type=float, default=120)
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


def measure(run):
    """Median seconds of a step: rounds of steps that take some 20 ms each."""
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
        synchronise()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


found, failed = {}, {}
cells = [(net, int(batch), precision) for net in options.nets.split(",") for batch in options.batches.split(",") for precision in options.precisions.split(",")]


def name(compiled, graph, channels_last):
    return " ".join(word for word, said in (("compile", compiled), ("graph", graph), ("channels_last", channels_last)) if said) or "eager"


def ways(cell):
    return [name(compiled, graph, last) for compiled in (0, 1) for graph in range(1 + on_gpu) for last in range(1 + (cell[0] != "mlp"))]


def tell(cell):
    here, broken = {way: round(rate, 1) for way, rate in found.get(cell, {}).items()}, failed.get(cell, {})
    best = max(here, key=here.get) if here else None
    print(json.dumps({"bench": "step", "rival": "torch", "version": torch.__version__, "net": cell[0], "batch": cell[1], "precision": cell[2], "best": best,
                      "images_per_s": here.get(best), "ways": here, "failed": broken,
                      "untried": [way for way in ways(cell) if way not in here and way not in broken]}), flush=True)  # fmt: skip


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
            else:
                found.setdefault(cell, {})[way] = cell[1] / measure(run)
        except Exception as error:  # a way that fails is skipped and reported
            failed.setdefault(cell, {})[way] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__


for full in (False, True):   # f32 last: few cells are compared in it
    for compiled in (1,) if options.warm else (0, 1):
        for channels_last in (1, 0):
            for cell in cells:
                if (cell[2] == "f32") == full and not (channels_last and cell[0] == "mlp") and not late():
                    measured(cell, compiled, channels_last)
                    if not options.warm:
                        tell(cell)
for cell in cells if late() and not options.warm else []:
    tell(cell)
