#!/usr/bin/python3
# Prints the numbers of tests/sim/valid_mean_test.cc: three steps with PyTorch (Debian: python3-torch) in double precision.  The loss is
# CrossEntropyLoss(ignore_index=255, reduction="mean") over the whole mini-batch.
import torch
import torch.nn.functional as F

SAMPLES, SIDE, CLASSES, IGNORED = 24, 8, 4, 255
# The order in which a job of seed 7 takes the samples: Sampler(24, 7, 12, 4).range().
STEPS = [
    [10, 12, 16, 21, 19, 15, 22, 1, 6, 20, 4, 7],
    [18, 3, 17, 9, 23, 11, 8, 5, 14, 2, 13, 0],
    [7, 19, 15, 4, 17, 20, 1, 6, 11, 10, 22, 9],
]
MEAN, STD = torch.tensor(0.4, dtype=torch.float32).double(), torch.tensor(0.3, dtype=torch.float32).double()


def pixel(n, p):
    return (n * 31 + p * 17 + n * p % 13 * 5) % 256


def label(n, p):
    return IGNORED if (p * 5 + n) % SAMPLES < n else (pixel(n, p) // 64 + n) % CLASSES


def weight(i, tensor):
    return ((i * 37 + tensor * 11) % 64 - 32) / 64


images = torch.tensor([[pixel(n, p) for p in range(SIDE * SIDE)] for n in range(SAMPLES)]).double().reshape(SAMPLES, 1, SIDE, SIDE)
masks = torch.tensor([[label(n, p) for p in range(SIDE * SIDE)] for n in range(SAMPLES)]).reshape(SAMPLES, SIDE, SIDE)
images = (images / 255 - MEAN) / STD


def train(clip):
    shapes = [(6, 1, 3, 3), (6,), (CLASSES, 6, 1, 1), (CLASSES,)]
    tensors = [torch.tensor([weight(i, t) for i in range(torch.Size(s).numel())]).double().reshape(s).requires_grad_() for t, s in enumerate(shapes)]
    optimiser = torch.optim.SGD(tensors, lr=0.5, momentum=0.9, weight_decay=0.01)
    for order in STEPS:
        optimiser.zero_grad()
        hidden = F.relu(F.conv2d(images[order], tensors[0], tensors[1], padding=1))
        loss = F.cross_entropy(F.conv2d(hidden, tensors[2], tensors[3]), masks[order], ignore_index=IGNORED)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(tensors, clip) if clip else 0
        print(f"clip {clip}: {int((masks[order] != IGNORED).sum())} positions count, loss {loss.item():.9f}, norm {float(norm):.6f}")
        optimiser.step()
    for tensor in tensors[1:]:
        print("    {" + ", ".join(f"{x:.7f}f" for x in tensor.detach().flatten().tolist()) + "},")
    with torch.no_grad():
        hidden = F.relu(F.conv2d(images, tensors[0], tensors[1], padding=1))
        print(f"evaluated {F.cross_entropy(F.conv2d(hidden, tensors[2], tensors[3]), masks, ignore_index=IGNORED).item():.9f}")
    print(f"first {[round(x, 7) for x in tensors[0].detach().flatten().tolist()[:9]]}")


train(0)
train(0.05)
