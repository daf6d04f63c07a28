"""Child processes with limits, and the files of results: every other module here works with these two."""
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time


class Trouble(Exception):
    """A failure of a check, as a sentence."""


class Missing(Exception):
    """What a check needs and does not find here."""


class Ended:
    """How a child ended: `code` is None if it was killed; `why` then says for what."""

    def __init__(self, text, code, why):
        self.text, self.code, self.why = text, code, why

    def ok(self):
        return self.code == 0

    def how(self):
        return self.why or (f"ended with code {self.code}" if self.code >= 0 else f"was ended by {signal.Signals(-self.code).name}")


def last(text):
    said = [line for line in text.strip().splitlines() if line.strip()]
    return said[-1][:300] if said else "it said nothing"


class Results:
    """Verdicts, the report as JSON, the printed text, and the children's raw output: at most three files in the folder `out`."""

    def __init__(self, out, name, work):
        os.makedirs(out, exist_ok=True)
        self.logs = os.path.join(work, "logs")
        os.makedirs(self.logs)
        base = os.path.join(out, f"gpu-{name}")
        self.paths = {"json": base + ".json", "text": base + ".txt", "logs": base + "-logs.tar.gz"}
        self.report = {"date": time.strftime("%Y-%m-%d")}
        self.counts, self.lines, self.lock, self.begun = {"passed": 0, "failed": 0, "skipped": 0}, [], threading.RLock(), time.time()
        self.printed = open(self.paths["text"], "w")

    def say(self, text=""):
        with self.lock:
            print(text, flush=True)
            self.printed.write(text + "\n")
            self.printed.flush()

    def show(self, text, most):
        for line in text.strip().splitlines()[:most]:
            self.say(f"  {line[:300]}")

    def count(self, verdict, what, number=1):
        with self.lock:
            self.counts[verdict] += number
            self.lines.append((verdict, what))
            self.say(f"{verdict}: {what}")

    def attempt(self, name, check, *arguments):
        """One check: its failure is counted and does not stop the others."""
        try:
            check(*arguments)
        except Missing as lack:
            self.count("skipped", f"{name}: {lack} is missing")
        except Trouble as trouble:
            self.count("failed", f"{name}: {trouble}")
        except (OSError, KeyError, ValueError, IndexError) as error:
            self.count("failed", f"{name}: {type(error).__name__}: {error}")

    def write(self):
        """The report so far.  Called often, because the run may be interrupted."""
        with self.lock:
            self.report["seconds"], self.report["results"] = round(time.time() - self.begun), self.counts
            self.report["verdicts"] = [f"{verdict}: {what}" for verdict, what in self.lines]
            with open(self.paths["json"] + ".new", "w") as file:
                json.dump(self.report, file, indent=1)
                file.write("\n")
            os.replace(self.paths["json"] + ".new", self.paths["json"])

    def archive(self):
        with self.lock, tarfile.open(self.paths["logs"], "w:gz") as file:
            file.add(self.logs, os.path.basename(self.paths["logs"])[: -len(".tar.gz")])


class Children:
    """Runs programs, each with a limit and its output in a file of the logs' folder.

    environment: variables of our programs.  It names the packed libraries, which must not reach PyTorch and what PyTorch starts: so a
    caller's own environment replaces it.
    """

    def __init__(self, results, root, environment):
        self.results, self.root, self.environment = results, root, environment
        self.running, self.lock, self.stopped = set(), threading.Lock(), False

    def start(self, name, words, environment=None):
        with self.lock:
            if self.stopped:
                raise Trouble(f"{name} was not begun: the run is ending")
            log = open(os.path.join(self.results.logs, name + ".log"), "ab")
            try:   # tests read tests/nn/reference from the top of the source tree
                child = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.root, start_new_session=True,
                                         env={**os.environ, **(self.environment if environment is None else environment)})  # fmt: skip
            finally:
                log.close()
            self.running.add(child)
            return child

    def kill(self, child):
        """False: it does not end, as a process that is stuck in a driver."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_all(self):
        with self.lock:
            self.stopped = True
            left = list(self.running)
        for child in left:
            if child.poll() is None:
                self.kill(child)

    def run(self, name, words, seconds, silence=None, environment=None, each=None):
        """Runs to the end.  silence: seconds without output after which it counts as hung.  each: called with every line as it comes."""
        path = os.path.join(self.results.logs, name + ".log")
        begin = os.path.getsize(path) if os.path.exists(path) else 0
        child = self.start(name, words, environment)
        why, heard, until, left = None, time.time(), time.time() + max(1, seconds), ""
        with open(path, "rb") as log:
            log.seek(begin)

            def hear():
                nonlocal heard, left
                new = log.read().decode(errors="replace")
                if new:
                    heard = time.time()
                    *lines, left = (left + new).split("\n")
                    for line in lines if each else []:
                        each(line)

            while child.poll() is None and not why:
                time.sleep(0.02)
                hear()
                if time.time() > until:
                    why = f"did not end within {seconds:.0f} s"
                elif silence and time.time() > heard + silence:
                    why = f"hung: it said nothing for {silence:.0f} s"
            if why and not self.kill(child):
                why += ", and SIGKILL does not end it"
            hear()
            log.seek(begin)
            text = log.read().decode(errors="replace")
        with self.lock:
            self.running.discard(child)
        return Ended(text, None if why else child.returncode, why)

    def must(self, name, words, seconds, **more):
        ended = self.run(name, words, seconds, **more)
        if not ended.ok():
            self.results.show("\n".join(ended.text.strip().splitlines()[-15:]), 15)
            raise Trouble(f"{' '.join(os.path.basename(word) for word in words[:2])} {ended.how()}: {last(ended.text)}")
        return ended.text


class Stopped(BaseException):
    """SIGTERM or SIGINT: what has been found is still written."""


def catch_signals():
    def stop(number, _):
        for each in (signal.SIGTERM, signal.SIGINT):   # timeout(1) sends it twice
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def find_torch():
    """A Python interpreter with PyTorch and its version, without importing it, which takes long and may touch the GPU."""
    ask = "import importlib.metadata, importlib.util; assert importlib.util.find_spec('torch'); print(importlib.metadata.version('torch'))"
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        try:
            done = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python, last(done.stdout)
    return None, None
