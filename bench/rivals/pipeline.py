"""Times whole training steps of a pipeline by hand over torch.distributed's isend and irecv (Gloo): one rank, which computes one stage.

usage: pipeline.py RANK NODES STORE NET BATCH STEPS INTERFACE gpipe|1f1b MICRO CUTS
STORE: a file that all ranks reach and that does not exist yet.  MICRO: micro-batches of a step.  CUTS: the first layers of the second stage and
the following ones, with commas, as gradcast names them: "fc2" begins with the second inner product.  A cut inside of a residual branch moves to
the branch's end, so that one value crosses it.
A stage posts all receives of a step before the step; sends go on while it computes.  gpipe: all forward passes, then all backward passes (Huang
et al. 2019).  1f1b: stage k of S begins with S - k forward passes, then a backward and a forward pass in turn (Narayanan et al. 2019).  SGD with
momentum.  Each rank prints one line of JSON: when training began and when each step ended, in seconds of this machine's monotonic clock, the
seconds that its stage computed in each step, and at the last stage the mean loss of each step.
"""
import datetime
import json
import os
import sys
import time

from fair import kernels, settle

rank, nodes, store, net = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
batch, steps, interface, schedule = int(sys.argv[5]), int(sys.argv[6]), sys.argv[7], sys.argv[8]
micro, cuts = int(sys.argv[9]), sys.argv[10].split(",")
if len(cuts) + 1 != nodes or batch % micro or schedule not in ("gpipe", "1f1b"):
    raise SystemExit(f"pipeline.py: {nodes} nodes need {nodes - 1} cuts, {micro} micro-batches must divide {batch}, and '{schedule}' must be gpipe or 1f1b")
settle(1)
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch  # noqa: E402  (reads them)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch_nets import loss_of, part_of, parts, random_samples  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
named = parts(net)
names, whole = list(named), list(named.values())
count = sum(parameter.numel() for layer in whole for parameter in layer.parameters())

ends_of = [0, *(names.index(part_of(cut, names)) for cut in cuts), len(whole)]
if sorted(set(ends_of)) != ends_of:
    raise SystemExit(f"pipeline.py: the cuts {', '.join(cuts)} leave a stage without layers")
x, y = random_samples(net, batch)
size = batch // micro
with torch.no_grad():
    shape = nn.Sequential(*whole[: ends_of[rank]])(x[:1]).shape[1:]   # of what comes in
    out_shape = nn.Sequential(*whole[ends_of[rank] : ends_of[rank + 1]])(torch.zeros(1, *shape) if rank else x[:1]).shape[1:]
made = nn.Sequential(*whole[ends_of[rank] : ends_of[rank + 1]])
del named, whole
first, last = rank == 0, rank == nodes - 1
inputs, labels = x.split(size), y.split(size)
optimiser = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
warm = micro if schedule == "gpipe" else min(micro, nodes - rank)
order = [("forward", i) for i in range(warm)]
for i in range(micro):
    order += [("backward", i)] + ([("forward", warm + i)] if warm + i < micro else [])

dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=nodes, timeout=datetime.timedelta(seconds=120))


def receive(source, shape):
    value = torch.empty(size, *shape)
    return value, dist.irecv(value, source)


def step():
    """Seconds that this stage computed, and the sum of the losses."""
    values = [] if first else [receive(rank - 1, shape) for _ in range(micro)]
    gradients = [] if last else [receive(rank + 1, out_shape) for _ in range(micro)]
    sent, kept, loss, computed = [], {}, 0.0, 0.0
    optimiser.zero_grad()
    for what, i in order:
        if what == "forward":
            if first:
                x = inputs[i]
            else:
                x, arrived = values[i]
                arrived.wait()
                x.requires_grad_()
            began = time.monotonic()
            y = made(x)
            if last:
                y = loss_of(net, y, labels[i]) / batch
                loss += y.item()
            kept[i] = x, y
            computed += time.monotonic() - began
            if not last:
                sent.append((y.detach(), dist.isend(y.detach(), rank + 1)))
        else:
            x, y = kept.pop(i)
            if not last:
                gradients[i][1].wait()
            began = time.monotonic()
            y.backward(None if last else gradients[i][0])
            computed += time.monotonic() - began
            if not first:
                sent.append((x.grad, dist.isend(x.grad, rank - 1)))
    began = time.monotonic()
    optimiser.step()
    computed += time.monotonic() - began
    for _, handle in sent:
        handle.wait()
    return computed, loss


ends, computed, losses = [], [], []
dist.barrier()
began = time.monotonic()
for _ in range(steps):
    seconds, loss = step()
    ends.append(time.monotonic())
    computed.append(seconds)
    losses.append(loss)
print(json.dumps({"rank": rank, "version": torch.__version__, "kernels": kernels(), "parameters": count, "began": began, "ends": ends, "computed_s": computed,
                  "losses": losses if last else []}), flush=True)  # fmt: skip
dist.barrier()
