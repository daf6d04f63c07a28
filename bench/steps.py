"""Whole training steps on the hosts of a lab, of jobs by real daemons and of rivals, timed alike; and the file that keeps them."""

import concurrent.futures, itertools, json, os, re, statistics, subprocess, sys, time

from cluster import command, cpu, ctl, lab

here = os.path.dirname(os.path.abspath(__file__))
batch, blocks = 128, 8   # samples and blocks of a step, of all hosts together
batches = {"gpt10m": 8}   # samples of a step of nets that have fewer
context = 256            # tokens of a sample of a text
parameters = {"mlp": 2_383_370, "wide": 103_995_010, "lenet5": 61_706, "nin": 966_986, "equal": 1_442_634, "gpt10m": 10_942_464, "resnet9": 6_573_130, "gpt": 834_304, "resnet18": 11_173_962}
shapes = {"mlp": (28, 28), "wide": (28, 28), "lenet5": (28, 28), "nin": (3, 32, 32), "equal": (3, 32, 32), "resnet9": (3, 32, 32), "resnet18": (3, 32, 32)}
core_s = {"mlp": 0.015, "wide": 1.0, "lenet5": 0.005, "nin": 1.5, "equal": 5, "resnet9": 3.0, "gpt": 1.4, "gpt10m": 6, "resnet18": 20}   # about, for a step on a core: only the number of steps depends on it
examples = os.path.join(here, "..", "tools", "python", "examples")
attached = {"gpt": 4, "resnet18": 4}   # nets that a program computes (examples/train_NET.py) -> blocks of a step
rates = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}


def share(n):
    """Of a core, for each host: together they use nine tenths of two cores."""
    return 0.45 if n <= 4 else 0.22


def share_of_stages(n):
    """Two hosts have a core each, so that `gradcastctl plan` predicts for what they have."""
    return 1 if n <= 2 else share(n)


def bits_per_second(rate):
    number, unit = re.fullmatch(r"([\d.]+)([kmg])bit", rate).groups()
    return float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit]


def has_torch():
    return subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def warn_of_small_pages():
    """Debian's kernel gives all memory huge pages.  gradcast asks for them and PyTorch does not, so elsewhere the comparison is not fair."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            if "[always]" not in file.read():
                say("PyTorch is slower here than on Debian: echo always >/sys/kernel/mm/transparent_hugepage/enabled gives it huge pages")
    except OSError:
        pass


def layers_text(kind, keys, count, last=""):
    """[net] of a job file: so many layers of a kind, each with a ReLU, the layer `last`, and an inner product of 10 classes."""
    layer = '[[net.layers]]\nkind = "{}"\n{}\n'
    return ("[net]\n" + count * (layer.format(kind, keys) + layer.format("relu", "")) + (layer.format(last, "") if last else "")
            + layer.format("inner_product", "outputs = 10") + layer.format("softmax_cross_entropy", ""))  # fmt: skip


def net_text(net):
    if net in attached:
        package = json.dumps(os.path.dirname(os.path.abspath(examples)))
        return (f'[net]\ncommand = ["/usr/bin/python3", {json.dumps(os.path.abspath(f"{examples}/train_{net}.py"))}]\nthreads = 1\n'
                f'environment = {{ PYTHONPATH = {package}, PYTHONDONTWRITEBYTECODE = "1" }}\n')  # fmt: skip
    if net == "gpt10m":   # of nanoGPT's page on Shakespeare
        return '[net]\npreset = "gpt"\ndepth = 6\nwidth = 384\nheads = 6\n'
    if net == "wide":
        return layers_text("inner_product", "outputs = 5000", 5)
    if net == "equal":
        return layers_text("conv", "outputs = 64\nkernel = 3\npad = 1", 40, "global_average_pool")
    return f'[net]\npreset = "{net}"\n'


def job_text(folder, net, steps, more, cut=blocks, data="", samples=batch):
    """net: a section of a job file; data: the keys of another one, by default those of the folder's shard.  Epochs are short, so no checkpoint is
    written: its copies would take the link in most steps."""
    train = f'train = "{folder}/data/train.h5"'
    return f"""[job]
steps = {steps}
batch = {samples}
blocks = {cut}
checkpoint_keep = 0
deadline = "60s"
[data]
{data or train}
{net}[optimiser]
lr = 0.01
momentum = 0.9
{more}"""


def step_times(began, ends, warm_up):
    """began, ends: by rank.  Returns ms of the first step and of those after the warm-up."""
    last = [max(at) for at in zip(*ends)]
    times = [(b - a) * 1e3 for a, b in zip([min(began), *last], last)]
    return times[0], times[warm_up:]


def job_steps(cluster, text, n, warm_up, timed):
    """A job on n hosts; if n is 1, one on each other host as well, for itself.  Returns the times, each host's lines, and the status."""
    with concurrent.futures.ThreadPoolExecutor(cluster.n) as pool:
        others = [pool.submit(cluster.run, text, 600, 1, host) for host in range(1, cluster.n if n == 1 else 1)]
        hosts, status = cluster.run(text, 600, n)
        for other in others:
            other.result()
    if any(len(lines) != warm_up + timed for lines in hosts):
        raise RuntimeError(f"steps.jsonl has {[len(lines) for lines in hosts]} lines, not {warm_up + timed}")
    ends = [list(itertools.accumulate(sum(line[key] for key in ("compute_us", "wait_us", "apply_us")) / 1e6 for line in lines)) for lines in hosts]
    return step_times([0] * n, ends, warm_up), hosts, status


def rival_steps(cluster, net, script, words, warm_up):
    """A script of rivals/ at every host; words follow its rank.  Returns the times and each host's line of JSON."""
    text = command([lab, "run", "all", "--name", cluster.name, "--", "/usr/bin/python3", os.path.join(here, "rivals", script), "{rank}", "{nodes}", *words], 600)
    hosts = sorted((json.loads(line.split("] ", 1)[1]) for line in text.splitlines() if "] {" in line), key=lambda host: host["rank"])
    if len(hosts) != cluster.n:
        raise RuntimeError(f"{len(hosts)} of {cluster.n} hosts have answered")
    if hosts[0]["parameters"] != parameters[net]:
        raise RuntimeError(f"PyTorch's {net} has {hosts[0]['parameters']} parameters, not {parameters[net]}")
    return step_times([host["began"] for host in hosts], [host["ends"] for host in hosts], warm_up), hosts


def limit(cluster, part):
    """Every host gets this share of a core; 1: all of its own."""
    if part < 1:
        command([lab, "slow", "all", f"{100 * part:.0f}%", "--name", cluster.name])


def planned(cluster, text, rate):
    """The steps of a job on all hosts, in milliseconds, as `gradcastctl plan` predicts them at a host of the lab: of one host alone, and by the number of stages."""
    path = f"{cluster.folder}/plan.toml"
    with open(path, "w") as file:
        file.write(text)
    words = [lab, "run", "--name", cluster.name, "0", "--", ctl, "-o", "json", "plan", path, "--nodes", str(cluster.n), "--lanes", "1", "--rate", rate]
    said = json.loads(command(words, 300))
    return 1e3 * said["alone"]["step_s"], {grid["stages"]: 1e3 * grid["step_s"] for grid in said["grids"]}


def row_of(cell, way, part, first, times):
    net, n, rate = cell
    ordered = sorted(times)
    return {"net": net, "nodes": n, "rate": rate, "way": way, "date": time.strftime("%Y-%m-%d"), "cpu": cpu(), "cores": os.cpu_count(), "share": part,
            "steps": len(times), "first_ms": first, "median_ms": statistics.median(times), "p99_ms": ordered[min(len(times) - 1, int(0.99 * len(times)))],
            "max_ms": ordered[-1]}  # fmt: skip


class Results:
    """Rows by (net, nodes, rate, way) in a file; path "": in memory alone."""

    def __init__(self, path):
        self.path, self.rows = path, {}
        if os.path.exists(path):
            with open(path) as file:
                self.rows = {self.key(row): row for row in json.load(file)["rows"]}

    @staticmethod
    def key(row):
        return row["net"], row["nodes"], row["rate"], row["way"]

    def of(self, cell, ways):
        return {way: self.rows[(*cell, way)] for way in ways if (*cell, way) in self.rows}

    def keep(self, row, cells, ways):
        """The file then has the rows of these cells and ways, in their order."""
        self.rows[self.key(row)] = row
        if not self.path:
            return
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".part", "w") as file:
            json.dump({"kernel": os.uname().release, "rows": [each for cell in cells for each in self.of(cell, ways).values()]}, file, indent=1)
            file.write("\n")
        os.replace(self.path + ".part", self.path)


def verdict(what, ratio, limit, at_most):
    """Prints whether a target is met; 1 if it is missed."""
    ok = ratio <= limit if at_most else ratio >= limit
    print(f"{'ok' if ok else 'MISSED'}: {what}: {ratio:.2f}, target at {'most' if at_most else 'least'} {limit:.2f}")
    return int(not ok)


def wanted_cells(flags, options, cells):
    """Those of --only; all without it."""
    for word in options.only:
        if not any(":".join(map(str, cell)).startswith(word.rstrip(":")) for cell in cells):
            flags.error(f"--only {word}: no such cell; --list shows them")
    return [cell for cell in cells if not options.only or any(":".join(map(str, cell)).startswith(word.rstrip(":")) for word in options.only)]


def say(text):
    print(f"{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr, flush=True)
