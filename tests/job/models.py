#!/usr/bin/python3
# Loads the models that models_test.cc has exported into PyTorch (Debian: python3-torch) and compares the logits.
# usage: models.py FOLDER      which has NAME.safetensors and NAME.onnx, NAME.input (float32: normalised samples, or tokens), NAME.shape, NAME.logits,
#                             or of labels by position NAME.probabilities [N, positions, classes]
import glob
import json
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def read_safetensors(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    meta = {key: json.loads(value) if value[:1] in "[{0123456789-" and key not in ("digest", "kernel_set") else value
            for key, value in header.pop("__metadata__").items()}
    assert length % 8 == 0
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        tensors[name] = torch.from_numpy(np.frombuffer(rest[begin:end], "<f4").copy()).reshape(entry["shape"])
    return meta, tensors


def module_of(name):
    return name.replace(".", "/")   # PyTorch takes no dot in a module's name


class Net(nn.Module):
    """The layers of the metadata as PyTorch's own modules, so that load_state_dict() proves names and shapes."""

    def __init__(self, meta, tensors):
        super().__init__()
        self.layers, self.pad = meta["net"], meta["pad"]
        for layer in self.layers:
            name, kind = layer["name"], layer["kind"]
            if kind == "conv":
                K, C = tensors[name + ".weight"].shape[:2]
                self.add_module(module_of(name), nn.Conv2d(C * layer["groups"], K, layer["kernel"], layer["stride"], layer["pad"], layer["dilation"], layer["groups"], bias=layer["bias"]))
            elif kind == "conv_transposed":
                C, K = tensors[name + ".weight"].shape[:2]
                self.add_module(module_of(name), nn.ConvTranspose2d(C, K, layer["kernel"], layer["stride"], layer["pad"], bias=layer["bias"]))
            elif kind == "inner_product":
                K, C = tensors[name + ".weight"].shape
                self.add_module(module_of(name), nn.Linear(C, K, bias=layer["bias"]))
            elif kind == "batch_norm":
                self.add_module(module_of(name), nn.BatchNorm2d(tensors[name + ".weight"].shape[0]))
            elif kind == "layer_norm":
                self.add_module(module_of(name), nn.LayerNorm(tensors[name + ".weight"].shape, layer["epsilon"]))
            elif kind == "rms_norm":
                holder = nn.Module()
                holder.weight = nn.Parameter(torch.empty(tensors[name + ".weight"].shape))
                self.add_module(module_of(name), holder)
            elif kind == "group_norm":
                self.add_module(module_of(name), nn.GroupNorm(layer["groups"], tensors[name + ".weight"].shape[0], layer["epsilon"]))
            elif kind == "linear":
                K, C = tensors[name + ".weight"].shape
                self.add_module(module_of(name), nn.Linear(C, K, bias=layer["bias"]))
            elif kind in ("embedding", "positions"):
                self.add_module(module_of(name), nn.Embedding(*tensors[name + ".weight"].shape))

    def forward(self, x):
        """Of images [N, C, H, W], or tokens [N, T]; rows [N, positions, C] are planes [N, C, H, W] turned."""
        x, outputs = F.pad(x, [self.pad] * 4) if x.dim() == 4 else x, {}
        rows = lambda x: x.flatten(2).transpose(1, 2)
        planes = lambda rows, like: rows.transpose(1, 2).unflatten(2, like.shape[2:])
        for layer in self.layers:
            name, kind, o = layer["name"], layer["kind"], layer
            if o["from"] and kind not in ("add", "multiply", "concat"):
                x = outputs[o["from"]]
            if kind in ("conv", "conv_transposed", "batch_norm"):
                x = getattr(self, module_of(name))(x)
            elif kind == "inner_product":
                x = getattr(self, module_of(name))(x.flatten(1))[:, :, None, None]
            elif kind in ("linear", "layer_norm"):
                x = planes(getattr(self, module_of(name))(rows(x)), x)
            elif kind == "group_norm":
                x = getattr(self, module_of(name))(x)
            elif kind == "embedding":
                x = getattr(self, module_of(name))(x).transpose(1, 2)[..., None]
            elif kind == "positions":
                x = x + planes(getattr(self, module_of(name)).weight[None], x)
            elif kind == "rms_norm":
                weight, y = getattr(self, module_of(name)).weight, rows(x)
                x = planes(y / (y.square().mean(-1, keepdim=True) + o["epsilon"]).sqrt() * weight, x)
            elif kind == "attention":
                q, k, v = (part.unflatten(2, (o["heads"], -1)).transpose(1, 2) for part in rows(x).chunk(3, 2))
                if o["rotary"]:
                    half = q.shape[-1] // 2
                    angles = torch.arange(q.shape[2], dtype=torch.float64)[:, None] * o["rotary"] ** (-torch.arange(half, dtype=torch.float64) / half)
                    turn = torch.polar(torch.ones_like(angles), angles)
                    turned = lambda x: torch.complex(*x.double().chunk(2, -1)) * turn
                    q, k = (torch.cat((turned(x).real, turned(x).imag), -1).float() for x in (q, k))
                scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
                if o["causal"]:
                    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -float("inf"))
                mixed = scores.softmax(-1) @ v
                x = planes(mixed.transpose(1, 2).flatten(2), x)
            elif kind == "max_pool":
                x = F.max_pool2d(x, o["kernel"], o["stride"], o["pad"], ceil_mode=o["ceil"])
            elif kind == "average_pool":
                x = F.avg_pool2d(x, o["kernel"], o["stride"], o["pad"], ceil_mode=o["ceil"], count_include_pad=False)
            elif kind == "global_average_pool":
                x = x.mean((2, 3), keepdim=True)
            elif kind == "relu":
                x = F.relu(x)
            elif kind == "gelu":
                x = F.gelu(x, approximate=o["approximate"])
            elif kind in ("silu", "sigmoid", "tanh"):
                x = {"silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[kind](x)
            elif kind == "add":
                x = x + outputs[o["from"]]
            elif kind == "multiply":
                x = x * outputs[o["from"]]
            elif kind == "concat":
                x = torch.cat((x, outputs[o["from"]]), 1)
            elif kind == "upsample":
                x = F.interpolate(x, scale_factor=o["scale"], mode=o["mode"])
            else:
                assert kind in ("dropout", "softmax_cross_entropy", "squared_loss"), kind
            outputs[name] = x
        return x


def of_safetensors(path, x):
    meta, tensors = read_safetensors(path)
    net = Net(meta, tensors)
    stems = {name: name.rpartition(".") for name in tensors}
    net.load_state_dict({f"{module_of(stem)}.{last}": tensors[name] for name, (stem, _, last) in stems.items()})   # strict: every name and shape
    if x.dim() == 4:
        assert meta["sample"] == list(x.shape[1:])
    logits = net.eval()(x)
    return logits.flatten(1) if logits.shape[2:] == (1, 1) else logits


def fields(data):
    """A protobuf message as {field: [values]}: integers, 4 or 8 bytes, or bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << 64) if value >> 63 else value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or (varint() if kind == 2 else None)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    assert at == len(data)
    return found


def of_onnx(path, x):
    """Decoded here, by onnx.proto's field numbers, and computed by PyTorch."""
    model = fields(open(path, "rb").read())
    assert model[1] == [8] and fields(model[8][0]) == {1: [b""], 2: [17]}
    meta = {fields(each)[1][0].decode(): fields(each)[2][0].decode() for each in model[14]}
    assert json.loads(meta["mean"]) and json.loads(meta["std"]) and len(meta["digest"]) == 64
    graph = fields(model[7][0])
    values = {b"image" if x.dim() == 4 else b"tokens": x}
    for each in graph[5]:
        tensor = fields(each)
        kind = {1: "<f4", 7: "<i8"}[tensor[2][0]]
        if tensor.get(14) == [1]:   # the data are in a file beside the model
            where = {fields(entry)[1][0].decode(): fields(entry)[2][0].decode() for entry in tensor[13]}
            assert 9 not in tensor and "/" not in where["location"] and int(where["offset"]) % 4096 == 0
            with open(os.path.join(os.path.dirname(path), where["location"]), "rb") as file:
                file.seek(int(where["offset"]))
                data = file.read(int(where["length"]))
        else:
            data = tensor[9][0]
        values[tensor[8][0]] = torch.from_numpy(np.frombuffer(data, kind).copy()).reshape(tensor.get(1, []))
    ends = []
    for each, sides in ((graph[11][0], x.shape[1:]), (graph[12][0], None)):
        end = fields(each)
        tensor = fields(fields(end[2][0])[1][0])
        dims = [fields(dim) for dim in fields(tensor[2][0])[1]]
        assert tensor[1] == [7 if sides and x.dim() == 2 else 1] and dims[0] == {2: [b"N"]}
        if sides:
            assert end[1][0] in values and [dim[1][0] for dim in dims[1:]] == list(sides)
        ends.append(end[1][0])
    for each in graph[1]:
        node = fields(each)
        inputs = [values[name] if name else None for name in node[1]]   # only what has been made before
        a = {}
        for attribute in map(fields, node.get(5, [])):
            kind = attribute[20][0]
            a[attribute[1][0].decode()] = {1: lambda: struct.unpack("<f", attribute[2][0])[0], 2: lambda: attribute[3][0], 3: lambda: attribute[4][0].decode(), 7: lambda: attribute[8]}[kind]()
        kind, one = node[4][0].decode(), inputs[0]
        if "pads" in a:
            top, left, bottom, right = a["pads"]
            around = lambda fill: F.pad(one, [left, right, top, bottom], value=fill)
        if kind == "Conv":
            y = F.conv2d(around(0), *inputs[1:], stride=a["strides"], dilation=a.get("dilations", 1), groups=a.get("group", 1))
        elif kind == "ConvTranspose":
            assert (top, left) == (bottom, right)
            y = F.conv_transpose2d(one, *inputs[1:], stride=a["strides"], padding=(top, left))
        elif kind == "Resize":
            scales = inputs[2].tolist()
            assert inputs[1] is None and scales[:2] == [1, 1] and scales[2] == scales[3]
            nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            assert a in (nearest, {"mode": "linear", "coordinate_transformation_mode": "half_pixel"})
            y = F.interpolate(one, scale_factor=scales[2], mode="nearest" if a == nearest else "bilinear")
        elif kind == "Concat":
            y = torch.cat(inputs, a["axis"])
        elif kind == "MaxPool":
            y = F.max_pool2d(around(-float("inf")), a["kernel_shape"], a["strides"])
        elif kind == "AveragePool":
            inside = F.pad(torch.ones_like(one), [left, right, top, bottom])
            assert a["count_include_pad"] == 0
            y = F.avg_pool2d(around(0), a["kernel_shape"], a["strides"]) / F.avg_pool2d(inside, a["kernel_shape"], a["strides"])
        elif kind == "Gemm":
            y = one @ inputs[1].T + (inputs[2] if len(inputs) > 2 else 0)
            assert a == {"transB": 1} and one.dim() == 2
        elif kind == "BatchNormalization":
            weight, bias, mean, var = inputs[1:]
            y = F.batch_norm(one, mean, var, weight, bias, eps=a["epsilon"])
        elif kind == "Pad":
            n = inputs[1].tolist()
            assert n[:2] == n[4:6] == [0, 0]
            y = F.pad(one, [n[3], n[7], n[2], n[6]])
        elif kind == "LayerNormalization":
            assert a["axis"] == -1
            y = F.layer_norm(one, one.shape[-1:], *inputs[1:], a["epsilon"])
        elif kind == "InstanceNormalization":
            y = F.instance_norm(one, weight=inputs[1], bias=inputs[2], eps=a["epsilon"])
        elif kind == "Transpose":
            y = one.permute(*a["perm"])
        elif kind == "Split":
            y = one.chunk(len(node[2]), a["axis"])
        elif kind == "Softmax":
            y = one.softmax(a["axis"])
        elif kind == "ReduceMean":
            y = one.mean(a["axes"], keepdim=True)
        elif kind == "Gather":
            y = one[inputs[1]]
        elif kind == "Reshape":
            y = one.reshape([one.shape[i] if side == 0 else side for i, side in enumerate(inputs[1].tolist())])
        else:
            y = {"Relu": F.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf, "Mul": torch.mul, "MatMul": torch.matmul, "Sqrt": torch.sqrt, "Div": torch.div, "Neg": torch.neg, "Identity": lambda one: one,
                 "Add": lambda one, *other: one + other[0], "Flatten": lambda one: one.flatten(a["axis"]),
                 "GlobalAveragePool": lambda one: one.mean((2, 3), keepdim=True)}[kind](*inputs)
        values.update(zip(node[2], y if kind == "Split" else [y]))
    logits = values[ends[1]]
    assert [None, *logits.shape[1:]] == [None, *(fields(dim)[1][0] for dim in fields(fields(fields(fields(graph[12][0])[2][0])[1][0])[2][0])[1][1:])]
    return logits


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")) + glob.glob(os.path.join(folder, "*.onnx")))
    for path in paths:
        base, form = os.path.splitext(path)
        x = torch.from_numpy(np.fromfile(base + ".input", "<f4").reshape(np.fromfile(base + ".shape", "<u4")))
        by_position = os.path.exists(base + ".probabilities")
        if text := by_position and x.shape[1:3] == (1, 1):
            x = x[:, 0, 0, :-1].long()   # the last one is a label only
        with torch.no_grad():
            found = {".safetensors": of_safetensors, ".onnx": of_onnx}[form](path, x)
            if by_position:
                rows = found if text and form == ".onnx" else found.flatten(2).transpose(1, 2)
                found = rows.softmax(2)
            found = found.numpy()
        logits = np.fromfile(base + (".probabilities" if by_position else ".logits"), "<f4").reshape(found.shape)
        worst, size = np.abs(found - logits).max(), np.abs(logits).max()
        print(f"{os.path.basename(path)}: logits up to {size:.3f}, differ by {worst:.2e} at most", flush=True)
        assert np.isfinite(worst) and worst <= 1e-4 * max(1, size)
        assert np.ptp(logits, axis=0).max() > 1e-3, "all samples have the same logits"
    print(f"{len(paths)} files agree")


main()
