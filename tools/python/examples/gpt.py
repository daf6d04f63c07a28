"""A small GPT on the bytes of a text: a decoder as in Radford et al. (2019), with its norms before attention and before the two layers."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT = 64   # bytes that a sample has, T below


class Layer(nn.Module):
    """Attention and two dense layers.  x: [n, T, width]."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1), persistent=False)

    def attend(self, x):
        n, T, width = x.shape
        q, k, v = self.attention(self.norm1(x)).view(n, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)   # [n, heads, T, width / heads]
        weights = (q @ k.transpose(2, 3) / k.shape[3] ** 0.5 + self.mask[:T, :T]).softmax(3)
        return x + self.projection((weights @ v).transpose(1, 2).reshape(n, T, width))

    def dense(self, x):
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def forward(self, x):
        return self.dense(self.attend(x))


class Gpt(nn.Module):
    """x: bytes, int64 [n, T].  Gives a score for each next byte, [n, T, 256]."""

    def __init__(self, width=128, heads=4, layers=4):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def embed(self, x):
        return self.bytes(x) + self.places.weight[: x.shape[1]]

    def score(self, x):
        return self.head(self.norm(x))

    def forward(self, x):
        return self.score(self.layers(self.embed(x)))


class Text:
    """The bytes of a file.  The last tenth is for evaluations."""

    def __init__(self, path):
        with open(path, "rb") as file:
            read = bytearray(file.read())
        self.digest = hashlib.sha256(read).hexdigest()
        whole = torch.frombuffer(read, dtype=torch.uint8).long()
        self.train, self.test = whole[: len(whole) * 9 // 10], whole[len(whole) * 9 // 10 :]

    def windows(self, indices, training=True):
        """Samples by index, int64 [n]: window i begins at byte i, counted around the end.  Gives x and y, [n, T]: y is the byte behind each byte of x."""
        part = self.train if training else self.test
        found = part[(indices[:, None] % (len(part) - CONTEXT)) + torch.arange(CONTEXT + 1)]
        return found[:, :-1], found[:, 1:]

    def test_loss(self, model):
        """The mean loss of 256 windows of the last tenth."""
        with torch.no_grad():
            x, y = self.windows(torch.arange(256) * 8, training=False)
            return loss(model(x), y).item() / len(x)


def loss(out, y):
    """The sum over samples of each sample's mean over positions.  out: [n, T, 256].  y: [n, T]."""
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
