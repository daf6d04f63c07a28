"""Trains the net of cnn.py.  train_cnn_plain.py does it alone, train_cnn.py with gradcast."""

import gradcast
import torch.nn.functional as F
from cnn import Cnn

model = Cnn()
with gradcast.attach(model) as job:
    for block in job:
        x, y = block.samples
        out = model(x)
        block.done(F.cross_entropy(out, y, reduction="sum"), out)
