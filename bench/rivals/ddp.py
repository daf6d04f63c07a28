"""Times whole training steps of PyTorch DistributedDataParallel over Gloo: one rank.  bench/training starts all of them.

usage: ddp.py RANK NODES STORE NET BATCH STEPS INTERFACE none|fp16      STORE: a file that all ranks reach and that does not exist yet
A step is zero_grad, forward, loss, backward with its all-reduces, and SGD with momentum, on BATCH / NODES samples.  fp16: the compression hook
that PyTorch ships.  Each rank prints one line of JSON: when training began and when each step ended, in seconds of this machine's monotonic clock.
"""
import datetime
import json
import os
import sys
import time

from fair import kernels, settle

rank, nodes, store, net = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
batch, steps, interface, hook = int(sys.argv[5]), int(sys.argv[6]), sys.argv[7], sys.argv[8]
settle(1)
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch  # noqa: E402  (reads them)
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook  # noqa: E402
from torch_nets import model, samples  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=nodes, timeout=datetime.timedelta(seconds=120))
made = torch.nn.parallel.DistributedDataParallel(model(net))
if hook == "fp16":
    made.register_comm_hook(None, fp16_compress_hook)
C, H = samples[net]
own = (batch + nodes - 1 - rank) // nodes
images, labels = torch.rand(own, C, H, H), torch.arange(own) % 10
optimiser = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()
ends = []
dist.barrier()
began = time.monotonic()
for _ in range(steps):
    optimiser.zero_grad()
    loss_of(made(images), labels).backward()
    optimiser.step()
    ends.append(time.monotonic())
print(json.dumps({"rank": rank, "version": torch.__version__, "kernels": kernels(), "parameters": sum(p.numel() for p in made.parameters()), "began": began, "ends": ends}), flush=True)
dist.barrier()
