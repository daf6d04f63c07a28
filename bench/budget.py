"""Jobs of tools/jobs that compute about as many gradients of samples, on real daemons, for the benches that compare algorithms."""

import json, os, re, subprocess, sys

from cluster import command, ctl

jobs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "jobs")
passes = {"dane": 2}   # over the data in a round whose length is given in rounds; others: 1


def kinds():
    return sorted(name[:-5] for name in os.listdir(jobs) if name.endswith(".toml") and not name.startswith("dane-"))


def job_of(name, options, seed):
    """A job file of tools/jobs with that budget; name: its kind, or "asgd lambda=none" with other values of [algorithm]."""
    kind, *settings = name.split()
    with open(os.path.join(jobs, kind + ".toml")) as file:
        text = file.read()
    text = re.sub(r'= "fashion-mnist/([^"]*)"', lambda m: f'= "{os.path.join(os.path.abspath(options.data), m[1])}"', text)
    for key, value in (setting.split("=") for setting in settings):
        text = re.sub(rf"^{key} = .*\n", "", text, flags=re.M)
        text += f"{key} = {value if value.isdigit() else json.dumps(value)}\n"
    rounds = re.search(r"^steps = \d+$", text, re.M)
    length = f"steps = {max(options.epochs // passes.get(kind, 1), 1)}" if rounds else f"epochs = {options.epochs}"
    text = re.sub(r"^(steps|epochs) = \d+$", f"{length}\nseed = {seed}\ncheckpoint_keep = 0", text, count=1, flags=re.M)
    return re.sub(r"^workers = \d+$", f"workers = {options.nodes - 1 if kind in ('asgd', 'softsync') else options.nodes}", text, flags=re.M)


def run(cluster, job, seconds):
    """Lines of steps.jsonl by host, and each host's status at the end."""
    with open(f"{cluster.folder}/job.toml", "w") as file:
        file.write(job)
    said = json.loads(command([ctl, "--socket", cluster.socket(0), "-o", "json", "submit", f"{cluster.folder}/job.toml", "--wait"], seconds))
    lines, states = [], []
    for host in range(cluster.n):
        states.append(json.loads(command([ctl, "--socket", cluster.socket(host), "-o", "json", "describe", said["id"]]))["status"])
        with open(f"{cluster.folder}/{host}/state/jobs/{said['id']}/steps.jsonl") as file:
            lines.append([json.loads(line) for line in file if line.endswith("\n")])
    return lines, states


def curve(lines):
    """[(seconds, bytes sent by all, accuracy)] at each evaluation."""
    points, seconds, sent = [], 0.0, 0
    for at, record in enumerate(lines[0]):
        seconds += sum(record[part] for part in ("compute_us", "wait_us", "apply_us")) / 1e6
        sent += sum(each[at]["bytes_sent"] for each in lines if at < len(each))
        if "accuracy" in record:
            points.append((seconds, sent, record["accuracy"]))
    return points


burn = """import os
parent = os.getppid()
while os.getppid() == parent:   # it may be killed
    for _ in range(1_000_000): pass
"""


class SlowHost:
    """The last host of a cluster gets about one part in `slow` of its core, as other processes on that core take the rest."""

    def __init__(self, nodes, slow):
        self.nodes, self.slow, self.burners = nodes, slow, []

    def __enter__(self):
        cores = sorted(os.sched_getaffinity(0))
        core = cores[(self.nodes - 1) % len(cores)]
        for _ in range(self.slow - 1):
            self.burners.append(subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", burn]))

    def __exit__(self, *_):
        for burner in self.burners:
            burner.kill()
