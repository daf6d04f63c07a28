"""Times torch.distributed's all-reduce (sum) over Gloo: one rank.  bench/rivals/run starts all of them.

usage: gloo.py RANK NODES STORE COUNT RUNS INTERFACE      STORE: a file that all ranks reach and that does not exist yet
A run starts 10 ms after a barrier (by then ranks on shared cores have all left it) and ends when the slowest rank has its sum.  Rank 0 prints one line of JSON.
"""
import datetime
import json
import os
import sys
import time

from fair import settle

rank, nodes, store, count, runs, interface = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
settle(1)
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch  # noqa: E402  (reads them)
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=nodes, timeout=datetime.timedelta(seconds=60))
data = torch.empty(count)
times, wrong = [], 0
for run in range(-2, runs):
    data.copy_(torch.arange(count, dtype=torch.float32) % 1000 + rank)
    dist.barrier()
    time.sleep(0.01)
    start = time.perf_counter()
    dist.all_reduce(data)
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    wrong += int((data != (torch.arange(count, dtype=torch.float32) % 1000) * nodes + nodes * (nodes - 1) // 2).sum())
    dist.all_reduce(took, dist.ReduceOp.MAX)
    if run >= 0:
        times.append(took.item())
bad = torch.tensor([wrong])
dist.all_reduce(bad)
if rank == 0:
    times.sort()
    at = lambda share: round(times[min(runs - 1, int(share * runs))] * 1e6)  # noqa: E731
    print(json.dumps({"bench": "allreduce", "rival": "gloo", "version": torch.__version__, "nodes": nodes, "size_bytes": 4 * count, "runs": runs,
                      "median_us": at(0.5), "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1), "wrong_elements": bad.item()}), flush=True)
dist.barrier()
sys.exit(1 if bad.item() else 0)
