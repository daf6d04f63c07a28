"""Correctness: facts of the machine, a smoke test, then tests and whole jobs at the same time."""
import concurrent.futures
import os
import re
import time

from device.run import Trouble, last

shards = 4
accuracy_least = 0.99
ended = r"^\[ +(?:OK|FAILED|SKIPPED) +\] .*\(\d+ ms\)$"   # the last line of a test
# Errors that leave a CUDA context unusable.
spoils = re.compile("cudaError(IllegalAddress|LaunchFailure|MisalignedAddress|IllegalInstruction|InvalidPc|InvalidAddressSpace|HardwareStackError|Assert|LaunchTimeout|ECC)")
no_device = re.compile(r"^no (device|GPU): ")
programs_a_shard = 6   # a shard's tests that each end their program share a cause
lenet5 = """[job]
name = "device-check"
seed = 1
{length}
batch = 100
blocks = {blocks}

[data]
train = "{data}/mnist/train.h5"
{test}
crop = 2

[net]
preset = "lenet5"
device = "cuda"
resident = "{resident}"

[optimiser]
lr = 0.05
momentum = 0.9
nesterov = true
weight_decay = 5e-4
schedule = "cosine"
warm_up = 100

[algorithm]
kind = "ssgd"
exchange = "{exchange}"
"""


def facts(check):
    """What a reader of the results must know of the machine.  A library that the loader does not find is a failure."""
    commands = {"system": ["uname", "-a"], "cpu": ["lscpu"], "loader": ["ldd", "--version"], "libraries": ["ldconfig", "-p"]}
    if not check.host:
        query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.limit,persistence_mode,compute_mode,ecc.mode.current"
        commands.update({"gpu": ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], "driver": ["cat", "/proc/driver/nvidia/version"], "nvidia-smi": ["nvidia-smi", "-q"]})
    machine = check.results.report["machine"] = {"cores": os.cpu_count(), "torch": check.torch, "library_path": check.library_path}
    for name, words in commands.items():
        try:
            text = check.children.run("machine", words, 20, environment={}).text.strip()
        except OSError as error:
            text = str(error)
        if name in ("system", "gpu", "driver"):
            machine[name] = text[:1000]
    wanted, found, missing = re.compile("cudnn|cublas|nvrtc|libcuda"), {}, set()
    for program in check.packed:
        for library, where in re.findall(r"^\s*(\S+) => (not found|\S+)", check.children.run("machine", ["ldd", program], 20).text, re.M):
            if where == "not found":
                missing.add(library)
            elif wanted.search(library):
                found[library] = os.path.realpath(where)
    machine["found"] = found
    if missing:
        raise Trouble(f"the loader finds no {', '.join(sorted(missing))}: install it, or name its folder in LD_LIBRARY_PATH")


def listed(check, program):
    tests, suite = [], ""
    flags = [f"--gtest_filter={check.host_tests}"] if check.host else []
    for line in check.children.must("tests", [program, "--gtest_list_tests"] + flags, 60).splitlines():
        if line.startswith(" "):
            tests.append(suite + line.split()[0])
        elif line.strip():
            suite = line.split()[0]
    return tests


class Tally:
    """Outcomes of tests, of all shards together."""

    def __init__(self, check):
        self.check, self.of, self.why, self.left = check, {"OK": 0, "FAILED": 0, "SKIPPED": 0}, set(), []
        self.failures = check.results.report.setdefault("failures", {})

    def add(self, test, what, said):
        with self.check.results.lock:
            if what == "SKIPPED" and no_device.match(last(said)):   # there is one: see Check.device()
                what = "FAILED"
            self.of[what] += 1
            if what == "SKIPPED":
                self.why.add(last(said))
            if what == "FAILED":
                self.failures[test] = said[:2000]
                self.check.results.say(f"  failed: {test}")
                self.check.results.show(said, 8)

    def verdicts(self, name):
        for what, verdict in (("OK", "passed"), ("FAILED", "failed"), ("SKIPPED", "skipped")):
            if self.of[what]:
                why = f": {'; '.join(sorted(self.why)[:3])}" if what == "SKIPPED" else ""
                self.check.results.count(verdict, f"{self.of[what]} {name}{why}", self.of[what])
        if self.left:
            self.check.results.count("failed", f"{name}: {len(self.left)} were not begun, the first is {self.left[0]}")


def run_tests(check, log, program, tests, until, silence, tally):
    """Runs tests in one program.  After a test that ends the program, hangs or leaves the device unusable, the others run in a new one."""
    left, begun = list(tests), 0
    while left and begun < programs_a_shard and time.time() < until - 1:
        begun += 1
        end = check.children.run(log, [program, "--gtest_filter=" + ":".join(left)], until - time.time(), silence=silence)
        rest = left
        for test, said in re.findall(r"^\[ RUN      \] (\S+)\n(.*?)(?=^\[ RUN      \]|\Z)", end.text, re.M | re.S):
            if test not in rest:
                continue
            over = re.search(ended, said, re.M)
            rest = rest[rest.index(test) + 1 :]
            tally.add(test, over[0].split()[1] if over else "FAILED", said[: over.start()] if over else f"{said[-1500:].rstrip()}\nthe program {end.how()}")
            if not over or spoils.search(said):
                break
        if len(rest) == len(left):
            raise Trouble(f"{os.path.basename(program)} {end.how()}: {last(end.text)}")
        left = [] if end.ok() else rest
    with check.results.lock:
        tally.left += left


def smoke(check, seconds):
    """What everything hangs on.  False: nothing else can pass."""
    program, tally = check.tests, Tally(check)
    tests = [test for test in listed(check, program) if test.startswith("CudaSmoke.")]
    if not tests:
        raise Trouble(f"{program} has no CudaSmoke tests")
    # The first program loads cuDNN and cuBLAS from a cold disk.
    run_tests(check, "smoke", program, tests, time.time() + seconds, 3 * check.silence, tally)
    tally.verdicts("smoke tests")
    return tally.of["OK"] > 0


def job(check, name, seconds, local, **fields):
    """Accuracy and digest of lenet5 on MNIST, trained by real daemons."""
    data = check.data()
    path, keep = os.path.join(check.work, name + ".toml"), os.path.join(check.work, name)
    fields = {"resident": "auto", "test": "", **fields}
    with open(path, "w") as file:
        file.write(lenet5.format(data=data, **fields))
    text = check.children.must("job-" + name, [check.ctl, "run", path, "--local", str(local), "--keep", keep], seconds)
    with open(os.path.join(keep, "log")) as file:
        log = file.read()
    if "no device" in log:
        raise Trouble(f"{name} ran on the CPU: {next(line for line in log.splitlines() if 'no device' in line)}")
    if (", data set " in log) != (fields["resident"] == "auto"):
        raise Trouble(f"{name} has net.resident = \"{fields['resident']}\", but its memory {'has' if ', data set ' in log else 'lacks'} the data set")
    found = dict(re.findall(r"^(accuracy|digest) (\S+)$", text, re.M))
    return float(found.get("accuracy", 0)), found["digest"]


def accuracy(check, seconds):
    more = {"length": "steps = 2"} if check.host else {"length": "epochs = 12", "test": f'test = "{check.data()}/mnist/test.h5"'}
    reached, digest = job(check, "accuracy", seconds, 1, blocks=1, exchange="ring", **more)
    check.results.report["accuracy"] = {"net": "lenet5", "data": "mnist", "accuracy": reached, "digest": digest}
    least = 0.0 if check.host else accuracy_least
    what = "lenet5 trains" if check.host else f"lenet5 on MNIST: accuracy {reached:.4f}, at least {least}"
    check.results.count("passed" if reached >= least else "failed", what)


def determinism(check, seconds, pool):
    length = f"steps = {2 if check.host else 300}"
    runs = {"first": (1, "ring", "auto"), "again": (1, "ring", "auto"), "files": (1, "ring", "no"), "three-daemons": (3, "coded-rs", "auto")}
    waiting = {name: pool.submit(job, check, name, seconds, local, length=length, blocks=8, exchange=exchange, resident=resident)
               for name, (local, exchange, resident) in runs.items()}  # fmt: skip
    digests, troubles = {}, []
    for name, future in waiting.items():
        try:
            digests[name] = future.result()[1]
        except (Trouble, OSError, KeyError, ValueError) as trouble:
            troubles.append(str(trouble))
    check.results.report["digests"] = digests
    if troubles:
        raise Trouble("; ".join(troubles))
    alike = len(set(digests.values())) == 1
    told = "one digest twice, without resident data, and with three daemons" if alike else f"digests differ: {digests}"
    check.results.count("passed" if alike else "failed", told)


def all_tests(check, until, pool):
    tests = [test for test in listed(check, check.tests) if not test.startswith("CudaSmoke.")]
    tally = Tally(check)
    waiting = [pool.submit(run_tests, check, f"tests-{shard}", check.tests, tests[shard::shards], until, check.silence, tally) for shard in range(shards)]
    for shard in waiting:
        check.results.attempt("tests", shard.result)
    tally.verdicts(f"tests of {os.path.basename(check.tests)}")


def warm(check):
    """Fills torch.compile's cache, which takes minutes of CPU time, before anything is timed: one process a net, behind everything else."""
    words = ["nice", "-n", "19", check.python, os.path.join(check.root, "bench", "rivals", "torch_gpu.py"), "--warm", "--limit=200"]
    environment = {**check.compiled, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    return [check.children.start(f"warm-{net}", words + [f"--cells={','.join(f'{net}:{batch}' for batch in batches)}"], environment)
            for net, batches in check.cells.items()]  # fmt: skip


def stage_a(check, seconds):
    """True: all passed."""
    begun, results = time.time(), check.results
    until, failed, passed = begun + seconds, results.counts["failed"], results.counts["passed"]
    results.attempt("libraries", facts, check)
    results.write()
    if results.counts["failed"] > failed:
        return False
    usable = []
    results.attempt("smoke tests", lambda: usable.append(smoke(check, min(100, seconds))))
    results.write()
    if not usable or not usable[0]:
        results.count("failed", "the device: no smoke test passed, so nothing else is tried")
        return False
    warming = warm(check) if check.python and not check.host else []
    try:
        with concurrent.futures.ThreadPoolExecutor(shards + 8) as pool:
            checks = {"tests": (all_tests, check, until, pool), "accuracy": (accuracy, check, until - time.time()),
                      "determinism": (determinism, check, until - time.time(), pool)}  # fmt: skip
            waiting = [pool.submit(results.attempt, name, *how) for name, how in checks.items()]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                check.children.kill_all()
                raise
        results.write()
        while any(child.poll() is None for child in warming) and time.time() < begun + 0.8 * seconds:
            time.sleep(0.1)
    finally:   # nothing else may run beside a timing
        left = [child for child in warming if child.poll() is None]
        for child in left:
            check.children.kill(child)
    if warming:
        results.report["warmed"] = len(warming) - len(left)
    return results.counts["failed"] == failed and results.counts["passed"] > passed
