"""Times a whole training step of PyTorch: zero_grad, forward, loss, backward, SGD with momentum.

usage: torch_step.py NET BATCH THREADS SECONDS [--best | --way LAST FOREACH]     NET: one of torch_nets.py
Prints one line of JSON: the median over all steps of SECONDS after a warm-up.  --best: for nin and lenet5 the faster order of dimensions
(channels_last or not), and for all but nin the optimiser's foreach path if it is faster; --way 1 0: the result of an earlier --best.
"""
import json
import statistics
import sys
import time

from fair import kernels, settle

net, batch, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
best = sys.argv[5:] == ["--best"]
way = tuple(word == "1" for word in sys.argv[6:8]) if sys.argv[5:6] == ["--way"] else (False, False)
settle(threads)
import torch  # noqa: E402  (reads them)
from torch_nets import loss_of, model, random_samples  # noqa: E402

torch.set_num_threads(threads)
torch.manual_seed(1)


def status_bytes(key):
    """A line of /proc/self/status."""
    return next((int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key + ":")), 0)


def peak_reset():
    """Begins a new peak of the resident memory.  False: this kernel cannot."""
    try:
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
    except OSError:
        return False
    return True


def measure(channels_last, foreach, limit_s):
    judged = peak_reset()
    before = status_bytes("VmRSS")
    order = torch.channels_last if channels_last else torch.contiguous_format
    made = model(net).to(memory_format=order)
    images, labels = random_samples(net, batch)
    if images.dim() == 4:
        images = images.to(memory_format=order)
    optimiser = torch.optim.SGD(made.parameters(), lr=1e-6, momentum=0.9, foreach=foreach)
    times, until = [], 0
    while until == 0 or len(times) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        optimiser.zero_grad()
        (loss_of(net, made(images), labels) / batch).backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
        if until == 0 and (len(times) >= 3 or times[-1] > limit_s):
            times, until = [], time.perf_counter() + limit_s
    memory = status_bytes("VmHWM") - before if judged else None
    return statistics.median(times), len(times), sum(p.numel() for p in made.parameters()), memory


if best:
    ways = [(last, foreach) for last in ((False,) if net == "mlp" or net.startswith("gpt") else (False, True)) for foreach in ((False,) if net == "nin" else (False, True))]
    way = min(ways, key=lambda each: measure(*each, seconds / 5)[0])
median, steps, parameters, memory = measure(*way, seconds)
print(json.dumps({"bench": "step", "rival": "torch", "version": torch.__version__, "net": net, "parameters": parameters, "batch": batch,
                  "threads": threads, "kernels": kernels(), "channels_last": way[0], "foreach": way[1],
                  "steps": steps, "median_us": round(median * 1e6, 1), "images_per_s": round(batch / median, 1), "memory_bytes": memory}), flush=True)
