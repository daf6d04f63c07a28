"""Trains resnet18 on CIFAR-10.  train_resnet18_plain.py does it alone, train_resnet18.py with gradcast."""

import gradcast
import torch.nn.functional as F
from resnet18 import ResNet18

model = ResNet18()
with gradcast.attach(model) as job:
    for block in job:
        x, y = block.samples
        out = model(x)
        block.done(F.cross_entropy(out, y, reduction="sum"), out)
