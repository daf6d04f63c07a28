"""The networks of nn/presets.cc and of bench/steps.py in PyTorch, for the scripts beside this one."""
import collections
import importlib
import os
import re
import sys

import torch
from torch import nn

samples = {"lenet5": (1, 28), "mlp": (1, 28), "wide": (1, 28), "equal": (3, 32), "cnn": (3, 32), "nin": (3, 32), "resnet9": (3, 32), "resnet18": (3, 32), "resnet18:64": (3, 64), "resnet18:224": (3, 224), "unet:128": (3, 128)}   # channels, height and width


examples = {"gpt": "Gpt", "resnet18": "ResNet18"}   # nets that are examples of the Python package: module -> class


def example(net):
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python", "examples"))
    return importlib.import_module(net)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Stem(nn.BatchNorm2d):
    """As torchvision's, pooling behind the ReLU (whose second call changes nothing)."""

    def forward(self, x):
        return nn.functional.max_pool2d(nn.functional.relu(super().forward(x)), 3, 2, 1)


class Unet(nn.Module):
    """The preset unet: four levels down and up, with batch norm."""

    def __init__(self, classes=10, width=32, depth=4):
        super().__init__()
        def level(inputs, outputs):
            return nn.Sequential(*unit(inputs, outputs), *unit(outputs, outputs))

        widths = [width << number for number in range(depth + 1)]
        self.down = nn.ModuleList(level(inputs, outputs) for inputs, outputs in zip([3] + widths, widths))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * outputs, outputs, 2, 2) for outputs in reversed(widths[:-1]))
        self.up = nn.ModuleList(level(2 * outputs, outputs) for outputs in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level in self.down[:-1]:
            skips.append(level(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for wider, level in zip(self.wider, self.up):
            x = level(torch.cat([wider(x), skips.pop()], 1))
        return self.head(x)


def unit(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def model(net):
    if net == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    if net == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    if net == "wide":   # bench/steps.py
        return nn.Sequential(nn.Flatten(), *[layer for i in range(5) for layer in (nn.Linear(5000 if i else 784, 5000), nn.ReLU())], nn.Linear(5000, 10))
    if net == "equal":   # bench/steps.py
        convolutions = [layer for i in range(40) for layer in (nn.Conv2d(64 if i else 3, 64, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    if net == "cnn":
        return nn.Sequential(
            nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))
    if net == "nin":
        layers, inputs = [], 3
        for kernel, outputs, after in [
            (5, 192, None), (1, 160, None), (1, 96, nn.MaxPool2d(3, 2, ceil_mode=True)),
            (5, 192, None), (1, 192, None), (1, 192, nn.AvgPool2d(3, 2, ceil_mode=True)),
            (3, 192, None), (1, 192, None), (1, 10, None)]:  # fmt: skip
            layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU()] + ([after, nn.Dropout(0.5)] if after else [])
            inputs = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if net == "resnet9":
        return nn.Sequential(
            *unit(3, 64), *unit(64, 128), nn.MaxPool2d(2), Residual(*unit(128, 128), *unit(128, 128)),
            *unit(128, 256), nn.MaxPool2d(2), *unit(256, 512), nn.MaxPool2d(2), Residual(*unit(512, 512), *unit(512, 512)),
            nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    if net == "gpt10m":
        made = example("gpt")
        made.CONTEXT = 256
        large = made.Gpt(384, 6, 6)
        large.head.weight = nn.Parameter(large.head.weight.detach().clone())   # not tied, as the preset's
        return large
    if net in ("resnet18:64", "resnet18:224"):
        made = model("resnet18")
        made.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        made.bn1 = Stem(64)
        return made
    if net == "unet:128":
        return Unet()
    if net in examples:
        return getattr(example(net), examples[net])()
    raise SystemExit(f"no net '{net}': {', '.join(samples)}")


class Part(nn.Module):
    """`forward`, with the parameters of these modules."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.forward, self.has = forward, nn.ModuleList(modules)


kinds = {nn.Linear: "fc", nn.Conv2d: "conv", nn.Dropout: "dropout", nn.ReLU: "relu", nn.MaxPool2d: "max_pool"}


def parts(net):
    """The net as {name: module}, one behind the other.  A name is that of the part's first layer in gradcast."""
    made = model(net)
    if net == "gpt10m":
        halves = {}
        for i, layer in enumerate(made.layers, 1):
            halves[f"h{i}_ln1"] = Part(layer.attend, layer.norm1, layer.attention, layer.projection)
            halves[f"h{i}_ln2"] = Part(layer.dense, layer.norm2, layer.up, layer.down)
        return {"wte": Part(made.embed, made.bytes, made.places), **halves, "ln": Part(made.score, made.norm, made.head)}
    numbers, named = collections.Counter(), {}
    for layer in made:
        kind = kinds.get(type(layer), type(layer).__name__)
        numbers[kind] += 1
        named[f"{kind}{numbers[kind]}"] = layer
    return named


def part_of(cut, names):
    """The name of the part that begins at a cut of gradcast's.  A cut inside of a residual branch of gpt10m, which two values cross, moves to the
    branch's end."""
    inside = re.fullmatch(r"h(\d+)_(?:(qkv|attention|projection|middle)|(mlp1|gelu|mlp2|out))", cut)
    if inside:
        cut = f"h{inside[1]}_ln2" if inside[2] else f"h{int(inside[1]) + 1}_ln1"
    found = next((name for name in (cut, cut + "1", "ln") if name in names), None)
    if not found:
        raise SystemExit(f"no part begins with '{cut}': {', '.join(names)}")
    return found


def random_samples(net, count):
    """x and y of that many samples."""
    if net.startswith("gpt"):
        tokens = torch.randint(256, (count, example("gpt").CONTEXT + 1))
        return tokens[:, :-1], tokens[:, 1:]
    C, H = samples[net]
    labels = torch.arange(count * H * H).view(count, H, H) if net.startswith("unet") else torch.arange(count)
    return torch.rand(count, C, H, H), labels % 10


def loss_of(net, out, y):
    """The sum over samples of each sample's mean over its positions."""
    if net.startswith("gpt"):
        return example("gpt").loss(out, y)
    return nn.functional.cross_entropy(out, y, reduction="sum") / (y.numel() // len(y))
