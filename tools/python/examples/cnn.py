"""A small convolutional net, trained by gradcast.  cnn_plain.py trains the same one alone."""

import torch
import torch.nn.functional as F
from torch import nn

import gradcast

model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
)
with gradcast.attach(model) as job:
    for block in job:
        x, y = block.samples
        out = model(x)
        block.done(F.cross_entropy(out, y, reduction="sum"), out)
