#!/usr/bin/env python3
"""Real daemons in lab hosts train with coded-rs over multicast: one digest whatever happens to a host.

usage: tests/lab/daemons.py DATA NAME…      DATA holds train.h5 and test.h5; NAME: a way below

For each way a line: the digest's beginning, the median step, and the longest beside it in medians.  Exits with 1 where a digest differs, where
a job without a host fails, or where losing one held the others up for too long: a killed one for two steps; one that has only fallen silent
(cut, stopped) until it is given up after a quarter of the job's deadline, because what is on its way to it is kept for it.
"""

import importlib.machinery, importlib.util, json, os, re, signal, statistics, sys, time

here = os.path.dirname(os.path.abspath(__file__))
loader = importlib.machinery.SourceFileLoader("figures", os.path.join(here, "..", "..", "bench", "paper", "figures"))
figures = importlib.util.module_from_spec(importlib.util.spec_from_loader("figures", loader))
sys.dont_write_bytecode = True
loader.exec_module(figures)

n, victim, steps, event, deadline = 4, 2, 40, 12, 8
job = """[job]
seed = 3
steps = %d
evaluate = 20
batch = 128
blocks = 8
deadline = "%ds"
[data]
train = "{0}/train.h5"
test = "{0}/test.h5"
[net]
preset = "lenet5"
[optimiser]
lr = 0.01
[algorithm]
exchange = "coded-rs"
m = 2
s = {1}
""" % (steps, deadline)


class Failure(Exception):
    pass


class Lab(figures.Cluster):
    def lab(self, *words):
        figures.command([figures.lab, words[0], "--name", self.name, *words[1:]])

    def ctl(self, host, *words, seconds=15):
        return json.loads(figures.command([figures.ctl, "--socket", self.socket(host), "-o", "json", *words], seconds))

    def status(self, host, job_id):
        return self.ctl(host, "describe", job_id)["status"]

    def all_see_all(self):
        end = time.time() + 30
        while not all(self.sees_all(i) for i in range(self.n)):
            if time.time() > end:
                raise Failure("the daemons do not see one another again within 30 s")
            time.sleep(0.05)

    def train(self, data, s, lose=None):
        """What the nodes that were not lost say of the job at its end, and their lines of steps.jsonl."""
        with open(self.folder + "/job.toml", "w") as file:
            file.write(job.format(data, s))
        job_id = self.ctl(0, "submit", self.folder + "/job.toml")["id"]
        end = time.time() + 60
        if lose:
            while self.status(0, job_id)["step"] < event:
                if time.time() > end:
                    raise Failure("no step %d within 60 s: %s" % (event, self.status(0, job_id)))
                time.sleep(0.02)
            lose()
        said = []
        for host in range(self.n):
            if lose and host == victim:
                continue
            while True:
                status = self.status(host, job_id)
                if status["state"] in ("done", "failed", "cancelled"):
                    break
                if time.time() > end:
                    raise Failure("host %d did not end the job within 60 s: %s" % (host, status))
                time.sleep(0.05)
            if status["state"] != "done":
                raise Failure("host %d: %s" % (host, status["error"]))
            path = "%s/%d/state/jobs/%s/steps.jsonl" % (self.folder, host, job_id)
            while True:   # the last lines are written a moment after the end
                with open(path) as file:
                    lines = [json.loads(line) for line in file if line.endswith("\n")]
                if len(lines) >= steps or time.time() > end:
                    break
                time.sleep(0.05)
            said.append((status, lines))
        return said


def pid_of(cluster):
    return cluster.daemons[victim].pid   # gradcast-lab run leaves its place to the command


class Ways:
    """One after another on the same daemons, so each also finds them well again."""

    def __init__(self, cluster):
        self.cluster = cluster

    def lossless(self, data):
        return self.cluster.train(data, 0)

    def loss(self, data):
        self.cluster.lab("loss", "all", "1%")
        said = self.cluster.train(data, 0)
        self.cluster.lab("loss", "all", "0%")
        return said

    def slow(self, data):
        self.cluster.lab("slow", str(victim), "20%")
        said = self.cluster.train(data, 1)
        self.cluster.lab("slow", str(victim), "off")
        return said

    def cut(self, data):
        said = self.cluster.train(data, 1, lambda: self.cluster.lab("cut", str(victim)))
        self.cluster.lab("heal", str(victim))
        return said

    def stopped(self, data):
        said = self.cluster.train(data, 1, lambda: os.kill(pid_of(self.cluster), signal.SIGSTOP))
        os.kill(pid_of(self.cluster), signal.SIGCONT)
        return said

    def killed(self, data):
        return self.cluster.train(data, 1, lambda: os.kill(pid_of(self.cluster), signal.SIGKILL))


def main():
    data, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or ["lossless", "loss", "slow", "cut", "stopped", "killed"]
    cluster, wanted, bad = Lab(n, "30mbit", False), None, False
    try:
        ways = Ways(cluster)
        for name in names:
            begin = time.time()
            try:
                cluster.all_see_all()
                said = getattr(ways, name)(data)
                wanted = wanted or said[0][0]["digest"]
                for status, lines in said:
                    if status["digest"] != wanted:
                        raise Failure("digest %s, not %s" % (status["digest"], wanted))
                    if not re.match("multicast .* reaches 3 of 3", status.get("datagrams", "")):
                        raise Failure("not by multicast: %s" % status.get("datagrams"))
                # The first warms caches up.
                each = [[sum(line[key] for key in ("compute_us", "wait_us", "apply_us")) / 1e3 for line in lines[1:]] for _, lines in said]
                median, longest = statistics.median(sum(each, [])), max(map(max, each))
                print("  %-9s %s: median step %.0f ms, longest %.0f ms = %.1f medians; %.1f s" % (
                    name, wanted[:8], median, longest, longest / median, time.time() - begin), flush=True)
                if any(len(lines) != steps for _, lines in said):
                    raise Failure("%s lines in steps.jsonl, not %d" % ([len(lines) for _, lines in said], steps))
                # 50 ms: what a machine with fewer cores than hosts keeps a thread waiting for.  Silence is looked for every deadline / 40.
                most = {"killed": 50, "cut": deadline * 1e3 * (1 / 4 + 3 / 40), "stopped": deadline * 1e3 * (1 / 4 + 3 / 40)}.get(name)
                if most and longest > most + 2 * median:
                    raise Failure("the longest step took more than %.0f ms" % (most + 2 * median))
            except (Failure, RuntimeError) as error:
                print("  %s: %s" % (name, error), flush=True)
                for i in range(n):
                    print("    host %d: %s" % (i, (open("%s/%d/log" % (cluster.folder, i)).read().strip() or "-").splitlines()[-3:]))
                bad = True
                if name != "killed":
                    cluster.lab("heal", str(victim))
    finally:
        cluster.stop()
    sys.exit(bad)


main()
