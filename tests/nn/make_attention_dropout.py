#!/usr/bin/python3
# Prints the constants of tests/nn/attention_dropout_test.cc, made with PyTorch (Debian: python3-torch) in double precision: loss and gradient of
# a block of a net "embedding, attention with dropout, linear", whose masks are drawn here by Philox as runtime/core/rng.h defines it.
import numpy as np
import torch
import torch.nn.functional as F

V, T, C, HEADS, N, BLOCK, SEED, STEP, RATE = 7, 75, 6, 2, 3, 5, 9, 3, 0.3125
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
DROPOUT = 4   # Purpose::dropout


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M64
    return x ^ x >> 31


def numbers(count, key):
    return np.array([(splitmix64(key << 32 | i) >> 40) * 2.0**-23 - 1 for i in range(count)])


def random4(seed, a, b):
    c, k = [a & M32, a >> 32, b, DROPOUT], [seed & M32, seed >> 32]
    for _ in range(10):
        x, y = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [y >> 32 ^ c[1] ^ k[0], y & M32, x >> 32 ^ c[3] ^ k[1], x & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def mixed(seed, with_):
    bits = random4(seed, with_, M32)
    return bits[1] << 32 | bits[0]


def stays(seed, sample, head, query, key):
    draw = random4(seed, BLOCK << 32 | sample, (head * T + query) * ((T + 7) // 8) + key // 8)
    return (draw[key % 8 // 2] >> key % 2 * 16 & 0xFFFF) >= round(RATE * 65536)


seed = mixed(mixed(SEED, 1), STEP)   # attention is layer 1
mask = torch.tensor([[[[float(stays(seed, n, h, q, k)) for k in range(T)] for q in range(T)] for h in range(HEADS)] for n in range(N)], dtype=torch.double)
sizes = [(V, 3 * C), (V, C), (V,)]
flat = numbers(sum(int(np.prod(size)) for size in sizes), 5)
weights, at = [], 0
for size in sizes:
    weights.append(torch.tensor(2 * flat[at:at + int(np.prod(size))].reshape(size), dtype=torch.double, requires_grad=True))
    at += int(np.prod(size))
tokens = torch.tensor([[splitmix64(n * (T + 1) + i) % V for i in range(T + 1)] for n in range(N)])

for causal in (False, True):
    x = F.embedding(tokens[:, :-1], weights[0])
    q, k, v = (part.reshape(N, T, HEADS, C // HEADS).transpose(1, 2) for part in x.split(C, -1))
    scores = q @ k.transpose(-1, -2) / (C // HEADS)**0.5
    if causal: scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -np.inf)
    # As scaled_dot_product_attention(dropout_p) of PyTorch 2: softmax, dropout, product with the values.
    p = scores.softmax(-1) * mask / (1 - RATE)
    y = (p @ v).transpose(1, 2).reshape(N, T, C)
    logits = F.linear(y, weights[1], weights[2])
    loss = F.cross_entropy(logits.reshape(-1, V), tokens[:, 1:].reshape(-1), reduction="sum") / T
    gradients = torch.autograd.grad(loss, weights)
    print(f"causal {causal}: loss {loss.item():.9f}, kept {mask.mean().item():.4f}")
    for i, gradient in enumerate(gradients):
        flat_gradient = gradient.reshape(-1).numpy()
        print(f"    norm {np.linalg.norm(flat_gradient):.9f}, product {flat_gradient @ numbers(len(flat_gradient), 11 + i):.9f}")
