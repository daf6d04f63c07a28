#!/usr/bin/python3
# A residual net of PyTorch, whose names are torchvision's, as a file that a job can start with (Debian: python3-torch).
# usage: resnet.py FOLDER      which has resnet.input (float32, normalised samples) and resnet.shape; writes resnet.safetensors and resnet.logits
import json
import os
import struct
import sys

import numpy as np
import torch

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python", "examples"))
from resnet18 import ResNet18  # noqa: E402

folder = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)
net = ResNet18().eval()
for name, tensor in net.state_dict().items():   # as if trained: no statistic and no weight of a norm is 0 or 1
    if "running_" in name or tensor.dim() == 1:
        tensor.uniform_(0.5, 1.5)
header, data = {}, b""
for name, tensor in net.state_dict().items():
    values = tensor.numpy().tobytes()
    header[name] = {"dtype": {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(values)]}
    data += values
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(folder, "resnet.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
x = torch.from_numpy(np.fromfile(os.path.join(folder, "resnet.input"), "<f4").reshape(np.fromfile(os.path.join(folder, "resnet.shape"), "<u4")))
with torch.no_grad():
    net(x).numpy().astype("<f4").tofile(os.path.join(folder, "resnet.logits"))
