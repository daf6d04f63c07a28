"""Trains a small GPT on a text.  train_gpt_plain.py does it alone, train_gpt.py with gradcast."""

import gradcast
from gpt import Gpt, Text, loss

model = Gpt()
text = Text("text.txt")
with gradcast.attach(model, data_digest=text.digest) as job:
    for block in job:
        x, y = text.windows(block.indices * 8, block.training)
        out = model(x)
        block.done(loss(out, y))
