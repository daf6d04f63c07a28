"""Shared by the experiments with logical workers: jobs on one node, tables that an interrupted run continues, charts."""

import json, math, os, re, statistics, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, ".."))
from cluster import ctl
from plot import chart, read, write

link = 1e9 / 8   # bytes per second


def trained(job):
    """The lines of steps.jsonl of a job on one node with one lane, and its status at the end."""
    with tempfile.TemporaryDirectory(prefix="gradcast-paper-") as work:
        with open(f"{work}/job.toml", "w") as file:
            file.write(job)
        core = str(max(os.sched_getaffinity(0)))
        done = subprocess.run(["taskset", "-c", core, ctl, "-o", "json", "run", f"{work}/job.toml", "--local", "1", "--keep", f"{work}/kept"],
                              env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TMPDIR": work}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the job failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}\n{job}")
        with open(f"{work}/kept/steps.jsonl") as file:
            return [json.loads(line) for line in file if line.endswith("\n")], json.loads(done.stdout)["status"]


def train(job):
    return trained(job)[0]


parts_of_time = ["slowest_s", "mean_s", "rest_s", "link_s", "critical_s", "wall_s"]


def seconds_of(runs, link_s):
    """parts_of_time of a job on one node with one lane, from runs of it (`trained`), which compute the same: each part of its fastest run.
    The computing of the slowest worker and of the mean one; what is no worker's, as the sums; link_s; the critical path, which is the slowest
    worker, the rest and the link; and the time of all on this node."""
    workers = [min(times) / 1e6 for times in zip(*([each["compute_us"] for each in status["workers"]] for _, status in runs))]
    wall = [sum(line[part] for line in lines for part in ("compute_us", "wait_us", "apply_us")) / 1e6 for lines, _ in runs]
    rest = max(0.0, min(all - sum(each["compute_us"] for each in status["workers"]) / 1e6 for all, (_, status) in zip(wall, runs)))
    return [max(workers), statistics.mean(workers), rest, link_s, max(workers) + rest + link_s, min(wall)]


def says(less, more):
    """Whether the means of both lists differ so, by more than two standard errors of the difference."""
    difference = statistics.mean(more) - statistics.mean(less)
    noise = 2 * math.sqrt(sum(statistics.variance(each) / len(each) for each in (less, more))) if min(len(less), len(more)) > 1 else 0
    return "within noise" if abs(difference) <= noise else "holds" if difference > 0 else "does not hold"


class Table:
    """Rows of a CSV file by their first columns.  A file with other columns counts as none."""

    def __init__(self, path, head, keys):
        self.path, self.head, self.keys = path, head, keys
        self.rows = {tuple(row[key] for key in head[:keys]): row for row in read(path) if list(row) == head}

    def add(self, *row):
        self.rows[tuple(str(value) for value in row[: self.keys])] = dict(zip(self.head, map(str, row)))
        self.save()

    def save(self):
        order = sorted(self.rows, key=lambda key: [(0, float(part), "") if part.replace(".", "", 1).isdigit() else (1, 0, part) for part in key])
        write(self.path, self.head, [[self.rows[key][name] for name in self.head] for key in order])

    def __contains__(self, key):
        return tuple(map(str, key)) in self.rows

    def value(self, column, *key):
        return float(self.rows[tuple(map(str, key))][column])


def exchange_s(m, values, sums):
    """Seconds of so many sums over m nodes, by the bytes of a ring alone."""
    return sums * 2 * (m - 1) / m * values * 4 / link


def draw(options, name, title, claim, x, y, series):
    print(claim)
    chart(os.path.join(options.results, name + ".svg"), title, claim, x, y, {key: (points, key.endswith(("paper", "in proportion"))) for key, points in series.items()})


asgd_variants = {"mlp": ["asgd", "asgd lr/n"], "cnn": ["asgd lr/n"]}   # cnn learns nothing at the full rate, with its momentum


def paper_job(net, data, seed, values, evaluate=True):
    """NET.toml with these values and the paths of DATA."""
    with open(os.path.join(here, net + ".toml")) as file:
        text = file.read()
    for key, value in values.items():
        text = re.sub(rf"(?m)^{key} = .*", f"{key} = {value}", text)
    if not evaluate:
        text = re.sub(r"(?m)^(test|evaluate|stop_at) = .*\n", "", text)
    text = re.sub(r'= "(.*\.h5)"', lambda found: f'= "{os.path.abspath(data)}/{found[1]}"', text)
    return text.replace("[job]\n", f'[job]\ndeadline = "300s"\nseed = {seed}\ncheckpoint_keep = 0\n')


def ssgd_job(net, data, n, every, steps, seed=1):
    """NET.toml's net on n classes by synchronous SGD on one node; evaluated every so many steps."""
    return paper_job(net, data, seed, {"steps": steps, "evaluate": every, "blocks": n, "classes": n})


def asgd_job(net, data, n, variant, steps, rounds, seed=1, evaluate=True):
    """NET.toml's net by asgd: rounds of so many steps of n pushes, which are as much work as a step of synchronous SGD."""
    with open(os.path.join(here, net + ".toml")) as file:
        lr = float(re.search(r"(?m)^lr = ([\d.]+)", file.read())[1])
    values = {"steps": rounds, "evaluate": 1, "batch": round(120 / n), "blocks": 1, "classes": n, "lr": lr / n if variant.endswith("lr/n") else lr,
              "kind": f'"asgd"\nworkers = {n}\nstream = "whole"\nupdates = {n * steps}'}
    return re.sub(r"(?m)^exchange = .*\n", "", paper_job(net, data, seed, values, evaluate))
