"""Samples for scripts that train alone: shards of `gradcastctl import`, read with h5py.  A script that gradcast starts does not need this file."""

import h5py
import torch


def load(path):
    """x: float32 [N, C, H, W], (bytes / 255 - mean) / std by channel.  y: labels, int64 [N]."""
    with h5py.File(path, "r") as file:
        images, labels = torch.from_numpy(file["images"][:]), torch.from_numpy(file["labels"][:].astype("int64"))
        mean, std = (torch.tensor(file.attrs[name], dtype=torch.float32).view(-1, 1, 1) for name in ("mean", "std"))
    return (images.float() / 255 - mean) / std, labels


def batches(data, size):
    """Yields x and y of the whole batches of an epoch, shuffled."""
    x, y = data
    for some in torch.randperm(len(x)).split(size):
        if len(some) == size or len(x) < size:
            yield x[some], y[some]


def accuracy(model, data):
    """The share of samples whose class the model says.  Leaves the model in train()."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(data[0].split(256), data[1].split(256)))
    model.train()
    return right / len(data[0])
