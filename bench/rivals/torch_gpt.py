"""Trains the net of tools/jobs/gpt.toml on the characters of a text with PyTorch: its preset, optimiser, schedule and split of the text.

usage: torch_gpt.py TEXT SEED STEPS THREADS [--tiny]
Prints one line of JSON: the mean loss over the test text's windows after the last step.  --tiny: a net of one narrow layer.
"""
import json
import math
import sys
import time

from fair import kernels, settle

path, seed, steps, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
settle(threads)
import torch  # noqa: E402  (reads them)
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

DEPTH, WIDTH, HEADS, CONTEXT, BATCH, LR, WARM_UP = 4, 128, 4, 64, 12, 1e-3, 100
if sys.argv[5:] == ["--tiny"]:
    DEPTH, WIDTH, HEADS, CONTEXT = 1, 16, 2, 16
torch.set_num_threads(threads)
torch.manual_seed(seed)


class Layer(nn.Module):
    """Attention and two linear layers, each behind a norm.  x: [n, T, WIDTH]."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, x):
        n, T, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) / k.shape[3] ** 0.5 + self.mask).softmax(3)
        x = x + self.projection((weights @ v).transpose(1, 2).reshape(n, T, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(DEPTH))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                added = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * DEPTH) if added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.tokens(x) + self.places.weight)))


def loss(model, windows):
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


with open(path, encoding="utf-8", newline="") as file:
    text = file.read()
place = {character: token for token, character in enumerate(sorted(set(text)))}
tokens = torch.tensor([place[character] for character in text])
train, test = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


def windows(of, begin):
    """All windows of CONTEXT tokens and the one behind them, from that token on: [windows, CONTEXT + 1]."""
    return of[begin:].unfold(0, CONTEXT + 1, CONTEXT)


model = Gpt(len(place))
optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
order, begun = iter(()), time.perf_counter()
for step in range(steps):
    batch = next(order, None)
    if batch is None or len(batch) < BATCH:
        epoch = windows(train, int(torch.randint(CONTEXT, ())))
        order = iter(epoch[torch.randperm(len(epoch))].split(BATCH))
        batch = next(order)
    rate = LR * (step + 1) / WARM_UP if step < WARM_UP else LR * (1 + math.cos(math.pi * (step - WARM_UP) / max(steps - WARM_UP, 1))) / 2
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    loss(model, batch).backward()
    optimiser.step()
seconds = time.perf_counter() - begun
with torch.no_grad():
    all_windows = windows(test, 0)
    found = sum(loss(model, part).item() * len(part) for part in all_windows.split(100)) / len(all_windows)
print(json.dumps({"bench": "gpt", "rival": "torch", "version": torch.__version__, "seed": seed, "steps": steps, "threads": threads, "kernels": kernels(),
                  "parameters": sum(p.numel() for p in model.parameters()), "seconds": round(seconds, 1), "test_loss": round(found, 6)}), flush=True)
