#!/usr/bin/python3
"""Tests of tools/python/gradcast.  tests/python/python_test.cc runs them: GC_SOCKET is a daemon's, GC_FOLDER has data.h5."""

import json
import os
import pathlib
import socket
import struct
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "python"))

import gradcast  # noqa: E402

JOB = """[job]
seed = 3
steps = {steps}
batch = 8
blocks = 2
[data]
train = "data.h5"
[net]
preset = "lenet5"
[optimiser]
lr = 0.01
"""


class Daemon(unittest.TestCase):
    """Against a daemon that runs."""

    def setUp(self):
        self.folder = os.environ["GC_FOLDER"]
        self.client = gradcast.Client(os.environ["GC_SOCKET"])

    def submit(self, steps=6, **more):
        return self.client.submit(JOB.format(steps=steps), base=self.folder, **more)

    def test_a_job_from_its_submit_to_its_end(self):
        job = self.submit(count=2)
        seen = list(self.client.watch(job))
        self.assertEqual(seen[-1]["status"]["state"], "done", seen[-1]["status"].get("error"))
        self.assertEqual(seen[-1]["status"]["step"], 6)
        found = self.client.describe(job[:12])
        self.assertEqual((found["id"], len(found["nodes"])), (job, 2))
        self.assertIn(job, [each["id"] for each in self.client.jobs()])
        self.assertIn("step", self.client.log(job))
        rows = list(gradcast.steps(found["folder"]))
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, 6])
        self.assertEqual(rows, list(gradcast.steps(os.path.join(found["folder"], "steps.jsonl"))))

    def test_a_job_file_by_its_path(self):
        path = os.path.join(self.folder, "from-python.toml")
        with open(path, "w") as file:
            file.write(JOB.format(steps=2))
        self.assertEqual(self.client.wait(self.client.submit(path), timeout=60)["status"]["state"], "done")

    def test_cancel_and_resume(self):
        job, cancelled = self.submit(steps=1000000, nodes=["a"]), None
        for found in self.client.watch(job):
            if found["status"]["step"] > 3 and not cancelled:
                cancelled = self.client.cancel(job)
        self.assertEqual(found["status"]["state"], "cancelled")
        again = self.client.resume(job, JOB.format(steps=found["status"]["step"] + 3), base=self.folder)
        ended = self.client.wait(again, timeout=60)
        self.assertEqual((ended["status"]["state"], ended["status"]["step"]), ("done", found["status"]["step"] + 3), ended["status"]["error"])

    def test_what_is_wrong_has_an_error(self):
        with self.assertRaisesRegex(gradcast.Refused, "no-such-job") as caught:
            self.client.describe("no-such-job")
        self.assertEqual(caught.exception.status, 404)
        with self.assertRaises(gradcast.Refused) as caught:
            self.client.submit("[job]\nstep = 3\n", base=self.folder)
        self.assertEqual(caught.exception.code, "invalid")
        with self.assertRaises(ValueError):
            self.client.describe("")
        with self.assertRaises(TypeError):
            self.submit(nodes="a")
        with self.assertRaises(FileNotFoundError):
            self.client.submit(os.path.join(self.folder, "no-such-file.toml"))
        with self.assertRaises(gradcast.Refused):
            list(self.client.watch("../../v1/nodes"))

    def test_wait_has_an_end(self):
        job = self.submit(steps=1000000, nodes=["a"])
        with self.assertRaises(TimeoutError):
            self.client.wait(job, timeout=0.2)
        self.client.cancel(job)
        self.assertEqual(self.client.wait(job, timeout=60)["status"]["state"], "cancelled")

    def test_nodes_and_version(self):
        self.assertEqual(sorted(each["name"] for each in self.client.nodes()), ["a", "b"])
        self.assertIn("version", self.client.version())


class Answers(unittest.TestCase):
    """Against a socket that answers with given bytes."""

    def client(self, answer, timeout=5.0):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        self.addCleanup(listener.close)

        def serve():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if timeout < 1:
                    connection.recv(1)   # until the client gives up

        threading.Thread(target=serve, daemon=True).start()
        return gradcast.Client(path, timeout)

    def body(self, text, head="200 OK"):
        return f"HTTP/1.1 {head}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()

    def test_nobody(self):
        with self.assertRaisesRegex(gradcast.Unreachable, "no gradcastd answers at /no/such.sock"):
            gradcast.Client("/no/such.sock").jobs()

    def test_nonsense(self):
        for answer, error in [
            (self.body("hello"), "not JSON"),
            (self.body("[1]"), "not a JSON object"),
            (self.body("{}"), 'no list "jobs"'),
            (b"hello\r\n\r\n", "gradcastd at "),
            (b"", "gradcastd at "),
            (self.body('{"jobs": []}')[:-3], "gradcastd at "),
            (self.body("<html>", "500 Oops"), "HTTP status 500"),
            (self.body('{"error": "it is full", "code": "node_io"}', "500 Oops"), "it is full"),
        ]:
            with self.assertRaisesRegex(gradcast.Error, error):
                self.client(answer).jobs()

    def test_silence(self):
        with self.assertRaisesRegex(gradcast.Unreachable, "took too long"):
            self.client(b"", timeout=0.2).jobs()

    def test_a_watch_that_ends_early(self):
        event = 'event: status\ndata: {"status": {"state": "running"}}\n\n'
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        seen = []
        with self.assertRaisesRegex(gradcast.Unreachable, "while the job ran"):
            for found in self.client((head + ": idle\n\n" + event).encode()).watch("1"):
                seen.append(found)
        self.assertEqual(len(seen), 1)
        with self.assertRaisesRegex(gradcast.Error, "broke off"):
            list(self.client((head + event + "data: {").encode()).watch("1"))


class FilesBase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")

    def write(self, content):
        with open(self.path, "wb") as file:
            file.write(content)
        return self.path


class Files(FilesBase):
    def test_steps(self):
        self.write(b'{"step":1,"loss":2.5}\n{"gap":[2,3],"logged_by":"b"}\n{"step":4,"loss":null}\n{"step":5,"lo')
        self.assertEqual([row["step"] for row in gradcast.steps(self.path)], [1, 4])
        for content in (b"hello\n", b"[1]\n", b'{"loss":1}\n', b"9" * (1 << 20) + b"9\n"):
            self.write(b'{"step":1}\n' + content)
            with self.assertRaisesRegex(ValueError, ":2: "):
                list(gradcast.steps(self.path))


class Arrays(FilesBase):
    """What needs numpy."""

    def setUp(self):
        super().setUp()
        import numpy

        self.numpy = numpy

    def test_steps_of_a_job(self):
        client = gradcast.Client(os.environ["GC_SOCKET"])
        found = client.wait(client.submit(JOB.format(steps=6), base=os.environ["GC_FOLDER"], nodes=["a"]), timeout=60)
        arrays = gradcast.steps(found["folder"], arrays=True)
        self.assertEqual(arrays["step"].tolist(), [1, 2, 3, 4, 5, 6])
        self.assertEqual(arrays["step"].dtype, self.numpy.int64)
        self.assertEqual(arrays["loss"].dtype, self.numpy.float64)
        self.assertNotIn("digest", arrays)

    def test_arrays_of_steps(self):
        self.write(b'{"step":1,"loss":2.5,"a":1,"b":true}\n{"step":2,"loss":null,"b":false}\n')
        arrays = gradcast.steps(self.path, arrays=True)
        self.assertEqual(set(arrays), {"step", "loss", "a"})
        self.assertTrue(self.numpy.isnan(arrays["loss"][1]) and self.numpy.isnan(arrays["a"][1]))

    def test_safetensors(self):
        data = struct.pack("<3f", 1, 2, 3) + b"\x80\x3f\x00\xc0"
        header = {
            "__metadata__": {"a": "b"},
            "w": {"dtype": "F32", "shape": [3, 1], "data_offsets": [0, 12]},
            "b": {"dtype": "BF16", "shape": [2], "data_offsets": [12, 16]},
            "none": {"dtype": "I64", "shape": [0], "data_offsets": [16, 16]},
        }
        found = gradcast.load(self.write(self.tensors(header, data)))
        self.assertEqual(found["w"].tolist(), [[1], [2], [3]])
        self.assertEqual(found["b"].tolist(), [1, -2])
        self.assertEqual(found["none"].shape, (0,))

    def test_safetensors_that_are_none(self):
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        for content in (
            b"",
            b"hello, world",
            struct.pack("<Q", 1 << 60),
            struct.pack("<Q", 3) + b"{}",
            struct.pack("<Q", 2) + b"[]",
            self.tensors({"w": entry}),
            self.tensors({"w": 3}),
            self.tensors({"w": {**entry, "dtype": "F31"}}, bytes(4)),
            self.tensors({"w": {**entry, "shape": [2]}}, bytes(4)),
            self.tensors({"w": {**entry, "shape": [-1]}}, bytes(4)),
            self.tensors({"w": {**entry, "shape": 1}}, bytes(4)),
            self.tensors({"w": {**entry, "data_offsets": [4, 0]}}, bytes(4)),
            self.tensors({"w": {**entry, "data_offsets": [0, 4, 8]}}, bytes(4)),
        ):
            with self.assertRaisesRegex(ValueError, self.path):
                gradcast.load(self.write(content))

    @staticmethod
    def tensors(header, data=b""):
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data


if __name__ == "__main__":
    unittest.main(verbosity=2)
