#!/usr/bin/python3
# Makes tests/nn/reference/positions_*.bin with PyTorch (Debian: python3-torch) in double precision: nets with a loss by position.
# A file is a text header ("net", "layer" lines as layer_text() writes them, "samples", "steps", "end"), then little-endian arrays:
#   samples u8 or u16, masks u8 (of nets with masks), mean f32 [C], std f32 [C], parameters f32 [P], loss f64 (sum), gradient f32 [P] (sum),
#   predicted i32 [n, positions], parameters after the steps f32 [P].
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F


def gpt(vocabulary, width, heads, blocks, causal):
    layers = [f"embedding name=wte outputs={width}", "positions name=b0"]
    for i in range(1, blocks + 1):
        layers += ["layer_norm", f"linear outputs={3 * width}", f"attention heads={heads}" + (" causal=1" if causal else ""), f"linear outputs={width}",
                   f"add name=a{i} from=b{i - 1}", "layer_norm", f"linear outputs={4 * width}", "gelu approximate=tanh", f"linear outputs={width}",
                   f"add name=b{i} from=a{i}"]
    return layers + ["layer_norm", f"linear outputs={vocabulary} bias=0", "softmax_cross_entropy"]


def gated(vocabulary, width, heads):
    """A block as Llama has it, all of it on one residual stream."""
    return [f"embedding name=b0 outputs={width}", "rms_norm", f"linear outputs={3 * width} bias=0", f"attention heads={heads} causal=1 rotary=10000",
            f"linear outputs={width} bias=0", "add name=a1 from=b0", "rms_norm name=n1", f"linear outputs={2 * width} bias=0", "silu name=g1",
            f"linear outputs={2 * width} bias=0 from=n1", "multiply from=g1", f"linear outputs={width} bias=0", "add from=a1",
            "rms_norm epsilon=0.0009765625", f"linear outputs={vocabulary} bias=0", "softmax_cross_entropy"]


CASES = {
    # name: (C, H, W, classes, vocabulary, ignore, samples), layers
    "gpt": ((1, 1, 10, 1, 11, -1, 5), gpt(11, 12, 3, 2, True)),
    "long": ((1, 1, 151, 1, 5, -1, 2), gpt(5, 8, 2, 1, False)),
    "masks": ((3, 6, 7, 4, 0, 255, 4), ["conv outputs=9 kernel=3 pad=1 name=c", "relu", "positions name=p", "attention heads=1 name=t", "conv outputs=4 kernel=1 from=t",
                                        "softmax_cross_entropy label_smoothing=0.125"]),
    "gated": ((1, 1, 70, 1, 9, -1, 3), gated(9, 24, 3)),
    "tied": ((1, 1, 12, 1, 13, -1, 6), [each + " weights_of=wte" if each == "linear outputs=13 bias=0" else each for each in gpt(13, 12, 2, 1, True)]),
}
STEPS, LR, MOMENTUM, WEIGHT_DECAY = 5, 0.125, 0.875, 0.015625   # exact in float


def parsed(text):
    kind, *words = text.split()
    return kind, dict(word.split("=") for word in words)


def forward(layers, parameters, x):
    """x: tokens [n, T], or images.  Outputs [n, classes, positions...]."""
    parameters, outputs, weights = iter(parameters), {}, {}
    for text in layers:
        kind, o = parsed(text)
        if "from" in o and kind not in ("add", "multiply"):
            x = outputs[o["from"]]
        if kind == "embedding":
            weights[o.get("name")] = next(parameters)
            x = F.embedding(x, weights[o.get("name")]).movedim(-1, 1)
        elif kind == "positions":
            x = x + next(parameters).T.reshape(1, *x.shape[1:])
        elif kind == "linear":
            x = F.linear(x.movedim(1, -1), weights[o["weights_of"]] if "weights_of" in o else next(parameters), next(parameters) if o.get("bias") != "0" else None).movedim(-1, 1)
        elif kind == "layer_norm":
            x = F.layer_norm(x.movedim(1, -1), (x.shape[1],), next(parameters), next(parameters), eps=1e-5).movedim(-1, 1)
        elif kind == "rms_norm":
            rows = x.movedim(1, -1)
            x = (rows / (rows.square().mean(-1, keepdim=True) + float(o.get("epsilon", 1e-5))).sqrt() * next(parameters)).movedim(-1, 1)
        elif kind == "conv":
            x = F.conv2d(x, next(parameters), next(parameters), padding=int(o.get("pad", 0)))
        elif kind == "attention":
            n, channels, *places = x.shape
            q, k, v = (part.reshape(n, int(o["heads"]), -1, int(np.prod(places))).transpose(2, 3) for part in x.chunk(3, 1))
            if "rotary" in o:
                half = q.shape[-1] // 2
                angles = torch.arange(q.shape[2], dtype=x.dtype)[:, None] * float(o["rotary"]) ** (-torch.arange(half, dtype=x.dtype) / half)
                cosines, sines = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
                q, k = (each * cosines + torch.cat((-each[..., half:], each[..., :half]), -1) * sines for each in (q, k))
            scores = q @ k.transpose(2, 3) / np.sqrt(q.shape[-1])
            if o.get("causal") == "1":
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -np.inf)
            x = (scores.softmax(-1) @ v).transpose(2, 3).reshape(n, channels // 3, *places)
        elif kind == "gelu":
            x = F.gelu(x, approximate=o["approximate"])
        elif kind == "relu":
            x = F.relu(x)
        elif kind == "silu":
            x = F.silu(x)
        elif kind == "add":
            x = x + outputs[o["from"]]
        elif kind == "multiply":
            x = x * outputs[o["from"]]
        outputs[o.get("name", "")] = x
    return x


def make(name, folder, random):
    (C, H, W, classes, vocabulary, ignore, n), layers = CASES[name]
    mean, std = (random.uniform(0.2, 0.5, C).astype(np.float32) for _ in range(2))
    if vocabulary:
        samples, masks = random.integers(0, vocabulary, (n, C, H, W), dtype=np.uint16), np.zeros(0, np.uint8)
        tokens = torch.tensor(samples.reshape(n, W).astype(np.int64))
        x, target, positions, channels = tokens[:, :-1], tokens[:, 1:], W - 1, 0
    else:
        samples, masks = random.integers(0, 256, (n, C, H, W), dtype=np.uint8), random.integers(0, classes, (n, H, W), dtype=np.uint8)
        masks[random.uniform(size=masks.shape) < 0.2] = ignore
        centre, scale = (torch.tensor(each.astype(np.float64)).view(1, C, 1, 1) for each in (mean, std))
        x, target, positions, channels = (torch.tensor(samples, dtype=torch.float64) / 255 - centre) / scale, torch.tensor(masks.astype(np.int64)), H * W, C

    def loss_of(outputs):
        smoothing = float(parsed(layers[-1])[1].get("label_smoothing", 0))
        return F.cross_entropy(outputs, target, ignore_index=ignore, label_smoothing=smoothing, reduction="none").sum() / positions

    parameters, widths = [], {}
    for text in layers:
        kind, o = parsed(text)
        outputs, made = int(o.get("outputs", 0)), []
        channels = widths[o["from"]] if "from" in o else channels
        if kind == "embedding":
            made = [random.standard_normal((vocabulary, outputs)) * 0.5]
        elif kind == "positions":
            made = [random.standard_normal((positions, channels)) * 0.5]
        elif kind == "linear" and "weights_of" not in o:
            made = [random.standard_normal((outputs, channels)) / np.sqrt(channels)] + ([random.standard_normal(outputs) * 0.1] if o.get("bias") != "0" else [])
        elif kind == "conv":
            kernel = int(o["kernel"])
            made = [random.standard_normal((outputs, channels, kernel, kernel)) / np.sqrt(channels * kernel), random.standard_normal(outputs) * 0.1]
        elif kind == "rms_norm":
            made = [random.uniform(0.5, 1.5, channels)]
        elif kind == "layer_norm":
            made = [random.uniform(0.5, 1.5, channels), random.standard_normal(channels) * 0.1]
        channels = outputs or (channels // 3 if kind == "attention" else channels)
        widths[o.get("name")] = channels
        parameters += [torch.tensor(value.astype(np.float32).astype(np.float64)).requires_grad_() for value in made]

    def flat(tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().astype("<f4").tobytes()

    start = flat(parameters)
    outputs = forward(layers, parameters, x)
    loss = loss_of(outputs)
    gradient = flat(torch.autograd.grad(loss, parameters))
    optimiser = torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (loss_of(forward(layers, parameters, x)) / n).backward()
        optimiser.step()
    lines = [f"net {C} {H} {W} {classes} {vocabulary} {ignore}", *(f"layer {text}" for text in layers)]
    lines += [f"samples {n}", f"steps {STEPS} {LR} {MOMENTUM} {WEIGHT_DECAY}", "end"]
    with open(os.path.join(folder, f"positions_{name}.bin"), "wb") as file:
        file.write(("\n".join(lines) + "\n").encode())
        file.write(samples.tobytes() + masks.tobytes() + mean.tobytes() + std.tobytes() + start + np.float64(loss.item()).tobytes() + gradient)
        file.write(outputs.argmax(1).numpy().astype("<i4").tobytes() + flat(parameters))


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference")
    for number, case in enumerate(CASES):
        make(case, where, np.random.default_rng(100 + number))
