"""Jobs of tools/jobs that compute about as many useful gradients of samples, on real daemons, for the benches that compare algorithms."""

import json, os, re, signal, subprocess, sys

from cluster import command, ctl

here = os.path.dirname(os.path.abspath(__file__))
jobs = os.path.join(here, "..", "tools", "jobs")


def kinds():
    names = [name[:-5] for name in os.listdir(jobs) if name.endswith(".toml")]   # also examples of nets
    return sorted(name for name in names if f'\nkind = "{name}"\n' in open(os.path.join(jobs, name + ".toml")).read())


def job_of(name, options, seed):
    """A job file of tools/jobs with that budget; name: its kind, or "asgd lambda=none" with other values of [algorithm]."""
    kind, *settings = name.split()
    with open(os.path.join(jobs, kind + ".toml")) as file:
        text = file.read()
    text = re.sub(r'= "fashion-mnist/([^"]*)"', lambda m: f'= "{os.path.join(os.path.abspath(options.data), m[1])}"', text)
    for key, value in (setting.split("=") for setting in settings):
        text = re.sub(rf"^{key} = .*\n", "", text, flags=re.M)
        text += f"{key} = {value if value.isdigit() else json.dumps(value)}\n"
    text = re.sub(r"^(steps|epochs) = \d+$", rf"\1 = {options.epochs}\nseed = {seed}\ncheckpoint_keep = 0", text, count=1, flags=re.M)
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
    lost = [loss for state in states for loss in state["losses"]]
    if lost:
        raise RuntimeError(f"the job has gone on {lost[0]}")
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


def equal_share(nodes):
    """Of a core, for the last host of a cluster: the daemons on that core compute alike."""
    cores = len(os.sched_getaffinity(0))
    return 1 / len(range((nodes - 1) % cores, nodes, cores))


class SlowHost:
    """The last host of a cluster, and no other, gets one part in `slow` of the CPU time that an equal host has where all compute."""

    def __init__(self, cluster, slow):
        self.daemon = cluster.daemons[-1].pid   # gradcast-lab becomes the daemon
        self.slow, self.share, self.throttle = slow, equal_share(cluster.n) / slow, None

    def __enter__(self):
        if self.slow > 1:
            words = [sys.executable, os.path.join(here, "throttle.py"), str(self.daemon), str(self.share)]
            self.throttle = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        return self

    def check(self):
        """The host has been slow until now."""
        if self.throttle and self.throttle.poll() is not None:
            raise RuntimeError("bench/throttle.py, which slows a host down, has ended")

    def __exit__(self, *_):
        if self.throttle:
            self.throttle.terminate()
            self.throttle.wait()
            try:
                os.killpg(self.daemon, signal.SIGCONT)   # also where bench/throttle.py was killed
            except ProcessLookupError:
                pass
