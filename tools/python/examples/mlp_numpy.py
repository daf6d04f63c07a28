"""A net of two layers with a backward pass written by hand, in numpy alone: softmax(relu(x w1 + b1) w2 + b2).

The net of mlp_numpy.toml, for images of any shape.
"""

import numpy as np

import gradcast

job = gradcast.settings()
pixels, hidden = job.C * job.H * job.W, 32
net = {
    "w1": (np.random.standard_normal((pixels, hidden)) * np.sqrt(2 / pixels)).astype(np.float32),
    "b1": np.zeros(hidden, np.float32),
    "w2": (np.random.standard_normal((hidden, job.classes)) * np.sqrt(2 / hidden)).astype(np.float32),
    "b2": np.zeros(job.classes, np.float32),
}


def forward(x):
    """x: [n, pixels].  Returns the hidden layer [n, hidden] and the outputs [n, classes]."""
    h = np.maximum(x @ net["w1"] + net["b1"], 0)
    return h, h @ net["w2"] + net["b2"]


def cross_entropy(out, y):
    """Returns the loss, summed over the samples, and its gradient [n, classes]."""
    n = np.arange(len(y))
    e = np.exp(out - out.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    loss = -np.log(p[n, y]).sum(dtype=np.float64)
    p[n, y] -= 1
    return loss, p


def backward(x, h, dout):
    """Returns the gradients, summed over the samples."""
    dh = dout @ net["w2"].T * (h > 0)
    return {"w1": x.T @ dh, "b1": dh.sum(0), "w2": h.T @ dout, "b2": dout.sum(0)}


with gradcast.attach(net) as job:
    for block in job:
        x, y = block.samples
        x = x.reshape(len(x), -1)
        h, out = forward(x)
        loss, dout = cross_entropy(out, y)
        block.done(loss, out, gradients=backward(x, h, dout) if block.training else None)
