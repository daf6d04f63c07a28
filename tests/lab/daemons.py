#!/usr/bin/env python3
"""Real daemons in lab hosts train over multicast: one digest for every exchange, number of hosts, network, and disturbance of a host.

usage: tests/lab/daemons.py DATA NAME…      DATA holds train.h5 and test.h5; NAME: a way below

exchanges: every exchange on 2, 4 and 8 hosts, and one alone, without loss, with 1%, and with a slow host.  The others: 4 hosts and longer
steps; WAY:EXCHANGE for another than coded-rs.  For each job the digest's beginning, the median step, and the longest beside it in medians.
Exits with 1 where a digest differs, where a job without a host fails, or where losing one held the others up for too long: a killed one for
two steps; one that has only fallen silent (cut, stopped) until it is given up after a quarter of the job's deadline, because what is on its
way to it is kept for it.
"""

import contextlib, importlib.machinery, importlib.util, json, os, re, signal, statistics, sys, time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "bench", "paper"))   # imported by figures
loader = importlib.machinery.SourceFileLoader("figures", os.path.join(sys.path[0], "figures"))
figures = importlib.util.module_from_spec(importlib.util.spec_from_loader("figures", loader))
sys.dont_write_bytecode = True
loader.exec_module(figures)

event, deadline = 12, 8   # the step at which a host is disturbed; s
long = {"steps": 40, "evaluate": 20, "batch": 128, "blocks": 8, "survive": "false"}
short = {"steps": 8, "evaluate": 8, "batch": 32, "blocks": 28, "survive": "false"}   # enough steps for auto to choose; enough blocks for cssgd on 8 hosts
exchanges = ["ring", "unicast", "multicast", "ps", "cssgd", "coded", "coded-rs", "auto"]


class Failure(Exception):
    pass


def job_text(data, job):
    return """[job]
seed = 3
steps = {steps}
evaluate = {evaluate}
batch = {batch}
blocks = {blocks}
deadline = "{deadline}s"
survive = {survive}
[data]
train = "{data}/train.h5"
test = "{data}/test.h5"
[net]
preset = "lenet5"
[optimiser]
lr = 0.01
[algorithm]
exchange = "{exchange}"
m = {m}
s = {s}
r = {m}
""".format(data=data, deadline=deadline, **job)


class Lab(figures.Cluster):
    def __init__(self, n, rate, data):
        self.data, self.victim = data, min(2, n - 1)
        super().__init__(n, rate, False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def lab(self, *words):
        return figures.command([figures.lab, words[0], "--name", self.name, *words[1:]])

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

    @contextlib.contextmanager
    def losing(self, percent):
        self.lab("loss", "all", percent)
        try:
            yield
            # Packets, counted by the filter that drops them.
            if self.n > 1 and not any(map(int, re.findall(r"counter packets (\d+)", self.lab("run", "all", "--", "nft", "list", "ruleset")))):
                raise Failure("nothing was lost")
        finally:
            self.lab("loss", "all", "0%")

    @contextlib.contextmanager
    def slow(self, percent):
        self.lab("slow", str(self.victim), percent)
        try:
            yield
        finally:
            self.lab("slow", str(self.victim), "off")

    def train(self, job, lose=None, missed=0, seconds=60):
        """The job's end at the surviving nodes, and their lines of steps.jsonl.  missed: how many nodes may be given up."""
        with open(self.folder + "/job.toml", "w") as file:
            file.write(job_text(self.data, job))
        job_id = self.ctl(0, "submit", self.folder + "/job.toml")["id"]
        end = time.time() + seconds
        if lose:
            while self.status(0, job_id)["step"] < event:
                if time.time() > end:
                    raise Failure("no step %d within 60 s: %s" % (event, self.status(0, job_id)))
                time.sleep(0.02)
            lose()
        said = []
        for host in range(self.n):
            if lose and host == self.victim:
                continue
            while True:
                status = self.status(host, job_id)
                if status["state"] in ("done", "failed", "cancelled"):
                    break
                if time.time() > end:
                    raise Failure("host %d did not end the job within %d s: %s" % (host, seconds, status))
                time.sleep(0.05)
            if missed > 0 and "the others go on without" in status["error"]:
                missed -= 1
                continue
            if status["state"] != "done":
                raise Failure("host %d: %s" % (host, status["error"]))
            path = "%s/%d/state/jobs/%s/steps.jsonl" % (self.folder, host, job_id)
            while True:   # the last lines are written just after the end
                with open(path) as file:
                    lines = [json.loads(line) for line in file if line.endswith("\n")]
                    lines = [line for line in lines if "gap" not in line]
                if lines and lines[-1]["step"] == status["steps"] or time.time() > end:
                    break
                time.sleep(0.05)
            said.append((status, lines))
        return said

    def check(self, said, job, wanted):
        """Median and longest step in ms."""
        for status, lines in said:
            if status["digest"] != wanted:
                raise Failure("digest %s, not %s" % (status["digest"], wanted))
            # A node that was behind when a view began has no line of a step.
            if not status["steps"] - len(status["views"]) < len(lines) <= status["steps"]:
                raise Failure("%d lines in steps.jsonl, not %d" % (len(lines), status["steps"]))
            ran = lines[-1]["exchange"]
            if job["exchange"] not in (ran, "auto"):
                raise Failure("the exchange was %s" % ran)
            others = self.n - 1
            datagrams = status["datagrams"] or {}
            if others and ran not in ("ring", "unicast") and not (datagrams.get("multicast") and datagrams["peers_reached"] == others):
                raise Failure("not by multicast: %s" % datagrams)
        # The first step warms the caches.
        each = [[sum(line[key] for key in ("compute_us", "wait_us", "apply_us")) / 1e3 for line in lines[1:]] for _, lines in said]
        return statistics.median(sum(each, [])), max(map(max, each))

    def report(self, name, error):
        print("  %s: %s" % (name, error), flush=True)
        for i in range(self.n):
            print("    host %d: %s" % (i, (open("%s/%d/log" % (self.folder, i)).read().strip() or "-").splitlines()[-3:]))


class Ways:
    """In turn on the same daemons, which must recover after each."""

    def __init__(self, lab):
        self.lab = lab

    def lossless(self, job):
        return self.lab.train(job)

    def loss(self, job):
        with self.lab.losing("1%"):
            return self.lab.train(job)

    def heavy(self, job):
        """A fifth of all packets: steps are slow, and the code may give a rank up, but no job ends."""
        s = int(job["exchange"].startswith("coded"))
        with self.lab.losing("20%"):
            return self.lab.train(dict(job, s=s, steps=8, evaluate=8), missed=s, seconds=300)

    def slow(self, job):
        with self.lab.slow("20%"):
            return self.lab.train(dict(job, s=1))

    def straggler(self, job):
        """The host that is slowed from a step on is named within 20 steps; nobody is before that, and never another.  Steps of much computing: a
        host whose share suffices for its work is not slow."""
        named = []

        def slow():
            status = self.lab.status(0, self.job_id())
            begin = status["step"]
            if status["stragglers"]:
                raise Failure("named before a host is slowed: %s, %s" % (status["stragglers"], status["times"]))
            self.lab.lab("slow", str(self.lab.victim), "10%")
            while not named:
                status = self.lab.status(0, self.job_id())
                if status["stragglers"]:
                    named.extend(each["node"] for each in status["stragglers"])
                    print("  named after %d steps: %s" % (status["step"] - begin, status["stragglers"][0]["advice"]), flush=True)
                elif status["step"] > begin + 20:
                    raise Failure("nobody is named %d steps after a host is slowed: %s" % (status["step"] - begin, status["times"]))
                time.sleep(0.02)
            if named != ["host-%02d" % self.lab.victim]:
                raise Failure("named: %s, not host-%02d: %s" % (named, self.lab.victim, status["times"]))
        try:
            return self.lab.train(dict(job, batch=2048, steps=44, evaluate=44), slow)
        finally:
            self.lab.lab("slow", str(self.lab.victim), "off")

    def job_id(self):
        return self.lab.ctl(0, "list")["jobs"][-1]["id"]

    def cut(self, job):
        try:
            return self.lab.train(dict(job, s=1), lambda: self.lab.lab("cut", str(self.lab.victim)))
        finally:
            self.lab.lab("heal", str(self.lab.victim))

    def healed(self, job):
        """Without a code the others go on when a host is cut off, and it joins again once its link is back."""
        victim = "host-%02d" % self.lab.victim

        def until(there, what):
            end = time.time() + 60
            while not there(self.lab.status(0, self.job_id())["views"]):
                if time.time() > end:
                    raise Failure("%s %s" % (victim, what))
                time.sleep(0.1)

        def cut():
            try:
                self.lab.lab("cut", str(self.lab.victim))
                until(lambda views: any(victim in view["left"] for view in views), "is not given up")
            finally:
                self.lab.lab("heal", str(self.lab.victim))
            until(lambda views: any(victim in view["came"] for view in views), "does not join again")
        job = dict(job, survive="true", steps=300, evaluate=100)
        return self.lab.train(job, seconds=120) + self.lab.train(job, cut, seconds=180)

    def signal(self, number):
        os.kill(self.lab.daemons[self.lab.victim].pid, number)   # gradcast-lab run replaces itself by the command

    def stopped(self, job):
        try:
            return self.lab.train(dict(job, s=1), lambda: self.signal(signal.SIGSTOP))
        finally:
            self.signal(signal.SIGCONT)

    def killed(self, job):
        try:
            return self.lab.train(dict(job, s=1), lambda: self.signal(signal.SIGKILL))
        finally:
            self.restart()

    def restart(self):
        self.signal(signal.SIGKILL)   # also where it is killed already
        self.lab.daemons[self.lab.victim].wait()
        self.lab.daemons[self.lab.victim] = self.lab.launch(self.lab.victim)


def every_exchange(data):
    wanted, bad = None, False
    for n in (1, 2, 4, 8):
        with Lab(n, "1gbit", data) as lab:
            for way in ("lossless", "loss", "slow"):
                begin, said = time.time(), []
                for exchange in exchanges if n > 1 else ["coded-rs"]:
                    # With m (and cssgd's r) = n nothing is sent.  A slow rank is given up only if the code tolerates a missing one.
                    job = dict(short, exchange=exchange, m=2 if n > 2 else 1, s=int(way == "slow" and n > 2 and exchange.startswith("coded")))
                    try:
                        with {"lossless": contextlib.nullcontext, "loss": lambda: lab.losing("1%"), "slow": lambda: lab.slow("10%")}[way]():
                            statuses = lab.train(job)
                        wanted = wanted or statuses[0][0]["digest"]
                        median, _ = lab.check(statuses, job, wanted)
                        said.append("%s%s %.0f" % (exchange, exchange == "auto" and " (%s)" % statuses[0][1][-1]["exchange"] or "", median))
                    except (Failure, RuntimeError) as error:
                        lab.report("%s on %d hosts, %s" % (exchange, n, way), error)
                        bad = True
                print("  n = %d %-8s %s: median ms a step: %s; %.1f s" % (n, way, wanted[:8], ", ".join(said), time.time() - begin), flush=True)
    return bad


def one_host(data, names):
    wanted, bad = {}, False   # digests by number of steps
    with Lab(4, "30mbit", data) as lab:
        ways = Ways(lab)
        for name in names:
            begin = time.time()
            try:
                lab.all_see_all()
                way, _, exchange = name.partition(":")
                job = dict(long, exchange=exchange or "coded-rs", m=2, s=0)
                said = getattr(ways, way)(job)
                digest = wanted.setdefault(said[0][0]["steps"], said[0][0]["digest"])
                median, longest = lab.check(said, job, digest)
                print("  %-12s %s: median step %.0f ms, longest %.0f ms = %.1f medians; %.1f s" % (
                    name, digest[:8], median, longest, longest / median, time.time() - begin), flush=True)
                # A machine with fewer cores than hosts can delay a thread by 50 ms.  Silence is checked every deadline / 40.
                silence = deadline * 1e3 * (1 / 4 + 3 / 40)
                most = {"killed": 50, "cut": silence, "stopped": silence}.get(way)
                if most and longest > most + 2 * median:
                    raise Failure("the longest step took more than %.0f ms" % (most + 2 * median))
            except (Failure, RuntimeError) as error:
                lab.report(name, error)
                bad = True
    return bad


def main():
    data, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    sys.exit(every_exchange(data) if names == ["exchanges"] else one_host(data, names))


main()
