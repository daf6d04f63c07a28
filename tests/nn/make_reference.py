#!/usr/bin/python3
# Makes tests/nn/reference/*.bin with PyTorch (Debian: python3-torch) in double precision: losses, gradients and SGD steps of small nets.
# A file is a text header (net, layers, samples, steps, "end"), then little-endian arrays:
#   images u8 [n,C,H,W], labels i32 [n], mean f32 [C], std f32 [C], parameters f32 [P],
#   loss f64 (sum), gradient f32 [P] (sum), predicted i32 [n], parameters after the steps f32 [P].
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
}
STEPS, LR, MOMENTUM, WEIGHT_DECAY = 5, 0.125, 0.875, 0.015625   # exact in float


def forward(layers, parameters, x):
    parameters = iter(parameters)
    for kind, outputs, kernel, stride, pad in layers:
        if kind == "conv":
            x = F.conv2d(x, next(parameters), next(parameters), stride=stride, padding=pad)
        elif kind == "inner_product":
            x = F.linear(x.flatten(1), next(parameters), next(parameters))
        elif kind == "max_pool":
            x = F.max_pool2d(x, kernel, stride, pad)
        elif kind == "relu":
            x = F.relu(x)
    return x


def make(name, folder, random):
    (C, H, W, pad, classes, n), layers = CASES[name]
    images = random.integers(0, 256, (n, C, H, W), dtype=np.uint8)
    labels = random.integers(0, classes, n, dtype=np.int32)
    mean, std = (random.uniform(0.2, 0.5, C).astype(np.float32) for _ in range(2))
    x = (torch.tensor(images, dtype=torch.float64) / 255 - torch.tensor(mean.astype(np.float64)).view(1, C, 1, 1)) / torch.tensor(std.astype(np.float64)).view(1, C, 1, 1)
    x = F.pad(x, (pad, pad, pad, pad))
    target = torch.tensor(labels, dtype=torch.int64)

    parameters, shape = [], torch.zeros(1, *x.shape[1:])
    for layer in layers:
        kind, outputs, kernel, stride, p = layer
        if kind in ("conv", "inner_product"):
            dims = (outputs, shape.shape[1], kernel, kernel) if kind == "conv" else (outputs, shape[0].numel())
            weight = random.standard_normal(dims) * np.sqrt(2 / np.prod(dims[1:]))
            for value in (weight, random.standard_normal(outputs) * 0.1):
                parameters.append(torch.tensor(value.astype(np.float32).astype(np.float64), requires_grad=True))
            shape = forward([layer], [torch.zeros(dims), torch.zeros(outputs)], shape)
        else:
            shape = forward([layer], [], shape)

    def flat(tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().astype("<f4").tobytes()

    start = flat(parameters)
    logits = forward(layers, parameters, x)
    loss = F.cross_entropy(logits, target, reduction="sum")
    gradient = flat(torch.autograd.grad(loss, parameters))
    optimiser = torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (F.cross_entropy(forward(layers, parameters, x), target, reduction="sum") / n).backward()
        optimiser.step()

    lines = [f"net {C} {H} {W} {pad} {classes}"] + ["layer " + " ".join(map(str, layer)) for layer in layers]
    lines += [f"samples {n}", f"steps {STEPS} {LR} {MOMENTUM} {WEIGHT_DECAY}", "end"]
    with open(os.path.join(folder, name + ".bin"), "wb") as file:
        file.write(("\n".join(lines) + "\n").encode())
        file.write(images.tobytes() + labels.astype("<i4").tobytes() + mean.astype("<f4").tobytes() + std.astype("<f4").tobytes() + start)
        file.write(np.float64(loss.item()).tobytes() + gradient + logits.argmax(1).numpy().astype("<i4").tobytes() + flat(parameters))


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference")
    os.makedirs(where, exist_ok=True)
    for number, case in enumerate(CASES):
        make(case, where, np.random.default_rng(number))
