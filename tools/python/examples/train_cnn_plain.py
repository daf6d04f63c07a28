"""Trains the net of cnn.py.  train_cnn_plain.py does it alone, train_cnn.py with gradcast."""

import torch
import torch.nn.functional as F
from samples import accuracy, batches, load
from cnn import Cnn

model = Cnn()
train, test = load("data/train.h5"), load("data/test.h5")
optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(3):
    for x, y in batches(train, 128):
        out = model(x)
        optimiser.zero_grad()
        F.cross_entropy(out, y).backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: accuracy {accuracy(model, test):.4f}")
