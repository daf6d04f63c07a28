#!/usr/bin/python3
# Makes tests/nn/reference/*.bin with PyTorch (Debian: python3-torch) in double precision: losses, gradients and SGD steps of small nets.
# A file is a text header (net, layers, samples, steps, "end"), then little-endian arrays:
#   images u8 [n,C,H,W], labels i32 [n], mean f32 [C], std f32 [C], parameters f32 [P],
#   loss f64 (sum), gradient f32 [P] (sum), predicted i32 [n], parameters after the steps f32 [P],
#   for nets with batch norm the loss f64 (sum) of an evaluation (`predicted` is then of the evaluation).
# Running statistics (mean, second moment by channel) are at the end of P; their "gradient" is n times those of the samples.
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

CASES = {
    # name: (C, H, W, pad, classes, samples), layers (kind, outputs, kernel, stride, pad)
    "inner_product": ((3, 5, 3, 0, 4, 5), [("inner_product", 4, 0, 1, 0)]),
    "conv": ((3, 11, 9, 0, 5, 4), [("conv", 7, 3, 2, 1), ("conv", 17, 2, 1, 0), ("inner_product", 5, 0, 1, 0)]),
    "conv_narrow": ((1, 9, 13, 1, 3, 3), [("conv", 3, 5, 1, 2), ("conv", 33, 3, 3, 0), ("relu", 0, 0, 1, 0), ("conv", 9, 1, 1, 0), ("inner_product", 3, 0, 1, 0)]),
    "max_pool": ((2, 11, 14, 0, 6, 5), [("conv", 5, 3, 1, 1), ("max_pool", 0, 3, 2, 1), ("conv", 19, 2, 1, 0), ("relu", 0, 0, 1, 0), ("max_pool", 0, 2, 2, 0),
                                        ("max_pool", 0, 2, 1, 0), ("inner_product", 6, 0, 1, 0)]),
    "lenet5": ((1, 20, 20, 2, 10, 7), [("conv", 6, 5, 1, 0), ("relu", 0, 0, 1, 0), ("max_pool", 0, 2, 2, 0), ("conv", 16, 5, 1, 0), ("relu", 0, 0, 1, 0), ("max_pool", 0, 2, 2, 0),
                                       ("inner_product", 20, 0, 1, 0), ("relu", 0, 0, 1, 0), ("inner_product", 12, 0, 1, 0), ("relu", 0, 0, 1, 0), ("inner_product", 10, 0, 1, 0)]),
    "mlp": ((1, 7, 9, 0, 10, 13), [("inner_product", 40, 0, 1, 0), ("relu", 0, 0, 1, 0), ("inner_product", 33, 0, 1, 0), ("relu", 0, 0, 1, 0), ("inner_product", 21, 0, 1, 0),
                                   ("relu", 0, 0, 1, 0), ("inner_product", 10, 0, 1, 0)]),
    # An optional sixth element has options: ceil, bias, name, from, approximate, groups, dilation, scale, mode.
    "average_pool": ((2, 12, 14, 0, 6, 5), [("conv", 5, 3, 1, 1), ("average_pool", 0, 3, 2, 1, {"ceil": 1}), ("conv", 19, 2, 1, 0), ("relu", 0, 0, 1, 0),
                                            ("max_pool", 0, 3, 2, 0, {"ceil": 1}), ("conv", 6, 2, 1, 1), ("global_average_pool", 0, 0, 1, 0)]),
    "batch_norm": ((3, 9, 8, 1, 5, 9), [("conv", 7, 3, 1, 0, {"bias": 0}), ("batch_norm", 0, 0, 1, 0), ("relu", 0, 0, 1, 0), ("conv", 17, 2, 2, 0), ("batch_norm", 0, 0, 1, 0),
                                        ("inner_product", 9, 0, 1, 0, {"bias": 0}), ("batch_norm", 0, 0, 1, 0), ("relu", 0, 0, 1, 0), ("inner_product", 5, 0, 1, 0)]),
    "residual": ((2, 8, 7, 0, 4, 6), [("conv", 9, 3, 1, 1), ("relu", 0, 0, 1, 0, {"name": "a"}), ("conv", 18, 3, 2, 1), ("relu", 0, 0, 1, 0), ("conv", 18, 3, 1, 1, {"name": "b"}),
                                      ("conv", 18, 1, 2, 0, {"from": "a"}), ("add", 0, 0, 1, 0, {"from": "b"}), ("relu", 0, 0, 1, 0, {"name": "c"}), ("conv", 18, 1, 1, 0),
                                      ("relu", 0, 0, 1, 0), ("add", 0, 0, 1, 0, {"from": "c"}), ("inner_product", 4, 0, 1, 0)]),
    "shortcut_first": ((2, 8, 7, 0, 4, 6), [("conv", 9, 3, 1, 1), ("relu", 0, 0, 1, 0, {"name": "a"}), ("conv", 18, 1, 2, 0, {"name": "s"}), ("conv", 7, 1, 1, 0, {"from": "a"}),
                                            ("relu", 0, 0, 1, 0), ("conv", 7, 3, 2, 1), ("relu", 0, 0, 1, 0), ("conv", 18, 1, 1, 0), ("add", 0, 0, 1, 0, {"from": "s"}),
                                            ("relu", 0, 0, 1, 0), ("inner_product", 4, 0, 1, 0)]),
    "curves": ((2, 9, 8, 1, 5, 6), [("conv", 7, 3, 1, 0), ("gelu", 0, 0, 1, 0, {"approximate": "none"}), ("conv", 17, 2, 2, 0), ("sigmoid", 0, 0, 1, 0),
                                    ("conv", 19, 2, 1, 1), ("silu", 0, 0, 1, 0), ("inner_product", 23, 0, 1, 0), ("gelu", 0, 0, 1, 0, {"approximate": "tanh"}),
                                    ("inner_product", 11, 0, 1, 0), ("tanh", 0, 0, 1, 0), ("inner_product", 5, 0, 1, 0)]),
    "norms": ((3, 9, 8, 1, 5, 6), [("conv", 12, 3, 1, 0), ("group_norm", 0, 0, 1, 0, {"groups": 4}), ("relu", 0, 0, 1, 0), ("conv", 21, 2, 2, 0), ("layer_norm", 0, 0, 1, 0),
                                   ("conv", 10, 1, 1, 0), ("group_norm", 0, 0, 1, 0, {"groups": 1}), ("inner_product", 19, 0, 1, 0), ("layer_norm", 0, 0, 1, 0), ("relu", 0, 0, 1, 0),
                                   ("inner_product", 5, 0, 1, 0)]),
    "conv_groups": ((6, 11, 10, 0, 5, 4), [("conv", 12, 3, 1, 1, {"groups": 3}), ("conv", 12, 3, 2, 1, {"groups": 12, "bias": 0}), ("relu", 0, 0, 1, 0),
                                           ("conv", 32, 1, 1, 0), ("conv", 48, 3, 1, 1, {"groups": 2}), ("inner_product", 5, 0, 1, 0)]),
    "conv_dilation": ((3, 13, 12, 0, 5, 4), [("conv", 7, 3, 1, 2, {"dilation": 2}), ("conv", 16, 3, 1, 3, {"dilation": 3, "bias": 0}), ("relu", 0, 0, 1, 0),
                                             ("conv", 16, 3, 2, 0, {"dilation": 2}), ("conv", 16, 3, 1, 2, {"dilation": 2, "groups": 16}), ("inner_product", 5, 0, 1, 0)]),
    "concat": ((2, 8, 7, 0, 4, 6), [("conv", 7, 3, 1, 1, {"name": "a"}), ("relu", 0, 0, 1, 0, {"name": "r"}), ("conv", 5, 3, 1, 1, {"name": "b"}), ("concat", 0, 0, 1, 0, {"from": "r", "name": "d1"}),
                                    ("conv", 4, 3, 1, 1), ("relu", 0, 0, 1, 0), ("concat", 0, 0, 1, 0, {"from": "d1", "name": "d2"}), ("conv", 16, 3, 1, 1, {"name": "w"}), ("relu", 0, 0, 1, 0),
                                    ("conv", 32, 3, 1, 1), ("concat", 0, 0, 1, 0, {"from": "w"}), ("relu", 0, 0, 1, 0), ("conv", 9, 1, 1, 0), ("relu", 0, 0, 1, 0), ("conv", 9, 1, 1, 0), ("inner_product", 4, 0, 1, 0)]),
    "upsample": ((2, 5, 4, 0, 4, 6), [("conv", 5, 3, 1, 1), ("upsample", 0, 0, 1, 0, {"scale": 2, "mode": "nearest"}), ("conv", 16, 3, 1, 1), ("relu", 0, 0, 1, 0),
                                      ("upsample", 0, 0, 1, 0, {"scale": 2, "mode": "bilinear"}), ("conv", 9, 3, 3, 0), ("upsample", 0, 0, 1, 0, {"scale": 3, "mode": "bilinear"}),
                                      ("conv", 4, 2, 2, 0), ("upsample", 0, 0, 1, 0, {"scale": 3, "mode": "nearest"}), ("inner_product", 4, 0, 1, 0)]),
    "conv_transposed": ((3, 5, 4, 0, 4, 6), [("conv", 16, 3, 1, 1), ("relu", 0, 0, 1, 0), ("conv_transposed", 8, 2, 2, 0), ("relu", 0, 0, 1, 0), ("conv_transposed", 5, 3, 2, 1, {"bias": 0}),
                                             ("conv_transposed", 17, 3, 1, 1), ("conv", 4, 3, 3, 0), ("inner_product", 4, 0, 1, 0)]),
}
LOSSES = {"residual": "squared_loss"}   # default: softmax_cross_entropy
RATES = {"residual": 0.00390625, "conv_groups": 0.015625, "conv_dilation": 0.015625, "concat": 0.015625, "upsample": 0.001953125, "conv_transposed": 0.015625}
TWO_INPUTS = ("add", "concat")
STEPS, LR, MOMENTUM, WEIGHT_DECAY = 5, 0.125, 0.875, 0.015625   # exact in float


def options(layer):
    return {"ceil": 0, "bias": 1, "name": "", "from": "", "groups": 1, "dilation": 1, **(layer[5] if len(layer) > 5 else {})}


def forward(layers, parameters, x, statistics=None):
    """Logits and the batch norms' (mean, second moment); with `statistics` those are taken instead of the samples'."""
    parameters, outputs, found = iter(parameters), {}, []
    for layer in layers:
        kind, outputs_, kernel, stride, pad = layer[:5]
        o = options(layer)
        if o["from"] and kind not in TWO_INPUTS:
            x = outputs[o["from"]]
        if kind == "conv":
            x = F.conv2d(x, next(parameters), next(parameters) if o["bias"] else None, stride=stride, padding=pad, dilation=o["dilation"], groups=o["groups"])
        elif kind == "conv_transposed":
            x = F.conv_transpose2d(x, next(parameters), next(parameters) if o["bias"] else None, stride=stride, padding=pad)
        elif kind == "upsample":
            x = F.interpolate(x, scale_factor=o["scale"], mode=o["mode"], **({"align_corners": False} if o["mode"] == "bilinear" else {}))
        elif kind == "concat":
            x = torch.cat((x, outputs[o["from"]]), 1)
        elif kind == "inner_product":
            x = F.linear(x.flatten(1), next(parameters), next(parameters) if o["bias"] else None)
        elif kind == "max_pool":
            x = F.max_pool2d(x, kernel, stride, pad, ceil_mode=bool(o["ceil"]))
        elif kind == "average_pool":
            x = F.avg_pool2d(x, kernel, stride, pad, ceil_mode=bool(o["ceil"]), count_include_pad=False)
        elif kind == "global_average_pool":
            x = F.adaptive_avg_pool2d(x, 1)
        elif kind == "relu":
            x = F.relu(x)
        elif kind == "gelu":
            x = F.gelu(x, approximate=o["approximate"])
        elif kind in ("silu", "sigmoid", "tanh"):
            x = {"silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[kind](x)
        elif kind == "add":
            x = x + outputs[o["from"]]
        elif kind == "group_norm":
            x = F.group_norm(x, o["groups"], next(parameters), next(parameters), eps=1e-5)
        elif kind == "layer_norm":
            x = F.layer_norm(x.movedim(1, -1), (x.shape[1],), next(parameters), next(parameters), eps=1e-5).movedim(-1, 1)
        elif kind == "batch_norm":
            axes = [d for d in range(x.dim()) if d != 1]
            weight, bias = next(parameters), next(parameters)
            if statistics is None:
                found.append((x.mean(axes), (x * x).mean(axes)))
                x = F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)
            else:
                mean, square = statistics[len(found)]
                found.append(None)
                x = F.batch_norm(x, mean, square - mean * mean, weight, bias, training=False, eps=1e-5)
        outputs[o["name"]] = x
    return x.flatten(1), found


def make(name, folder, random):
    (C, H, W, pad, classes, n), layers = CASES[name]
    images = random.integers(0, 256, (n, C, H, W), dtype=np.uint8)
    labels = random.integers(0, classes, n, dtype=np.int32)
    mean, std = (random.uniform(0.2, 0.5, C).astype(np.float32) for _ in range(2))
    x = (torch.tensor(images, dtype=torch.float64) / 255 - torch.tensor(mean.astype(np.float64)).view(1, C, 1, 1)) / torch.tensor(std.astype(np.float64)).view(1, C, 1, 1)
    x = F.pad(x, (pad, pad, pad, pad))
    target = torch.tensor(labels, dtype=torch.int64)

    def number(values):
        return torch.tensor(values.astype(np.float32).astype(np.float64))

    def loss_of(logits):
        if name in LOSSES:
            return ((logits - F.one_hot(target, classes)) ** 2).sum()
        return F.cross_entropy(logits, target, reduction="sum")

    parameters, shapes, statistics = [], {"": torch.zeros(1, *x.shape[1:])}, []
    last = ""
    for i, layer in enumerate(layers):
        kind, outputs, kernel, stride, p = layer[:5]
        o = options(layer)
        shape = shapes[o["from"] if o["from"] and kind not in TWO_INPUTS else last]
        made = []
        if kind in ("conv", "inner_product", "conv_transposed"):
            dims = (outputs, shape.shape[1] // o["groups"], kernel, kernel) if kind == "conv" else (outputs, shape[0].numel())
            dims = (shape.shape[1], outputs, kernel, kernel) if kind == "conv_transposed" else dims
            weight = random.standard_normal(dims) * np.sqrt(2 / np.prod(dims[1:]))
            made = [weight] + ([random.standard_normal(outputs) * 0.1] if o["bias"] else [])
        elif kind in ("group_norm", "layer_norm"):
            made = [random.uniform(0.5, 1.5, shape.shape[1]), random.standard_normal(shape.shape[1]) * 0.1]
        elif kind == "batch_norm":
            channels = shape.shape[1]
            made = [random.uniform(0.5, 1.5, channels), random.standard_normal(channels) * 0.1]
            centre = random.standard_normal(channels) * 0.3
            statistics.append((number(centre), number(centre * centre + random.uniform(0.5, 2, channels))))
        parameters += [number(value).requires_grad_() for value in made]
        last = o["name"] or str(i)
        shapes[last] = torch.cat((shape, shapes[o["from"]]), 1) if kind == "concat" else forward_shape(layer, shape)

    def flat(tensors, moments):
        return torch.cat([t.detach().reshape(-1) for t in tensors] + [t.detach() for pair in moments for t in pair]).numpy().astype("<f4").tobytes()

    start = flat(parameters, statistics)
    logits, found = forward(layers, parameters, x)
    loss = loss_of(logits)
    gradient = flat(torch.autograd.grad(loss, parameters), [(n * a, n * b) for a, b in found])
    evaluated, _ = forward(layers, parameters, x, statistics)
    evaluated_loss = loss_of(evaluated).item()
    lr = RATES.get(name, LR)
    optimiser = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        optimiser.zero_grad()
        logits_now, found = forward(layers, parameters, x)
        (loss_of(logits_now) / n).backward()
        optimiser.step()
        statistics = [tuple(old + 0.1 * (new.detach() - old) for old, new in zip(*both)) for both in zip(statistics, found)]

    lines = [f"net {C} {H} {W} {pad} {classes}"]
    lines += ["layer " + " ".join(map(str, layer[:5])) + "".join(f" {k} {v}" for k, v in (layer[5] if len(layer) > 5 else {}).items()) for layer in layers]
    lines += [f"loss {LOSSES[name]}"] if name in LOSSES else []
    lines += [f"samples {n}", f"steps {STEPS} {lr} {MOMENTUM} {WEIGHT_DECAY}", "end"]
    with open(os.path.join(folder, name + ".bin"), "wb") as file:
        file.write(("\n".join(lines) + "\n").encode())
        file.write(images.tobytes() + labels.astype("<i4").tobytes() + mean.astype("<f4").tobytes() + std.astype("<f4").tobytes() + start)
        file.write(np.float64(loss.item()).tobytes() + gradient + evaluated.argmax(1).numpy().astype("<i4").tobytes() + flat(parameters, statistics))
        if statistics:
            file.write(np.float64(evaluated_loss).tobytes())


def forward_shape(layer, shape):
    kind, outputs, kernel, stride, pad = layer[:5]
    if kind == "inner_product":
        return torch.zeros(1, outputs)
    if kind == "conv":
        return F.conv2d(shape, torch.zeros(outputs, shape.shape[1], kernel, kernel), stride=stride, padding=pad, dilation=options(layer)["dilation"])
    if kind == "conv_transposed":
        return F.conv_transpose2d(shape, torch.zeros(shape.shape[1], outputs, kernel, kernel), stride=stride, padding=pad)
    if kind == "upsample":
        return F.interpolate(shape, scale_factor=options(layer)["scale"])
    if kind == "global_average_pool":
        return F.adaptive_avg_pool2d(shape, 1)
    return F.max_pool2d(shape, kernel, stride, pad, ceil_mode=bool(options(layer)["ceil"])) if "pool" in kind else shape


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference")
    os.makedirs(where, exist_ok=True)
    for number, case in enumerate(CASES):
        make(case, where, np.random.default_rng(number))
