#!/usr/bin/python3
"""Tests of gradcast.attach with nets in numpy, against fake_daemon.py.  attach_torch_test.py has those with torch."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_daemon import NO_CLASSES, COMPUTE, Failed, FakeDaemon, Wrong, package  # noqa: E402

examples = package / "examples"
rng = np.random.default_rng(5)

# A linear regression to the labels.  The first lines of most scripts here.
LINEAR = """
import numpy as np
import gradcast
pixels = gradcast.settings().C * gradcast.settings().H * gradcast.settings().W
net = {"w": np.ones(pixels, np.float32), "b": np.full((1,), 3, np.float32)}
def compute(block, out=None):
    x, y = block.samples
    x = x.reshape(len(x), -1)
    off = x @ net["w"] + net["b"] - y
    return float((off * off).sum()), {"w": 2 * x.T @ off, "b": 2 * off.sum(keepdims=True)}
"""


def images(count=16, shape=(2, 3, 5)):
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


class Scripts(unittest.TestCase):
    """Runs a script, whose text is a test's, against a fake daemon."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.images, self.labels = images(), rng.integers(0, 10, 16)

    def daemon(self, text, *arguments, **more):
        (self.folder / "train.py").write_text(text)
        more.setdefault("images", self.images)
        more.setdefault("labels", self.labels)
        return FakeDaemon(["train.py", *arguments], folder=self.folder, **more)

    def body(self, text):
        """The class's LOOP, with this in it."""
        return self.LOOP.replace("BODY", text.strip())

    def fails(self, text, pattern, before=None, **more):
        """The script says FAIL with a line of this pattern, before HELLO or in the first block, and exits with a traceback.  Returns its errors."""
        daemon = self.daemon(text, **more)
        with self.assertRaisesRegex(Failed, pattern):
            with daemon:
                (before or (lambda: daemon.train([0, 1])))()
        self.assertEqual(daemon.status, 1, daemon.errors)
        self.assertIn("Traceback", daemon.errors)
        return daemon.errors


class Nets(Scripts):
    """What a script computes, and when."""

    def test_a_block_has_loss_and_gradients(self):
        text = LINEAR + """
with gradcast.attach(net) as job:
    assert sorted(job.parameters) == ["b", "w"]
    for block in job:
        loss, gradients = compute(block)
        block.done(loss, gradients=gradients)
"""
        with self.daemon(text, mean=[0.25, 0.5], std=[0.5, 0.75]) as daemon:
            self.assertEqual(daemon.hello["tensors"], [{"name": "w", "shape": [30]}, {"name": "b", "shape": [1]}])
            self.assertEqual(daemon.parameters[:32].tolist(), [1] * 30 + [0] * 2)
            for _ in range(3):
                x = (self.images[:5] / 255 - np.array([0.25, 0.5]).reshape(-1, 1, 1)) / np.array([0.5, 0.75]).reshape(-1, 1, 1)
                x = x.reshape(5, -1)
                off = x @ daemon.parameters[:30] + daemon.parameters[32] - self.labels[:5]
                trained = daemon.train(range(5))
                self.assertAlmostEqual(trained.loss / (off @ off), 1, 5)
                np.testing.assert_allclose(daemon.tensor(trained.gradient, "w"), 2 * x.T @ off, rtol=1e-4, atol=1e-3)
                np.testing.assert_allclose(daemon.tensor(trained.gradient, "b"), [2 * off.sum()], rtol=1e-4, atol=1e-3)
                daemon.apply(trained, lr=0.001)
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_memory_says_how_large_a_block_is(self):
        text = LINEAR + """
with gradcast.attach(net) as job:
    for block in job:
        loss, gradients = compute(block)
        block.done(loss, gradients=gradients)
"""
        with self.daemon(text, start={"block": 0, "threads": 0}) as daemon:
            daemon.train(range(8))
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_samples_have_the_bits_that_nets_of_gradcast_see(self):
        text = """
import numpy as np
import gradcast
with gradcast.attach({"w": np.zeros((2, 3, 5), np.float32)}) as job:
    for block in job:
        x, y = block.samples
        assert x.dtype == np.float32 and x.shape == (1, 2, 3, 5) and y.dtype == np.int64 and block.count == 1
        assert block.raw.dtype == np.uint8 and block.raw.shape == x.shape and block.indices.tolist() == [y[0]]
        x[0, 0, 0, 0] += 0   # a copy, which may be changed
        block.done(0.0, gradients={"w": x[0]})
"""
        mean, std = [0.2860406, 0.4822], [0.35302424, 0.2435]
        # Each byte once in either channel.
        values = np.stack([np.arange(256).astype(np.uint8).repeat(15).reshape(256, 3, 5)] * 2, 1)
        with self.daemon(text, images=values, labels=np.arange(256), mean=mean, std=std) as daemon:
            for byte in range(256):
                found = daemon.tensor(daemon.train([byte]).gradient, "w")
                for channel in range(2):
                    m, s = np.float32(mean[channel]), np.float32(std[channel])
                    scale, shift = np.float32(1) / (np.float32(255) * s), -m / s
                    wanted = np.float32(byte) * scale + shift
                    self.assertTrue(np.all(found[channel] == wanted), (byte, found[channel], wanted))
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_targets_of_a_regression(self):
        text = """
import numpy as np
import gradcast
with gradcast.attach({"w": np.zeros(4, np.float32)}) as job:
    for block in job:
        x, y = block.samples
        assert y.dtype == np.float32
        block.done(float(y.sum()), np.zeros((4, 1)), gradients={"w": y} if block.training else None)
"""
        with self.daemon(text, labels=[0, 5, 9, 4] * 4, classes=9, target_scale=0.25) as daemon:
            self.assertEqual(daemon.train(range(4)).gradient[:4].tolist(), [-1, 0.25, 1.25, 0])
            self.assertEqual(daemon.evaluate(range(4)).right, NO_CLASSES)

    def test_an_evaluation_counts_the_right_ones(self):
        text = """
import sys
import numpy as np
import gradcast
with gradcast.attach({"w": np.zeros(1, np.float32)}) as job:
    for block in job:
        assert not block.training
        _, y = block.samples
        out = np.zeros((len(y), 10), np.float32)
        out[np.arange(len(y)), (y + (y > 5)) % 10] = 1
        if sys.argv[1] == "out":
            block.done(1.5, out)
        elif sys.argv[1] == "predicted":
            block.done(1.5, predicted=out.argmax(1))
        elif sys.argv[1] == "loss":
            block.done(1.5)
        elif sys.argv[1] == "positions":
            block.done(1.5, np.zeros((len(y), 7, 10)))
"""
        labels = np.arange(8)
        for given in ("out", "predicted"):
            with self.daemon(text, given, labels=labels) as daemon:
                found = daemon.evaluate(range(8))
                self.assertEqual((found.loss, found.right, found.predicted.tolist()), (1.5, 6, [0, 1, 2, 3, 4, 5, 7, 8]))
        for given in ("loss", "positions"):
            with self.daemon(text, given, labels=labels) as daemon:
                self.assertEqual(daemon.evaluate(range(8)).right, NO_CLASSES)

    def test_own_data_by_indices(self):
        text = """
import numpy as np
import gradcast
data = np.arange(100, dtype=np.float32)
with gradcast.attach({"w": np.zeros(1, np.float32)}) as job:
    for block in job:
        i = block.indices
        assert i.dtype == np.int64
        try:
            block.samples
        except gradcast.AttachError as error:
            assert "block.indices" in str(error)
        else:
            raise SystemExit("no error")
        block.done(1.0, predicted=i % 2, labels=np.zeros(len(i)), gradients={"w": data[i].sum(keepdims=True)} if block.training else None)
"""
        text = text.replace("np.float32)})", "np.float32)}, data_digest='" + "0f" * 32 + "')")
        with self.daemon(text, images=None, labels=None, classes=0) as daemon:
            self.assertEqual(daemon.hello["data_digest"], "0f" * 32)
            self.assertEqual(daemon.train([3, 90]).gradient[0], 93)
            self.assertEqual(daemon.evaluate([3, 90, 92]).right, 2)

    def test_an_object_with_parameters(self):
        text = """
import numpy as np
import gradcast
class Net:
    def __init__(self):
        self.parameters = {"w": np.zeros((2, 2), np.float32).T}
net = Net()
with gradcast.attach(net) as job:
    for block in job:
        assert job.parameters is net.parameters
        block.done(np.float32(net.parameters["w"][0, 1]), gradients={"w": np.float64([[1, 2], [3, 4]])})
"""
        with self.daemon(text) as daemon:
            daemon.apply(daemon.train([0]), lr=1)
            self.assertEqual(daemon.train([0]).loss, -2)

    def test_seeds(self):
        text = """
import random
import numpy as np
import gradcast
with gradcast.attach({"w": np.random.rand(3).astype(np.float32), "b": np.float32([random.random()])}) as job:
    for block in job:
        assert 0 <= block.seed < 1 << 64
        block.done(0.0, gradients={"w": np.random.rand(3), "b": np.float32([random.random()])})
"""
        def run(seed, blocks):
            with self.daemon(text, seed=seed) as daemon:
                start = daemon.parameters.tobytes()
                return start, [daemon.train([0], seed=each).gradient.tobytes() for each in blocks]
        largest = (1 << 64) - 1
        start, blocks = run(1, [7, largest, 7])
        again, others = run(1, [largest])
        self.assertEqual(start, again)
        self.assertEqual(blocks[0], blocks[2])
        self.assertEqual(blocks[1], others[0])
        self.assertNotEqual(blocks[0], blocks[1])
        self.assertNotEqual(run(2, [7]), (start, blocks[:1]))
        self.assertNotEqual(run(largest, [1 << 32])[1], run(largest, [0])[1])

    def test_the_example(self):
        with FakeDaemon([examples / "mlp_numpy.py"], images(40, (3, 4, 6)), rng.integers(0, 4, 40), classes=4, seed=3, folder=examples) as daemon:
            self.assertEqual([each["name"] for each in daemon.hello["tensors"]], ["w1", "b1", "w2", "b2"])
            self.assertEqual(daemon.hello["modules"][0]["path"], "mlp_numpy.py")
            trained = daemon.train(range(8))
            # The backward pass, against finite differences of the loss.
            for name, at in (("w1", (5, 3)), ("b1", (2,)), ("w2", (4, 1)), ("b2", (3,))):
                place, step = daemon.tensor(daemon.parameters, name), np.float32(1 / 64)
                value = place[at]
                place[at] = value + step
                above = daemon.evaluate(range(8)).loss
                place[at] = value - step
                below = daemon.evaluate(range(8)).loss
                place[at] = value
                slope = (above - below) / (2 * step)
                self.assertAlmostEqual(float(daemon.tensor(trained.gradient, name)[at]), slope, delta=0.02 + abs(slope) * 0.05)
            for _ in range(60):
                for first in range(0, 40, 8):
                    daemon.apply(daemon.train(range(first, first + 8)), lr=0.1)
            self.assertGreater(sum(daemon.evaluate(range(first, first + 8)).right for first in range(0, 40, 8)), 35)
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_hello_names_libraries_and_modules(self):
        (self.folder / "sub").mkdir()
        (self.folder / "sub" / "__init__.py").write_text("")
        (self.folder / "sub" / "layers.py").write_text("a = 1\n")
        (self.folder / "site-packages").mkdir()
        (self.folder / "site-packages" / "other.py").write_text("")
        text = "import sys; sys.path.append('site-packages')\nimport sub.layers, other, json\n" + LINEAR + "with gradcast.attach(net) as job:\n    for block in job: pass\n"
        with self.daemon(text) as daemon:
            import hashlib

            self.assertEqual([each["path"] for each in daemon.hello["modules"]], ["sub/__init__.py", "sub/layers.py", "train.py"])
            self.assertEqual(daemon.hello["modules"][2]["sha256"], hashlib.sha256(text.encode()).hexdigest())
            self.assertEqual(set(daemon.hello["libraries"]) - {"blas"}, {"python", "numpy"})
            self.assertEqual(daemon.hello["libraries"]["numpy"], np.__version__)
            self.assertEqual((daemon.hello["wire"], daemon.hello["version"], daemon.hello["running"]), (2, daemon.start["version"], []))

    def test_a_hello_of_many_pieces(self):
        text = """
import numpy as np
import gradcast
with gradcast.attach({"block.%d.é" % i: np.full((3, 2), i, np.float32) for i in range(2000)}) as job:
    for block in job:
        block.done(0.0, gradients={name: array + 1 for name, array in job.parameters.items()})
"""
        with self.daemon(text, bucket=1000) as daemon:
            self.assertEqual(daemon.hello["tensors"][1999], {"name": "block.1999.é", "shape": [3, 2]})
            self.assertGreater(len(daemon.buckets), 20)
            gradient = daemon.train([0]).gradient
            self.assertTrue(np.all(daemon.tensor(gradient, "block.1234.é") == 1235))


class Ends(Scripts):
    """How a process ends, and what it says then."""

    LOOP = LINEAR + """
with gradcast.attach(net) as job:
    for block in job:
        loss, gradients = compute(block)
        BODY
"""

    def test_an_exception_in_the_loop(self):
        errors = self.fails(self.body("raise LookupError('missing\\n  thing')"), "^LookupError: missing thing$")
        self.assertRegex(errors, r"line \d+, in <module>\n.*raise LookupError")

    def test_a_long_exception_is_cut(self):
        daemon = self.daemon(self.body("raise ValueError('é\\n' * 100000)"))
        with self.assertRaises(Failed) as found, daemon:
            daemon.train([0])
        line = str(found.exception)
        self.assertTrue(line.startswith("ValueError: é é é") and len(line.encode()) > 8000, line[:100])

    def test_exceptions_outside_of_the_loop(self):
        self.fails("import gradcast\n1 / 0\n", "^ZeroDivisionError: division by zero$")
        self.fails(LINEAR + "job = gradcast.attach(net)\nfor block in job:\n    raise OSError(5, 'no disk')\n", r"^OSError: \[Errno 5\] no disk$")

    def test_a_script_that_ends_early(self):
        self.fails(self.body("break"), "^AttachError: the script has ended before the job")
        for text, pattern in (("", r"^the script has ended before the job: it has not called gradcast.attach\(\)$"),
                              ("job = gradcast.attach(net)\nnext(job)\n", "^the script has ended before the job$")):
            daemon = self.daemon(LINEAR + text)
            with self.assertRaisesRegex(Failed, pattern), daemon:
                daemon.train([0])
        daemon = self.daemon(self.body("raise SystemExit(4)"))
        with self.assertRaisesRegex(Failed, "^SystemExit: 4$"), daemon:
            daemon.train([0])
        self.assertEqual(daemon.status, 4)

    def test_blocks_and_done(self):
        self.fails(self.body("pass"), r"the block of step 1 is not done: each block ends with block.done\(loss, out\)")
        daemon = self.daemon(self.body("block.done(loss, gradients=gradients); block.done(loss, gradients=gradients)"))
        with self.assertRaisesRegex(Failed, "^AttachError: block.done: the block is done"), daemon:
            daemon.train([0])
            daemon.train([0])

    def test_what_done_refuses(self):
        for call, pattern in (
            ("loss", "a training block of a net without torch is done with its gradients"),
            ("loss, gradients={'w': gradients['w']}", "gradients: b is missing"),
            ("loss, gradients={**gradients, 'c': 1}", "gradients: c is no parameter; there are w, b"),
            ("loss, gradients={'w': gradients['w'][1:], 'b': gradients['b']}", r"gradients: w has shape \[29\]; the parameter has \[30\]"),
            ("float('nan'), gradients=gradients", "the loss of step 1, block 0 is nan"),
            ("float('inf'), gradients=gradients", "the loss of step 1, block 0 is inf"),
            ("[1.0, 2.0], gradients=gradients", r"the loss is a list of shape \[2\]"),
            ("'low', gradients=gradients", "the loss is a str"),
            ("loss, np.zeros((3, 10)), gradients=gradients", r"out has shape \[3, 10\]; it has one row for each of the block's 2 samples"),
            ("loss, predicted=[0.5, 1], gradients=gradients", r"predicted is float64 of shape \[2\]; integers of shape \[2\] are wanted"),
        ):
            with self.subTest(call):
                self.fails(self.body(f"block.done({call})"), "^AttachError: " + pattern)

    def test_parameters_that_cannot_be_attached(self):
        for net, pattern in (
            ("{'w': np.zeros(3)}", "parameter w is float64; gradcast trains float32"),
            ("{'w': np.zeros(3, np.float16)}", "parameter w is float16"),
            ("{'w': [1.0]}", "parameter w: a list, not a numpy array"),
            ("{'w': np.zeros((3, 0), np.float32)}", r"parameter w has no elements: its shape is \[3, 0\]"),
            ("{}", "the net has no parameters"),
            ("3", "a int cannot be attached"),
        ):
            with self.subTest(net):
                self.fails(f"import numpy as np\nimport gradcast\ngradcast.attach({net})\n", "^AttachError: " + pattern)
        self.fails("import numpy as np\nimport gradcast\ngradcast.attach({'w': np.zeros(3, np.float32)}, data_digest=b'')\n", "^AttachError: data_digest is b''")

    def test_parameters_are_written_by_gradcast_alone(self):
        self.fails(self.body("net['w'] -= gradients['w']"), "^ValueError: .*read-only")

    def test_a_process_attaches_once(self):
        self.fails(LINEAR + "gradcast.attach(net)\ngradcast.attach(net)\n", r"^RuntimeError: gradcast.attach\(\) was called before")

    def test_versions_that_differ(self):
        self.fails("import gradcast\n", "the package gradcast is [0-9.]+ and gradcastd is 9.8.7: install", start={"version": "9.8.7"})
        self.fails("import gradcast\n", "the package gradcast has border 2 and gradcastd has 3", start={"wire": 3})

    def test_the_end_of_the_job(self):
        # Between blocks, in a block, and before MEMORY: the script goes on behind its loop.
        text = self.body("open('computing', 'w').close(); import time\n        while open('computing').read() == '': time.sleep(0.01)\n"
                                "        block.done(loss, gradients=gradients)") + "print('behind the loop', len(list(job)))\n"
        with self.daemon(text) as daemon:
            pass
        self.assertEqual((daemon.status, daemon.outputs, daemon.errors), (0, "behind the loop 0\n", ""))
        with self.daemon(text) as daemon:
            daemon.compute(0, [0], 1, 0, None)
            daemon.socket.close()
            while not (self.folder / "computing").exists():
                self.assertTrue(daemon.runs())
            (self.folder / "computing").write_text("go on")
        self.assertEqual((daemon.status, daemon.outputs, daemon.errors), (0, "behind the loop 0\n", ""))
        daemon = self.daemon(text)
        daemon.launch()
        daemon.say_text(1, json.dumps(daemon.start))
        daemon.hear_text(16)
        daemon.close()
        self.assertEqual((daemon.status, daemon.outputs, daemon.errors), (0, "behind the loop 0\n", ""))

    def test_children_do_not_hold_the_socket(self):
        text = self.body("""
        import os, subprocess, sys, time
        child = os.fork()
        if child == 0:
            try:
                block.done(loss, gradients=gradients)
            finally:
                time.sleep(100)
        other = subprocess.Popen(["sleep", "100"], close_fds=False)
        print(child, other.pid, os.environ.get("GRADCAST_ATTACH"), flush=True)
        os._exit(3)
""")
        daemon = self.daemon(text)
        daemon.launch()
        try:
            daemon.prepare()
            with self.assertRaisesRegex(Wrong, "closed the socket"):   # while both children live
                daemon.train([0])
        finally:
            daemon.close()
            child, other, variable = daemon.outputs.split()
            for each in (child, other):
                os.kill(int(each), signal.SIGKILL)
        self.assertEqual((daemon.status, variable), (3, "None"))

    def test_nonsense_of_the_daemon(self):
        for packet, pattern in (
            (struct.pack("<II", 1, 0), r"COMPUTE was expected of gradcastd, which said START \(8 bytes\)"),
            (struct.pack("<IIQIIQ", COMPUTE, 7, 1, 0, 1, 0), "mode 7"),
            (struct.pack("<IIQIIQ", COMPUTE, 0, 1, 0, 9, 0), "has 9 samples; 1 to 8 are possible"),
            (struct.pack("<IIQIIQ", COMPUTE, 0, 1, 0, 0, 0), "has 0 samples"),
        ):
            daemon = self.daemon(self.body("pass"))
            with self.subTest(pattern), self.assertRaisesRegex(Failed, pattern), daemon:
                daemon.say(packet)
                daemon.hear(0)

    def test_memory_that_makes_no_sense(self):
        def changed(change):
            daemon = self.daemon(self.body("pass"))
            lay_out = daemon.lay_out

            def wrong():
                lay_out()
                change(daemon.memory)

            daemon.lay_out = wrong
            return daemon

        for change, pattern in (
            (lambda m: m.update(bytes=1 << 30), "says 1073741824 bytes, and the memory has"),
            (lambda m: m.update(parameters=4), "parameters at byte 0 does not hold"),
            (lambda m: m.update(gradients=m["bytes"]), "gradients at byte .* does not hold"),
            (lambda m: m.update(labels=2), "labels at byte 2 does not hold"),
            (lambda m: m.update(tensors=[0]), "tensors is not a list of 2 places"),
            (lambda m: m.update(tensors=[0, 8]), "b begins at 8"),
            (lambda m: m.update(tensors=[0, 48]), "b begins at 48"),
            (lambda m: m.update(buckets=[[0, 32]]), "not every tensor is in exactly one bucket"),
            (lambda m: m.update(buckets=[3]), "3 is not a bucket"),
            (lambda m: m.pop("elements"), "elements is None"),
        ):
            daemon = changed(change)
            with self.subTest(pattern), self.assertRaisesRegex(Failed, "MEMORY of gradcastd: .*" + pattern), daemon:
                pass


class Outside(unittest.TestCase):
    """A script that gradcast has not started."""

    def run_script(self, text, **environment):
        given = {name: value for name, value in os.environ.items() if name != "GRADCAST_ATTACH"}
        return subprocess.run([sys.executable, "-c", text], env={**given, "PYTHONPATH": str(package), **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def test_outside_of_a_job(self):
        for call in ("attach({})", "settings()"):
            found = self.run_script(f"import gradcast; gradcast.{call}")
            self.assertEqual(found.returncode, 1)
            self.assertIn("RuntimeError: this script is started by gradcast: net.command of a job file", found.stderr)

    def test_the_package_needs_neither_numpy_nor_torch(self):
        found = self.run_script("import sys, gradcast; print('numpy' in sys.modules, 'torch' in sys.modules)")
        self.assertEqual((found.stdout, found.stderr), ("False False\n", ""))

    def test_a_variable_that_names_no_socket(self):
        for value, pattern in (("x", "GRADCAST_ATTACH=x: not the number of a descriptor"), ("777", "=777: no open descriptor"), ("0", "=0: not a socket")):
            found = self.run_script("import gradcast", GRADCAST_ATTACH=value)
            self.assertEqual(found.returncode, 1)
            self.assertIn(pattern, found.stderr)


class TheFakeDaemon(Scripts):
    """fake_daemon.py finds what is wrong."""

    LOOP = LINEAR + """
with gradcast.attach(net) as job:
    for block in job:
        loss, gradients = compute(block)
        border, memory = job._border, job._memory
        memory.gradients[:] = 0
        BODY
        import sys
        sys.stdin.read(), __import__("time").sleep(60)
"""

    def test_it_finds_what_is_wrong(self):
        for text, pattern in (
            ("border.done()", "message 20 comes where 18 is wanted"),
            ("border.loss(1, 0); border.bucket(1)", "bucket 1 comes where bucket 0 is wanted"),
            ("border.loss(1, 0); border.bucket(0); border.done()", "message 20 comes where 19 is wanted"),
            ("memory.gradients[31] = 1; border.loss(1, 0); border.bucket(0); border.bucket(1); border.done()", "elements between tensors are not 0"),
            ("memory.gradients[3] = np.nan; border.loss(1, 0); border.bucket(0); border.bucket(1); border.done()", "element 3 and 0 others"),
            ("border._send(b'12345678')", "message 875770417 comes"),
        ):
            daemon = self.daemon(self.body(text), bucket=16)
            with self.subTest(text), self.assertRaisesRegex(Wrong, pattern), daemon:
                self.assertEqual(len(daemon.buckets), 2)
                daemon.train([0])

    def test_the_parameters_cannot_be_mapped_for_writing(self):
        text = LINEAR + """
import gradcast.memory, mmap, re
real = gradcast.memory._map
def writing(descriptor, size, protection, name):
    return real(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE, name)
gradcast.memory._map = writing
gradcast.attach(net)
"""
        self.fails(text, "bytes of parameters cannot be mapped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
