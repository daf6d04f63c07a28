"""Real daemons in the hosts of a lab, or on loopback, for the benches that run whole jobs."""

import json, math, os, shutil, struct, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
build = os.path.abspath(os.environ.get("GRADCAST_BUILD", os.path.join(here, "..", "build")))
daemon, ctl = os.path.join(build, "gradcastd"), os.path.join(build, "gradcastctl")
lab = os.path.join(here, "..", "tools", "gradcast-lab")


def command(words, seconds=60):
    """Its standard output; a failure ends the script with its last line."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"'{' '.join(words)}' took longer than {seconds:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
        raise RuntimeError(f"'{' '.join(words)}' failed: {last}")
    return done.stdout


def cpu():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")


def random_data(folder, train, test, shape=(28, 28)):
    """Shards of so many samples of random bytes of that shape in folder/data: content does not change a step's time."""

    def write(name, lengths, data):
        head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {lengths}, }}".ljust(117) + "\n"   # 128 bytes with magic, version and length
        with open(f"{folder}/{name}", "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)

    for half, number in (("", train), ("test-", test)):
        write(half + "images.npy", (number, *shape), os.urandom(number * math.prod(shape)))
        write(half + "labels.npy", (number,), bytes(i % 10 for i in range(number)))
    command([ctl, "import", "npy", "--from", folder, "--out", folder + "/data"])


def random_text(folder, characters):
    """Shards of a text of so many random letters in folder/data."""
    with open(f"{folder}/text.txt", "wb") as file:
        file.write(bytes(97 + each % 26 for each in os.urandom(characters)))
    command([ctl, "import", "text", "--from", f"{folder}/text.txt", "--out", folder + "/data", "--by", "bytes", "--test", "10%"])


class Cluster:
    """A daemon in each of n hosts of a lab, or on loopback; each computes on one core, assigned in turn."""

    def __init__(self, n, rate, local, commands=False):
        """commands: jobs may start programs."""
        self.n, self.local, self.daemons, self.commands = n, local, [], commands
        self.rate = "" if local or not rate else f'rate = "{rate}"\n'   # of gradcastd.toml
        self.name = f"paper{os.getpid()}"
        self.folder = tempfile.mkdtemp(prefix="gradcast-paper-")
        try:
            if not local:
                command([lab, "up", "--name", self.name, "--nodes", str(n), "--rate", rate])
            self.start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def address(self, host):
        pid = os.getpid()   # loopback addresses that depend on this process
        return f"127.{pid >> 8 & 127}.{pid & 255}.{host + 1}" if self.local else f"10.77.0.{host + 1}"

    def socket(self, host):
        return f"{self.folder}/{host}/socket"

    def launch(self, host):
        words = [] if self.local else [lab, "run", "--name", self.name, str(host), "--"]
        words += [daemon, "--config", f"{self.folder}/{host}/gradcastd.toml"]
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        with open(f"{self.folder}/{host}/log", "a") as log:
            return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def start(self):
        cores = sorted(os.sched_getaffinity(0))
        with open(os.open(f"{self.folder}/key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"paper {os.urandom(32).hex()}\n")
        members = ", ".join(f'"host-{i:02}={self.address(i)}:4700"' for i in range(self.n))
        for i in range(self.n):
            os.mkdir(f"{self.folder}/{i}")
            with open(f"{self.folder}/{i}/gradcastd.toml", "w") as file:
                file.write(
                    f'name = "host-{i:02}"\nmembers = [{members}]\ninterface = "{"127.0.0.1" if self.local else "eth0"}"\nkey = "../key"\n'
                    f'state = "state"\nsocket = "socket"\ncpus = [{cores[i % len(cores)]}]\n{self.rate}'
                    f"commands = {str(self.commands).lower()}\n"
                )
            self.daemons.append(self.launch(i))
        end = time.time() + 60
        for i in range(self.n):
            while not self.sees_all(i):
                if self.daemons[i].poll() is not None:
                    raise RuntimeError(f"gradcastd ended at host {i}: " + (open(f"{self.folder}/{i}/log").read().strip() or "without a word").splitlines()[-1])
                if time.time() > end:
                    raise RuntimeError(f"host {i} does not see all others after 60 s")
                time.sleep(0.05)

    def sees_all(self, host):
        try:
            seen = json.loads(command([ctl, "--socket", self.socket(host), "-o", "json", "nodes"], 10))
        except RuntimeError:
            return False
        return all(node["alive"] or node["self"] for node in seen["nodes"])

    def run(self, job, seconds, nodes=0, first=0):
        """Each rank's lines of steps.jsonl, and the job's end.  The job runs on so many of the nodes, from `first` on; 0: on all."""
        with open(f"{self.folder}/job-{first}.toml", "w") as file:
            file.write(job)
        hosts = range(first, first + (nodes or self.n))
        names = ["--nodes", ",".join(f"host-{i:02}" for i in hosts)] if nodes else []
        said = json.loads(command([ctl, "--socket", self.socket(first), "-o", "json", "submit", f"{self.folder}/job-{first}.toml", "--wait", *names], seconds))
        ranks = []
        for i in hosts:
            folder = f"{self.folder}/{i}/state/jobs/{said['id']}"
            end = time.time() + 10
            while True:   # the last lines are written just after the end
                with open(folder + "/steps.jsonl") as file:
                    lines = [json.loads(line) for line in file if line.endswith("\n")]
                if len(lines) >= said["status"]["step"] or time.time() > end:
                    break
                time.sleep(0.1)
            ranks.append(lines)
            shutil.rmtree(folder, ignore_errors=True)
        return ranks, said["status"]

    def stop(self):
        for process in self.daemons:
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not self.local:
            try:
                command([lab, "down", "--name", self.name])
            except RuntimeError as error:
                print(f"cluster: {error}", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
