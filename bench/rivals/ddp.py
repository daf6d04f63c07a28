"""Times whole training steps of PyTorch, alone or as DistributedDataParallel over Gloo: one rank.  bench/training starts all of them.

usage: ddp.py RANK NODES STORE NET BATCH PIECES STEPS INTERFACE none|fp16|alone      STORE: a file that all ranks reach and that does not exist yet
A step is zero_grad, then forward, loss and backward of each of PIECES pieces, and SGD with momentum.  none: on BATCH / NODES samples a rank, with
DDP's all-reduces; fp16: with the compression hook that PyTorch ships; alone: each rank trains for itself, on BATCH samples.  Each rank prints one line
of JSON: when training began and when each step ended, in seconds of this machine's monotonic clock.
"""
import datetime
import json
import os
import sys
import time

from fair import kernels, settle

rank, nodes, store, net = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
batch, pieces, steps, interface, hook = int(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7]), sys.argv[8], sys.argv[9]
settle(1)
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch  # noqa: E402  (reads them)
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook  # noqa: E402
from torch_nets import loss_of, model, random_samples  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=nodes, timeout=datetime.timedelta(seconds=600))
made = model(net)
if hook != "alone":
    made = torch.nn.parallel.DistributedDataParallel(made)
if hook == "fp16":
    made.register_comm_hook(None, fp16_compress_hook)
own = batch if hook == "alone" else (batch + nodes - 1 - rank) // nodes
x, y = random_samples(net, own)
optimiser = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
ends = []
dist.barrier()
began = time.monotonic()
for _ in range(steps):
    optimiser.zero_grad()
    for part, wanted in zip(x.chunk(pieces), y.chunk(pieces)):
        (loss_of(net, made(part), wanted) / own).backward()
    optimiser.step()
    ends.append(time.monotonic())
print(json.dumps({"rank": rank, "version": torch.__version__, "kernels": kernels(), "parameters": sum(p.numel() for p in made.parameters()), "began": began, "ends": ends}), flush=True)
dist.barrier()
