"""The daemon's end of runtime/attach's border, for tests of processes that compute a net: one process, no network.

    with FakeDaemon(["train.py"], images, labels) as daemon:      # START, HELLO, MEMORY, READY
        trained = daemon.train([0, 1, 2])                         # COMPUTE to DONE, checked
        daemon.apply(trained, lr=0.1)
        daemon.evaluate([3, 4])
    daemon.errors                                                 # what the process wrote to standard error

Every message is checked: its kind, its size and its place in the order.  Elements of gradients are NaN before a training block, so that one
that is not written is found.  Padding must stay 0, and a bucket must not change after it was handed in.  A wait ends after 150 s.
"""

import fcntl
import hashlib
import json
import mmap
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np

package = pathlib.Path(__file__).resolve().parents[2] / "tools" / "python"

START, MEMORY, COMPUTE = 1, 2, 3
HELLO, READY, LOSS, BUCKET, DONE, FAIL, CONSTANTS = 16, 17, 18, 19, 20, 21, 22
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}   # bytes of a value
NO_CLASSES = 0xFFFFFFFF
TEXT_MAX = 32768
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16
WAIT_S = 150   # this machine may be busy
PATIENCE_S = 2   # of a process, after the end of the socket


class Failed(Exception):
    """The process has said FAIL, with this line."""


class Wrong(AssertionError):
    """The process has broken the rules of the border."""


class Trained(NamedTuple):
    """What a training block gave: its loss, and the flat gradient [elements]."""

    loss: float
    gradient: np.ndarray
    count: int


class Evaluated(NamedTuple):
    loss: float
    right: int
    predicted: np.ndarray


class FakeDaemon:
    """command: arguments of Python, a script first.  images: uint8 [N, C, H, W], or None where the process has its own data.  labels: [N].

    block: the most samples of a block.  bucket: elements from which a bucket is full.  start: fields of START to be changed.
    warm: a WarmPython that runs the script.  A FAIL raises Failed.
    """

    def __init__(self, command, images=None, labels=None, *, classes=10, block=8, seed=1, lane=0, lanes=1, mean=None, std=None, target_scale=0,
                 bucket=64, start=None, environment=None, folder=None, warm=None):
        self.images = np.zeros((0, 0, 0, 0), np.uint8) if images is None else images
        self.labels = np.zeros(len(self.images), np.int32) if labels is None else np.asarray(labels, np.int32)
        self.block_max, self.bucket_elements, self.steps = block, bucket, 0
        shape = dict(zip("CHW", self.images.shape[1:]))
        channels = self.images.shape[1]
        samples = {**shape, "classes": classes, "target_scale": target_scale, "mean": mean or [0.5] * channels, "std": std or [0.25] * channels}
        self.start = {"wire": 2, "version": version(), "lane": lane, "lanes": lanes, "seed": seed, "threads": 1, "samples": samples, "block": block}
        self.start.update(start or {})
        self.environment = dict(os.environ, PYTHONPATH=str(package), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", **(environment or {}))
        self.command, self.folder, self.warm, self.errors, self.status, self.outputs = list(command), folder, warm, "", None, ""
        self.socket = self.process = None

    # ---- a conversation ----

    def __enter__(self):
        self.launch()
        try:
            self.prepare()
        except BaseException as error:
            self.close(kill=not isinstance(error, Failed))
            raise
        return self

    def __exit__(self, kind, error, trace):
        self.close(kill=error is not None and not isinstance(error, Failed))

    def launch(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self._files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        if self.warm:
            descriptors = [each.fileno() for each in (theirs, *self._files)]
            self.process = self.warm.start(self.command, self.environment, self.folder, *descriptors)
        else:
            environment = dict(self.environment, GRADCAST_ATTACH=str(theirs.fileno()))
            self.process = subprocess.Popen([sys.executable, *map(str, self.command)], env=environment, pass_fds=[theirs.fileno()], cwd=self.folder,
                                            stdin=subprocess.DEVNULL, stdout=self._files[0], stderr=self._files[1])
        theirs.close()

    def prepare(self):
        """START to READY."""
        self.say_text(START, json.dumps(self.start))
        self.hello = json.loads(self.hear_text(HELLO))
        self.lay_out()
        self.gradients[self.used] = np.nan
        self.say_text(MEMORY, json.dumps(self.memory), self.descriptors)
        for each in self.descriptors:
            os.close(each)
        self.descriptors = []
        if self.memory["constants"]:
            self.hear_constants()
        if self.hear_text(READY):
            raise Wrong("READY has a text")
        self.check_padding("READY")
        for at, count in self.running:
            if not (np.all(self.gradients[at : at + count] == 0) and np.all(self.gradients[at + count : at + 2 * count] == 1)):
                raise Wrong("running statistics do not begin with 0 and 1")
        self.check_written("initial values")
        self.parameters[:] = self.gradients

    def runs(self):
        return self.process.poll() is None

    def close(self, kill=False):
        """Ends the socket.  The process has its patience to end."""
        if self.process is None:
            return
        self.socket.close()
        for each in getattr(self, "descriptors", []):
            os.close(each)
        self.descriptors = []
        try:
            if kill:
                self.process.kill()
            self.status = self.process.wait(WAIT_S if kill else 10 * PATIENCE_S)
        except (subprocess.TimeoutExpired, TimeoutError):
            self.process.kill()
            self.process.wait()
            raise Wrong("the process has not ended after the end of the socket") from None
        finally:
            texts = []
            for file in self._files:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
                file.close()
            self.outputs, self.errors = texts
            if hasattr(self.process, "close"):
                self.process.close()
            self.process = None

    def train(self, indices, step=None, block=0, seed=None):
        """A training block of these samples."""
        self.gradients[self.used] = np.nan
        count = self.compute(0, indices, self.steps if step is None else step, block, seed)
        loss, _ = self.hear_loss()
        copies = []
        for index, (first, elements) in enumerate(self.buckets):
            _, found = struct.unpack("<II", self.hear(BUCKET, 8))
            if found != index:
                raise Wrong(f"bucket {found} comes where bucket {index} is wanted")
            copies.append(self.gradients[first : first + elements].copy())
        self.hear_done()
        for index, (first, elements) in enumerate(self.buckets):
            if not np.array_equal(copies[index], self.gradients[first : first + elements], equal_nan=True):
                raise Wrong(f"bucket {index} has changed after it was handed in")
        self.check_written("the gradient")
        self.check_padding("DONE")
        self.steps += 1
        return Trained(loss, self.gradients.copy(), count)

    def evaluate(self, indices):
        self.predicted[:] = -2
        count = self.compute(1, indices, 0, 0, 0)
        loss, right = self.hear_loss()
        self.hear_done()
        return Evaluated(loss, right, self.predicted[:count].copy())

    def apply(self, trained, lr=0.1):
        """A step of plain SGD; running statistics move a tenth of the way."""
        mean = trained.gradient / np.float32(trained.count)
        for at, elements, *_ in self.tensors:
            self.parameters[at : at + elements] -= np.float32(lr) * mean[at : at + elements]
        for at, channels in self.running:
            place = slice(at, at + 2 * channels)
            self.parameters[place] += np.float32(0.1) * (mean[place] - self.parameters[place])

    def tensor(self, vector, name):
        """A tensor of a flat vector."""
        for (at, elements, shape), each in zip(self.tensors, self.hello["tensors"]):
            if each["name"] == name:
                return vector[at : at + elements].reshape(shape)
        raise KeyError(name)

    def statistics(self, vector, name):
        """A module's means and second moments, [2, channels]."""
        for (at, channels), each in zip(self.running, self.hello["running"]):
            if each["name"] == name:
                return vector[at : at + 2 * channels].reshape(2, channels)
        raise KeyError(name)

    # ---- memory ----

    def lay_out(self):
        """The flat vector: tensors at multiples of 16, running statistics behind them.  Buckets from the end."""
        end, self.tensors, self.running = 0, [], []
        for each in self.hello["tensors"]:
            elements = int(np.prod(each["shape"], dtype=np.int64))
            self.tensors.append((end, elements, each["shape"]))
            end += (elements + 15) // 16 * 16
        statistics = end
        for each in self.hello["running"]:
            self.running.append((end, each["channels"]))
            end += 2 * each["channels"]
        self.elements = end
        self.used = np.zeros(end, bool)
        for at, elements, _ in self.tensors:
            self.used[at : at + elements] = True
        for at, channels in self.running:
            self.used[at : at + 2 * channels] = True
        self.buckets = [[statistics, end - statistics]] if self.running else []
        upper = statistics
        for at, _, _ in reversed(self.tensors):
            if upper - at >= self.bucket_elements or at == 0:
                self.buckets.append([at, upper - at])
                upper = at
        C, H, W = (self.start["samples"].get(key, 0) for key in "CHW")
        parts, size = {}, 0
        for name, length in (("images", self.block_max * C * H * W), ("labels", 4 * self.block_max), ("indices", 8 * self.block_max),
                             ("predicted", 4 * self.block_max), ("gradients", 4 * self.elements)):
            parts[name] = size
            size += (length + 63) // 64 * 64
        self.descriptors = [memory("parameters", 4 * self.elements), memory("block", size)]
        first, second = (mmap.mmap(fd, os.fstat(fd).st_size) for fd in self.descriptors)
        fcntl.fcntl(self.descriptors[0], 1033, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE | SEAL_SEAL)
        fcntl.fcntl(self.descriptors[1], 1033, SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)
        self.parameters = np.frombuffer(first, np.float32)

        def array(name, kind, count):
            return np.frombuffer(second, kind, count, parts[name])

        self.pixels = array("images", np.uint8, self.block_max * C * H * W).reshape(self.block_max, C, H, W)
        self.targets, self.indices = array("labels", np.int32, self.block_max), array("indices", np.uint64, self.block_max)
        self.predicted, self.gradients = array("predicted", np.int32, self.block_max), array("gradients", np.float32, self.elements)
        self.memory = {"parameters": 4 * self.elements, "bytes": size, "elements": self.elements, "tensors": [at for at, *_ in self.tensors],
                       "running": [at for at, _ in self.running], "buckets": self.buckets, "block": self.block_max, "constants": bool(self.hello["constants"]), **parts}

    def check_padding(self, when):
        if np.any(self.gradients.view(np.uint32)[~self.used]):
            raise Wrong(f"{when}: elements between tensors are not 0")

    def check_written(self, what):
        missing = np.flatnonzero(np.isnan(self.gradients) & self.used)
        if len(missing):
            raise Wrong(f"{what}: element {missing[0]} and {len(missing) - 1} others are not written, or NaN")

    # ---- messages ----

    def compute(self, mode, indices, step, block, seed):
        indices = np.asarray(indices, np.int64)
        count = len(indices)
        if len(self.images):
            self.pixels[:count], self.targets[:count] = self.images[indices], self.labels[indices]
        self.indices[:count] = indices
        seed = (step << 32) + block if seed is None else seed
        self.say(struct.pack("<IIQIIQ", COMPUTE, mode, step, block, count, seed))
        return count

    def say(self, packet):
        self.socket.send(packet)

    def say_text(self, kind, text, descriptors=()):
        raw = text.encode()
        pieces = [raw[at : at + TEXT_MAX] for at in range(0, len(raw), TEXT_MAX)] or [b""]
        for i, piece in enumerate(pieces):
            last = i + 1 == len(pieces)
            packet = struct.pack("<II", kind, 0 if last else 1) + piece
            if last and descriptors:
                socket.send_fds(self.socket, [packet], list(descriptors))
            else:
                self.say(packet)

    def hear(self, wanted, size=None):
        packet = self.socket.recv(TEXT_MAX + 64)
        if not packet:
            raise Wrong("the process has closed the socket")
        kind = int.from_bytes(packet[:4], "little")
        if kind == FAIL:
            line = packet[8:].decode()
            if "\n" in line or len(packet) > 8 + 8192:
                raise Wrong(f"FAIL is not one line of at most 8 KiB: {line!r}")
            raise Failed(line)
        if kind != wanted:
            raise Wrong(f"message {kind} comes where {wanted} is wanted")
        if size is not None and len(packet) != size:
            raise Wrong(f"message {kind} has {len(packet)} bytes instead of {size}")
        return packet

    def hear_text(self, wanted):
        return self.hear_bytes(wanted).decode()

    def hear_bytes(self, wanted):
        text, more = b"", 1
        while more:
            packet = self.hear(wanted)
            more = int.from_bytes(packet[4:8], "little")
            text += packet[8:]
            if len(packet) > TEXT_MAX + 8 or more > 1:
                raise Wrong(f"message {wanted}: a piece has {len(packet)} bytes, more is {more}")
        return text

    def hear_constants(self):
        """Their bytes, by name, which must be those of HELLO."""
        raw = self.hear_bytes(CONSTANTS)
        self.constants = {}
        for each in self.hello["constants"]:
            size = WIDTHS[each["dtype"]] * int(np.prod(each["shape"], dtype=np.int64))
            self.constants[each["name"]], raw = raw[:size], raw[size:]
            if hashlib.sha256(self.constants[each["name"]]).hexdigest() != each["sha256"]:
                raise Wrong(f"constant {each['name']} has other bytes than HELLO says")
        if raw:
            raise Wrong(f"{len(raw)} bytes of constants too many")

    def hear_loss(self):
        _, right, loss = struct.unpack("<IId", self.hear(LOSS, 16))
        return loss, right

    def hear_done(self):
        if self.hear_text(DONE):
            raise Wrong("DONE has a text")


def memory(name, size):
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    return descriptor


def version():
    found = {}
    exec((package / "gradcast" / "version.py").read_text(), found)
    return found["__version__"]
