"""Times whole training steps of PyTorch on a GPU: forward, loss, backward, SGD with momentum, on samples that are there already.

usage: torch_gpu.py [--device cuda] --nets lenet5,mlp --batches 128,1024 --precisions tf32,bf16 [--seconds 0.4] [--limit 120] [--warm]
Of each net, batch and precision (f32, tf32, or bf16 by autocast with float masters) each way that works: eager and as a CUDA graph, both
in NCHW and channels_last, then, as long as --limit seconds allow, torch.compile and a CUDA graph of what it makes.  Prints a line of JSON for
each of them whenever there is another way; the last one has all of them.  --warm: compiles alone, so that another run finds it in the cache.
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


def synchronise():
    if on_gpu:
        torch.cuda.synchronize()


class Step:
    """One training step, made once, called often."""

    def __init__(self, net, batch, precision, channels_last, compiled, graph):
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
            torch.compiler.reset()   # or the ninth net would run uncompiled: config.recompile_limit; what is on disk stays
        self.forward = torch.compile(self.loss, dynamic=False) if compiled else self.loss
        self.run = self.eager
        if graph:
            side = torch.cuda.Stream()   # as torch.cuda.graph wants it
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.eager()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            self.optimiser.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                self.eager()
            self.run = self.graph.replay

    def loss(self, images, labels):
        with torch.autocast(options.device.split(":")[0], dtype=torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            return self.loss_of(self.made(images), labels)

    def eager(self):
        self.optimiser.zero_grad(set_to_none=True)
        self.forward(self.images, self.labels).backward()
        self.optimiser.step()


def measure(step):
    """Median seconds of a step: rounds of steps that take some 20 ms each."""
    for _ in range(3):
        step.run()
    synchronise()
    start = time.perf_counter()
    step.run()
    synchronise()
    count = max(1, int(0.02 / max(time.perf_counter() - start, 1e-6)))
    times, until = [], time.perf_counter() + options.seconds
    while len(times) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(count):
            step.run()
        synchronise()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


ways = [("eager", 0, 0, 0), ("channels_last", 1, 0, 0), ("graph", 0, 0, 1), ("graph channels_last", 1, 0, 1),
        ("compile", 0, 1, 0), ("compile channels_last", 1, 1, 0), ("compile graph", 0, 1, 1), ("compile graph channels_last", 1, 1, 1)]  # fmt: skip
found, failed = {}, {}
cells = [(net, int(batch), precision) for net in options.nets.split(",") for batch in options.batches.split(",") for precision in options.precisions.split(",")]
late = False


def tell(cell):
    ways_found = {way: round(rate, 1) for way, rate in found.get(cell, {}).items()}
    best = max(ways_found, key=ways_found.get) if ways_found else None
    print(json.dumps({"bench": "step", "rival": "torch", "version": torch.__version__, "net": cell[0], "batch": cell[1], "precision": cell[2], "best": best,
                      "images_per_s": ways_found.get(best), "ways": ways_found, "failed": failed.get(cell, {}), "cut_short": late}), flush=True)


for way, channels_last, compiled, graph in ways:
    if (graph and not on_gpu) or (options.warm and way not in ("compile", "compile channels_last")):
        continue
    for cell in cells:
        late = late or time.perf_counter() - begun > options.limit
        if late or (channels_last and cell[0] == "mlp"):
            continue
        try:
            step = Step(*cell, channels_last, compiled, graph)
            if options.warm:
                step.run()
            else:
                found.setdefault(cell, {})[way] = cell[1] / measure(step)
        except Exception as error:  # a way that does not work here is none, and the line says why
            failed.setdefault(cell, {})[way] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        step = None
        if not options.warm:
            tell(cell)
for cell in cells if late and not options.warm else []:
    tell(cell)
