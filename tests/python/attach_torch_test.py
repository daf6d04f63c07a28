#!/usr/bin/python3
"""Tests of gradcast.attach with nets in torch, against fake_daemon.py, and against plain torch in this process."""

import os
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from attach_test import Scripts, examples, images
from fake_daemon import NO_CLASSES, Failed, FakeDaemon
from warm_python import WarmPython

warm = WarmPython(["torch", "torch.utils.checkpoint", "torch.utils.data"])   # before a backward pass of this process
torch.set_num_threads(1)

# The model is MODEL, and BODY is the loop's.
SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
import gradcast
MODEL
with gradcast.attach(model) as job:
    for block in job:
        x, y = block.samples
        BODY
"""
PLAIN = """
        out = model(x)
        block.done(F.cross_entropy(out, y, reduction="sum"), out)
"""
CONV = """
model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 15, 10))
"""
NORM = """
model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 10),
                      nn.BatchNorm1d(10, track_running_stats=False))
"""


class TorchScripts(Scripts):
    def script(self, model, body=PLAIN, **more):
        more.setdefault("warm", warm)
        return self.daemon(SCRIPT.replace("MODEL", model.strip()).replace("BODY", body.strip()), **more)

    def refused(self, model, pattern, body=PLAIN, **more):
        """The script fails with an AttachError of this pattern, in attach() or in the first two blocks.  Returns its errors."""
        def blocks():
            daemon.train([0, 1, 2])
            daemon.train([3, 4, 5])
        daemon = self.script(model, body, **more)
        with self.assertRaisesRegex(Failed, "^AttachError: " + pattern), daemon:
            blocks()
        self.assertEqual(daemon.status, 1, daemon.errors)
        return daemon.errors

    def plain(self, daemon, model):
        """The model of a script, built here, with the daemon's parameters."""
        found = {}
        exec("import torch\nfrom torch import nn\n" + model, found)
        model = found["model"]
        model.train()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.from_numpy(daemon.tensor(daemon.parameters, name)))
        return model

    def samples(self, indices):
        """x and y of these samples, as a script sees them."""
        half = np.float32(1) / (np.float32(255) * np.float32(0.25))
        x = self.images[indices].astype(np.float32) * half + np.float32(-2)
        return torch.from_numpy(x), torch.from_numpy(self.labels[indices]).long()

    def expect_gradients(self, daemon, trained, model):
        """The daemon's gradients have the bits of a model's."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                found = daemon.tensor(trained.gradient, name)
                wanted = np.zeros_like(found) if parameter.grad is None else parameter.grad.numpy()
                self.assertTrue(np.array_equal(found, wanted), name)


class Torch(TorchScripts):
    """What is computed."""

    def test_gradients_have_the_bits_of_plain_torch(self):
        with self.script(CONV) as daemon:
            for step in range(3):
                model = self.plain(daemon, CONV)
                some = np.arange(step, step + 6)
                x, y = self.samples(some)
                torch.manual_seed(1000 + step)
                loss = F.cross_entropy(model(x), y, reduction="sum")
                loss.backward()
                trained = daemon.train(some, seed=1000 + step)
                self.assertEqual(trained.loss, loss.item())
                self.expect_gradients(daemon, trained, model)
                daemon.apply(trained)
            model = self.plain(daemon, CONV).eval()
            with torch.no_grad():
                out = model(self.samples(np.arange(8))[0])
            found = daemon.evaluate(range(8))
            self.assertEqual(found.predicted.tolist(), out.argmax(1).tolist())
            self.assertEqual(found.right, int((out.argmax(1).numpy() == self.labels[:8]).sum()))
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_a_block_does_not_depend_on_those_before(self):
        def run(blocks):
            with self.script(NORM) as daemon:
                return [(found.loss, found.gradient.tobytes()) for found in (
                    daemon.train(range(first, first + 5), seed=first) for first in blocks)], daemon.parameters.tobytes()
        (found, start), (again, start_again) = run([0, 7, 0]), run([7])
        self.assertEqual(found[0], found[2])
        self.assertEqual(found[1], again[0])
        self.assertEqual(start, start_again)   # the constructors draw by the job's seed

    def test_constants_and_aliases(self):
        model = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(30, 30), nn.Linear(30, 30)
        self.second.weight = self.first.weight
        self.norm = self.other_norm = nn.BatchNorm1d(30)
        self.frozen = nn.Parameter(torch.arange(30.0).half(), requires_grad=False)
        self.register_buffer("order", torch.arange(30).flip(0))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("wave", torch.view_as_complex(torch.ones(2, 2)).conj())
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.again = self.order
        self.last = nn.Linear(30, 10)
        self.last.bias.requires_grad_(False)
        self.register_buffer("columns", torch.arange(6.0).reshape(2, 3).t())
    def forward(self, x):
        x = self.norm(self.second(self.first(x.flatten(1)))[:, self.order] * self.frozen.float())
        return self.last(x)
torch.manual_seed(3)
model = Tied()
"""
        with self.script(model) as daemon:
            found = {}
            exec("import torch\nfrom torch import nn\n" + model, found)
            state = found["model"].state_dict()
            constants = {each["name"]: each for each in daemon.hello["constants"]}
            self.assertEqual(list(constants), ["frozen", "order", "flags", "nothing", "wave", "columns", "last.bias"])
            types = {each["name"]: each["dtype"] for each in daemon.hello["constants"]}
            self.assertEqual(types, {"frozen": "F16", "order": "I64", "flags": "BOOL", "nothing": "F32", "wave": "C64", "columns": "F32", "last.bias": "F32"})
            for name, raw in daemon.constants.items():
                wanted = state[name].resolve_conj().contiguous().numpy()
                self.assertEqual((raw, constants[name]["shape"]), (wanted.tobytes(), list(wanted.shape)), name)
            aliases = [(each["name"], each["of"]) for each in daemon.hello["aliases"]]
            self.assertEqual(aliases, [("second.weight", "first.weight"), ("other_norm.weight", "norm.weight"), ("other_norm.bias", "norm.bias"),
                                       ("other_norm", "norm")])
            # Together they are the model's state.
            names = set(constants) | {each["name"] for each in daemon.hello["tensors"]}
            for module in [each["name"] for each in daemon.hello["running"]] + ["other_norm"]:
                names |= {f"{module}.{part}" for part in ("running_mean", "running_var", "num_batches_tracked")}
            self.assertEqual(names | {name for name, _ in aliases if name != "other_norm"}, set(state))
            daemon.train(range(6))
            daemon.train(range(3))
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_large_constants_come_in_pieces(self):
        model = """
model = nn.Sequential(nn.Flatten(), nn.Linear(30, 10))
for size in (0, 1, 32768, 32767, 100000, 1):
    model.register_buffer(f"b{size}{len(model._buffers)}", torch.arange(size, dtype=torch.int64).to(torch.uint8))
"""
        with self.script(model) as daemon:
            self.assertEqual([len(each) for each in daemon.constants.values()], [0, 1, 32768, 32767, 100000, 1])
        for size in (0, 32768):   # of one piece, which says that it is the last one
            with self.script(f"model = nn.Sequential(nn.Flatten(), nn.Linear(30, 10))\nmodel.register_buffer('b', torch.zeros({size}, dtype=torch.int8))") as daemon:
                self.assertEqual(daemon.constants, {"b": bytes(size)})

    def test_an_extra_state_is_named(self):
        model = """
class Extra(nn.Linear):
    def get_extra_state(self): return 5
    def set_extra_state(self, state): pass
model = nn.Sequential(nn.Flatten(), Extra(30, 10))
"""
        with self.script(model) as daemon:
            daemon.train(range(3))
        self.assertEqual(daemon.errors, "gradcast: 1 has an extra state (get_extra_state), which an exported model has not\n")

    def test_hello_says_how_torch_was_built(self):
        with self.script(CONV) as daemon:
            found = daemon.hello["libraries"]
        self.assertEqual((found["torch"], found["numpy"]), (torch.__version__, np.__version__))
        built = torch.__config__.show()
        self.assertIn(f"CPU capability usage: {found['torch.cpu']}", built)
        self.assertIn(f"BLAS_INFO={found['torch.blas']}", built)

    def test_the_seed_reaches_torch(self):
        # In Pythons of their own: torch is imported before gradcast, and after it.
        torch.manual_seed(5)
        found = {}
        exec("from torch import nn\n" + CONV, found)
        first = SCRIPT.replace("MODEL", CONV.strip()).replace("BODY", PLAIN.strip())
        later = first.replace("import gradcast\n", "", 1).replace("import torch\n", "import gradcast\nimport torch\n", 1)
        for script in (first, later):
            with self.daemon(script, seed=5) as daemon:
                for name, parameter in found["model"].named_parameters():
                    self.assertTrue(np.array_equal(daemon.tensor(daemon.parameters, name), parameter.detach().numpy()), name)

    def test_running_statistics(self):
        with self.script(NORM, "torch.save(model.state_dict(), 'state.pt') if not block.training else None\n" + PLAIN) as daemon:
            self.assertEqual(daemon.hello["running"], [{"name": "1", "channels": 4, "batches": True}, {"name": "5", "channels": 8, "batches": True}])
            sums = np.zeros(daemon.elements)
            for step in range(3):
                model = self.plain(daemon, NORM)
                inputs = {}
                for name in ("1", "5"):
                    dict(model.named_modules())[name].register_forward_pre_hook(lambda _, given, name=name: inputs.update({name: given[0].detach()}))
                some = np.arange(step, step + 7)
                x, y = self.samples(some)
                F.cross_entropy(model(x), y, reduction="sum").backward()
                trained = daemon.train(some)
                self.expect_gradients(daemon, trained, model)
                for name, given in inputs.items():
                    values = given.double().numpy().reshape(*given.shape[:2], -1)
                    found = daemon.statistics(trained.gradient, name)
                    np.testing.assert_allclose(found[0], values.mean(2).sum(0), rtol=1e-5, atol=1e-5)
                    np.testing.assert_allclose(found[1], (values * values).mean(2).sum(0), rtol=1e-5, atol=1e-5)
                daemon.apply(trained)
            model = self.plain(daemon, NORM)
            for name in ("1", "5"):
                mean, second = daemon.statistics(daemon.parameters, name).astype(np.float64)
                module = dict(model.named_modules())[name]
                module.running_mean.copy_(torch.from_numpy(mean))
                module.running_var.copy_(torch.from_numpy(np.maximum(second - mean * mean, 0)))
            some = np.arange(8)
            x, y = self.samples(some)
            model.eval()
            with torch.no_grad():
                loss = F.cross_entropy(model(x), y, reduction="sum").item()
            self.assertEqual(daemon.evaluate(some).loss, loss)
            # The script's own state_dict has them too in an evaluation.
            state = torch.load(self.folder / "state.pt")
            self.assertTrue(torch.equal(state["1.running_var"], model[1].running_var))
            trained = daemon.train(some)
            self.assertEqual(daemon.evaluate(some).loss, loss)   # a training block leaves no trace in evaluations
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_running_statistics_of_volumes(self):
        model = "model = nn.Sequential(nn.Unflatten(1, (1, 2)), nn.BatchNorm3d(1), nn.Flatten(), nn.Linear(30, 10))"
        with self.script(model) as daemon:
            x = self.samples(np.arange(4))[0].double().numpy()
            found = daemon.statistics(daemon.train(range(4)).gradient, "1")
            np.testing.assert_allclose(found[:, 0], [x.mean() * 4, (x * x).mean() * 4], rtol=1e-5)

    def test_the_model_is_torchs_own_again_behind_the_loop(self):
        text = SCRIPT.replace("MODEL", NORM.strip()).replace("BODY", PLAIN.strip()) + """
assert torch.is_grad_enabled() and model[1].momentum == 0.1
torch.save(model.state_dict(), "after.pt")
"""
        with self.daemon(text) as daemon:
            trained = daemon.train(range(8))
            daemon.apply(trained)
            daemon.evaluate(range(3))
            values = daemon.tensor(daemon.parameters, "0.weight").copy()
            mean = daemon.statistics(daemon.parameters, "1")[0].copy()
        self.assertEqual(daemon.status, 0, daemon.errors)
        state = torch.load(self.folder / "after.pt")
        self.assertTrue(np.array_equal(state["0.weight"].numpy(), values))
        self.assertTrue(np.array_equal(state["1.running_mean"].numpy(), mean))

    def test_buckets_come_while_the_backward_pass_runs(self):
        model = """
import os, time
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, dx):
        until = time.monotonic() + 30
        while block.step > 0 and not os.path.exists("bucket-0"):
            assert time.monotonic() < until, "no bucket came in time"
            time.sleep(0.01)
        return dx
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(30, 20), nn.Linear(20, 10)
    def forward(self, x):
        return self.second(Slow.apply(self.first(x.flatten(1))))
model = Net()
"""
        with self.script(model) as daemon:
            self.assertEqual(len(daemon.buckets), 2)
            daemon.train([0, 1])   # the first block shows which parameters get several gradients
            hear = daemon.hear

            def hearing(wanted, size=None):
                packet = hear(wanted, size)
                if wanted == 19:
                    (self.folder / "bucket-0").touch()
                return packet

            daemon.hear = hearing
            daemon.train([0, 1])
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_gradients_that_are_missing_or_come_twice(self):
        model = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.unused, self.b = nn.Linear(30, 30), nn.Linear(7, 3), nn.Linear(30, 10)
    def forward(self, x):
        x = x.flatten(1).requires_grad_()
        for _ in range(3):
            x = CALL
        return self.b(x)
model = Net()
"""
        gradients = []
        for call in ("checkpoint(self.a, x, use_reentrant=True)", "checkpoint(self.a, x, use_reentrant=False)", "self.a(x)"):
            with self.script(model.replace("CALL", call)) as daemon:
                self.assertGreater(len(daemon.buckets), 2)
                found = [daemon.train(range(5), seed=1).gradient for _ in range(3)]
                self.assertTrue(np.array_equal(found[0], found[2]))
                self.assertFalse(np.any(daemon.tensor(found[0], "unused.weight")))
                gradients.append(found[0])
            self.assertEqual((daemon.status, daemon.errors), (0, ""))
        np.testing.assert_allclose(gradients[0], gradients[2], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradients[1], gradients[2], rtol=1e-4, atol=1e-5)

    def test_checkpoints_around_a_norm(self):
        model = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(30, 12), nn.BatchNorm1d(12), nn.Linear(12, 10)
    def forward(self, x):
        x = self.a(x.flatten(1))
        return self.b(CALL)
model = Net()
"""
        found = []
        for call in ("checkpoint(self.norm, x, use_reentrant=True)", "checkpoint(self.norm, x, use_reentrant=False)", "self.norm(x)"):
            with self.script(model.replace("CALL", call)) as daemon:
                daemon.train(range(6))
                found.append(daemon.train(range(5)).gradient)
        self.assertTrue(np.array_equal(found[0], found[2]) and np.array_equal(found[1], found[2]))

    def test_a_second_gradient_that_only_a_later_block_has(self):
        model = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(30, 30), nn.Linear(30, 10)
    def forward(self, x):
        x = self.a(x.flatten(1).requires_grad_())
        out = self.b(x)
        return out + checkpoint(self.b, x, use_reentrant=True) if block.step > 0 else out
model = Net()
"""
        self.refused(model, "parameter b.(weight|bias) got a second gradient in a backward pass, and one in the first block")

    def test_tied_weights(self):
        model = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(30, 30), nn.Linear(30, 30)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.b(self.a(x.flatten(1)))[:, :10]
model = Net()
"""
        with self.script(model) as daemon:
            self.assertEqual([each["name"] for each in daemon.hello["tensors"]], ["a.weight", "a.bias", "b.bias"])
            for _ in range(2):
                plain = self.plain(daemon, model)
                x, y = self.samples(np.arange(5))
                F.cross_entropy(plain(x), y, reduction="sum").backward()
                trained = daemon.train(range(5))
                self.expect_gradients(daemon, trained, plain)
                daemon.apply(trained)

    def test_channels_last(self):
        with self.script(CONV.strip() + "\nmodel = model.to(memory_format=torch.channels_last)",
                         PLAIN.replace("model(x)", "model(x.contiguous(memory_format=torch.channels_last))")) as daemon:
            plain = self.plain(daemon, CONV)
            torch.manual_seed(9)
            x, y = self.samples(np.arange(6))
            F.cross_entropy(plain(x), y, reduction="sum").backward()
            trained = daemon.train(range(6), seed=9)
            for name, parameter in plain.named_parameters():
                np.testing.assert_allclose(daemon.tensor(trained.gradient, name), parameter.grad.numpy(), rtol=1e-4, atol=1e-4)
        self.assertEqual(daemon.status, 0, daemon.errors)
        self.assertIn("gradcast: parameter 0.weight: kept in row-major order now", daemon.errors)

    def test_autocast(self):
        body = """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            assert out.dtype == torch.bfloat16
            block.done(F.cross_entropy(out, y, reduction="sum"), out)
"""
        with self.script(NORM.replace("nn.BatchNorm1d(10, track_running_stats=False)", "nn.Identity()"), body) as daemon:
            for _ in range(2):
                trained = daemon.train(range(8))
                self.assertGreater(np.abs(trained.gradient).max(), 0.1)
                self.assertNotEqual(daemon.evaluate(range(8)).right, NO_CLASSES)
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_frozen_parameters_stay(self):
        model = CONV.strip() + "\nmodel[0].weight.requires_grad_(False); model[0].half_buffer = torch.ones(3)\nmodel[0].weight.data = model[0].weight.data.float()"
        with self.script(model) as daemon:
            self.assertEqual([each["name"] for each in daemon.hello["tensors"]], ["0.bias", "4.weight", "4.bias"])
            daemon.train(range(3))
            daemon.train(range(3))
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_a_sparse_embedding_and_outputs_without_classes(self):
        model = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6, sparse=True)
    def forward(self, y):
        return self.table(y)
model = Net()
"""
        body = """
        out = model(y % 5)
        block.done((out * out).mean(1).sum(), out[:, None])
"""
        with self.script(model, body) as daemon:
            found = daemon.tensor(daemon.train(range(6)).gradient, "table.weight")
            self.assertTrue(np.all(found[5:] == 0) and np.all(found[self.labels[:6] % 5] != 0))
            self.assertEqual(daemon.evaluate(range(6)).right, NO_CLASSES)

    def test_workers_of_a_loader(self):
        body = """
        data = torch.utils.data.TensorDataset(x, y)
        seen = []
        for some, labels in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2):
            seen.append((some, labels))
        x, y = torch.cat([a for a, _ in seen]), torch.cat([b for _, b in seen])
""" + PLAIN
        with self.script(CONV, body) as daemon, self.script(CONV) as other:
            for seed in (3, 4):
                self.assertEqual(daemon.train(range(7), seed=seed).loss, daemon.train(range(7), seed=seed).loss)
                other.train(range(7))
        self.assertEqual((daemon.status, daemon.errors), (0, ""))


class Refused(TorchScripts):
    """What cannot be attached, and what a block must not do."""

    def test_constants_that_cannot_be_exported(self):
        body = "nn.Sequential(nn.Flatten(), nn.Linear(30, 10))"
        for line, says in (
            ("model.register_buffer('b', torch.eye(3).to_sparse())", "buffer b is float32 of shape \\[3, 3\\], torch.sparse_coo, which a file of tensors does not hold"),
            ("model.register_buffer('b', torch.zeros(1, dtype=torch.complex128))", "buffer b is complex128 of shape \\[1\\]"),
            ("model.register_buffer('b', torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))", "buffer b is qint8"),
            ("model.register_buffer('b', torch.zeros(1, device='meta'))", "buffer b is on meta"),
            ("model.register_buffer('b', model[1].weight.data)", "buffer b shares its memory with parameter 1.weight, which moves"),
            ("model.p = nn.Parameter(model[1].bias.data, requires_grad=False)", "frozen parameter p shares its memory with parameter 1.bias"),
            ("model.itself = model", "a module of the model holds itself"),
        ):
            with self.subTest(line=line):
                self.refused(f"model = {body}\n{line}", says)

    def test_parameters(self):
        for change, pattern in (
            ("model.half()", "parameter 0.weight is float16; gradcast trains float32: model.float()"),
            ("model[4].double()", "parameter 4.weight is float64; gradcast trains float32"),
            ("model.to('meta')", "parameter 0.weight is on meta: gradcast.attach\\(\\) takes models on the CPU: model.cpu\\(\\) moves it"),
            ("model.requires_grad_(False)", "the model has no parameter that is trained"),
            ("model[4] = nn.LazyLinear(10)", "parameter 4.weight has no shape yet: call the model once before gradcast.attach"),
            ("model.append(nn.Linear(10, 0))", r"parameter 5.weight: torch.strided of shape \[0, 10\]; a dense tensor of at most 8 axes"),
            ("model.append(nn.Linear(60, 10)); model[5].weight.data = model[4].weight.data", "parameters 4.weight and 5.weight share memory and are two"),
            ("model = torch.nn.DataParallel(model)", "a DataParallel cannot be attached: give the model inside, model.module"),
        ):
            with self.subTest(change):
                self.refused(CONV.strip() + "\n" + change, pattern)

    def test_modules(self):
        for change, pattern in (
            ("model[1] = nn.SyncBatchNorm(4)", "1 is a SyncBatchNorm: take BatchNorm2d"),
            ("model[1] = nn.BatchNorm2d(4, momentum=None)", "1: momentum None; gradcast's running statistics move by 0.1"),
            ("model[5].momentum = 0.2", "5: momentum 0.2"),
            ("model[6] = nn.Embedding(3, 4, max_norm=1.0)", "6: Embedding with max_norm changes its weights in the forward pass"),
            ("model[6] = nn.EmbeddingBag(3, 4, max_norm=1.0)", "6: EmbeddingBag with max_norm"),
            ("class Own(nn.BatchNorm2d):\n    def forward(self, x):\n        return x\nmodel[1] = Own(4)", "1 is a Own with a forward of its own"),
        ):
            with self.subTest(change):
                self.refused(NORM.strip() + "\n" + change, pattern)

    def test_norms_in_a_block(self):
        self.refused(NORM, "1 is called twice in a block", "model(x)\n" + PLAIN)
        self.refused(NORM, r"5 is in eval\(\) in a training block", "model[5].eval()\n" + PLAIN)
        self.refused(NORM, "5 was not called in this training block", PLAIN.replace("model(x)", "model[6](model[:5](x))"))
        self.refused("model = nn.BatchNorm1d(30)", r"\(model\) is called by a keyword", PLAIN.replace("model(x)", "model(input=x.flatten(1))"))

    def test_buffers_and_frozen_parameters(self):
        own = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(30, 10)
        self.register_buffer("seen", torch.zeros(1), persistent=PERSISTENT)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    def forward(self, x):
        CHANGE
        return self.inner(x.flatten(1))
model = Net()
"""
        for persistent, change, pattern in (
            ("True", "self.seen += 1", "buffer seen is changed by a training block: gradcast keeps no values but"),
            ("True", "self.seen = self.seen + 1", "buffer seen is changed"),
            ("True", "self.seen.data.add_(1)", "buffer seen is changed"),
            ("True", "self.seen.add_(int(block.step > 0))", "buffer seen is changed"),
            ("True", "self.frozen.data.mul_(2)", "frozen parameter frozen is changed"),
            ("True", "self.register_buffer('new', torch.ones(1))", "buffer new is changed"),
        ):
            with self.subTest(change):
                self.refused(own.replace("PERSISTENT", persistent).replace("CHANGE", change), pattern)
        for persistent, change in (("False", "self.seen += 1"), ("True", "self.seen = self.seen.clone()"), ("True", "self.seen.mul_(2)")):
            with self.subTest(change), self.script(own.replace("PERSISTENT", persistent).replace("CHANGE", change)) as daemon:
                daemon.train([0])
                daemon.train([0])
        for norm in ("nn.InstanceNorm2d(4, track_running_stats=True)", "nn.utils.spectral_norm(nn.Conv2d(4, 4, 1))"):
            self.refused(CONV.strip() + f"\nmodel[1] = {norm}", r"buffer 1\.\w+ is changed by a training block")

    def test_what_a_loss_must_be(self):
        for loss, pattern in (
            ("F.cross_entropy(out, y, reduction='none')", r"the loss is a Tensor torch.float32 of shape \[3\]"),
            ("F.cross_entropy(out, y).item()", "the loss is a float; one float in a tensor is wanted"),
            ("F.cross_entropy(out, y).detach()", "the loss of a training block has no gradient"),
            ("F.cross_entropy(out, y) * float('nan')", "the loss of step 1, block 0 is nan"),
            ("torch.tensor(3)", r"the loss is a Tensor torch.int64 of shape \[\]"),
        ):
            with self.subTest(loss):
                self.refused(CONV, pattern, f"out = model(x)\n        block.done({loss}, out)")
        self.refused(CONV, "gradients are for nets without torch", "block.done(model(x).sum(), gradients={})")
        self.refused(CONV, r"out has shape \[6, 5\]; it has one row for each of the block's 3 samples", "out = model(x)\n        block.done(out.sum(), out.reshape(6, 5))")

    def test_backward_is_run_by_gradcast_once(self):
        twice = r"the script ran a backward pass to the parameters: block.done\(loss, out\) runs the one of its block"
        self.refused(CONV, twice, "out = model(x)\n        out.sum().backward()\n        block.done(out.sum(), out)")
        self.refused(CONV, twice, "out = model(x)\n        block.done(out.sum(), out)\n        model(x).sum().backward()")

    def test_an_exception_in_the_backward_pass(self):
        model = """
class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, dx):
        raise LookupError("in backward")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(30, 20), nn.Linear(20, 10)
    def forward(self, x):
        return self.second(Wrong.apply(self.first(x.flatten(1))))
model = Net()
"""
        daemon = self.script(model)
        with self.assertRaisesRegex(Failed, "^LookupError: in backward$"), daemon:
            daemon.train([0])
        self.assertEqual(daemon.status, 1)   # torch does not keep it from its end
        self.assertIn("LookupError: in backward", daemon.errors)

    def test_the_end_of_the_job_in_a_backward_pass(self):
        model = """
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, dx):
        import os, time
        open("computing", "w").close()
        while block.step > 0 and not os.path.exists("go-on"):
            time.sleep(0.01)
        return dx
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(30, 20), nn.Linear(20, 10)
    def forward(self, x):
        return self.second(Wait.apply(self.first(x.flatten(1))))
model = Net()
"""
        with self.script(model) as daemon:
            daemon.train([0])
            (self.folder / "computing").unlink()
            daemon.compute(0, [0], 1, 0, None)
            while not (self.folder / "computing").exists():
                self.assertTrue(daemon.runs())
            daemon.socket.close()
            (self.folder / "go-on").touch()
        self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_an_input_gradient_is_no_backward_pass(self):
        body = """
        x.requires_grad_()
        out = model(x)
        loss = F.cross_entropy(out, y, reduction="sum")
        if block.training:
            slope, = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + (slope * slope).sum()
        block.done(loss, out)
"""
        with self.script(CONV, body) as daemon:
            daemon.train(range(4))
            daemon.evaluate(range(4))
        self.assertEqual(daemon.status, 0, daemon.errors)

    def test_a_model_that_is_moved_afterwards(self):
        self.refused(CONV, "parameter 0.weight is no longer in gradcast's memory", PLAIN + "\n        model.double().float()")

    def test_an_optimiser_of_the_scripts_own(self):
        daemon = self.script(CONV, "optimiser = torch.optim.SGD(model.parameters(), lr=0.1)\n        out = model(x)\n        loss = out.sum()\n        "
                             "for p in model.parameters(): p.grad = torch.ones_like(p)\n        optimiser.step()")
        daemon.launch()
        try:
            daemon.prepare()
            with self.assertRaisesRegex(AssertionError, "closed the socket"):
                daemon.train([0])
        finally:
            daemon.close()
        self.assertIn(daemon.status, (-signal.SIGSEGV, -signal.SIGBUS))
        self.assertRegex(daemon.errors, r"Fatal Python error: [\s\S]*train.py\", line \d+ in <module>")


class Examples(TorchScripts):
    """tools/python/examples."""

    def run_example(self, name, **more):
        return FakeDaemon([examples / f"train_{name}.py"], folder=self.folder, warm=warm, **more)

    def test_few_lines_make_a_script_one_of_gradcast(self):
        for name in ("cnn", "resnet18", "gpt"):
            found = subprocess.run(["diff", examples / f"train_{name}_plain.py", examples / f"train_{name}.py"], capture_output=True, text=True)
            self.assertEqual(found.returncode, 1, found.stderr)
            changed = [line for line in found.stdout.splitlines() if line[:1] in "<>"]
            self.assertLessEqual(len(changed), 15, found.stdout)

    def test_they_compute_blocks(self):
        for name, shape in (("cnn", (1, 28, 28)), ("resnet18", (3, 32, 32)), ("gpt", None)):
            (self.folder / "text.txt").write_bytes(bytes(range(32, 127)) * 40)
            given = {"images": images(8, shape), "labels": np.arange(8)} if shape else {}
            with self.subTest(name), self.run_example(name, **given) as daemon:
                loss = daemon.evaluate(range(8)).loss
                for _ in range(3):
                    trained = daemon.train(range(8), seed=4)
                    daemon.apply(trained, lr=0.02)
                self.assertTrue(np.all(np.isfinite(trained.gradient)))
                self.assertEqual(daemon.train(range(8), seed=4).gradient.tobytes(), daemon.train(range(8), seed=4).gradient.tobytes())
                self.assertLess(trained.loss, loss)
                self.assertEqual(daemon.evaluate(range(8)).right == NO_CLASSES, name == "gpt")
                paths = [each["path"] for each in daemon.hello["modules"]]
                self.assertEqual([path.split("/")[-1] for path in paths], [f"{name}.py", f"train_{name}.py"])
            self.assertEqual((daemon.status, daemon.errors), (0, ""))

    def test_the_plain_scripts_train(self):
        import h5py

        for name, shape in (("cnn", (1, 28, 28)), ("resnet18", (3, 32, 32))):
            (self.folder / name / "data").mkdir(parents=True)
            for part in ("train", "test"):
                with h5py.File(self.folder / name / "data" / f"{part}.h5", "w") as file:
                    file["images"], file["labels"] = images(8, shape), np.arange(8, dtype=np.uint8)
                    file.attrs["mean"], file.attrs["std"] = np.full(shape[0], 0.5, np.float32), np.full(shape[0], 0.25, np.float32)
        (self.folder / "gpt").mkdir()
        (self.folder / "gpt" / "text.txt").write_bytes(bytes(range(32, 127)) * 40)
        short = "import runpy, sys, torch; draw = torch.randperm; torch.randperm = lambda n: draw(min(n, 64)); sys.path.insert(0, sys.argv[1]); "
        short += "runpy.run_path(sys.argv[2], {'range': lambda n: [0]}, '__main__')"   # one epoch
        for name in ("cnn", "resnet18", "gpt"):
            found = subprocess.run([sys.executable, "-B", "-c", short, examples, examples / f"train_{name}_plain.py"], cwd=self.folder / name,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
            self.assertEqual(found.returncode, 0, found.stderr)
            self.assertRegex(found.stdout, r"^epoch 1: (accuracy|test loss) [0-9.]+\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
