"""Trains a small GPT on a text.  train_gpt_plain.py does it alone, train_gpt.py with gradcast."""

import torch
from gpt import Gpt, Text, loss

model = Gpt()
text = Text("text.txt")
optimiser = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(4):
    for some in torch.randperm(8192).split(32):
        x, y = text.windows(some * 8)
        out = model(x)
        optimiser.zero_grad()
        (loss(out, y) / len(x)).backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: test loss {text.test_loss(model):.4f}")
