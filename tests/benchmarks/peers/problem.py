# SPDX-License-Identifier: Apache-2.0
"""Inputs for the peers, and the float64 recurrence that their results are held against.

q, k normal (each peer, or its caller, normalises them), v normal, beta in (0, 1), log decay in (-5, 0), state 0.1 normal.
q, k, v [N, T, H, D]; g [N, T, H, D] for KDA, [N, T, H] for GDN; beta [N, T, H]; state [N, H, K, V].
"""
import ctypes
import dataclasses
import mmap

import numpy as np

D = 128


@dataclasses.dataclass
class Problem:
    op: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    state: np.ndarray

    @property
    def shape(self):
        return self.q.shape[:3]

    @property
    def per_channel(self):
        return self.op.startswith("kda")

    @property
    def decoding(self):
        return self.op.endswith("decode")


def make(op, N, T, H):
    r = np.random.default_rng(1)
    normal = lambda *shape: r.standard_normal(shape, np.float32)
    return Problem(op, q=normal(N, T, H, D), k=normal(N, T, H, D), v=normal(N, T, H, D),
                   g=-5 * r.random((N, T, H, D) if op.startswith("kda") else (N, T, H), np.float32),
                   beta=r.random((N, T, H), np.float32), state=np.float32(0.1) * normal(N, H, D, D))


def on_huge_pages(x):
    """A copy, as kda's benchmarks have their states; tensors have small pages in both (measure.py tells numpy so)."""
    page = 2 << 20
    room = mmap.mmap(-1, x.nbytes + page)
    room.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % page
    copy = np.frombuffer(room, x.dtype, x.size, start).reshape(x.shape)
    copy[...] = x
    return copy


def normalized(x):
    return x / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True) + 1e-6)


def reference(p):
    """Outputs [N, T, H, V] and states [N, H, K, V] in float64; scale D^-1/2."""
    q, k = normalized(p.q), normalized(p.k)
    v, g, beta, state = (x.astype(np.float64) for x in (p.v, p.g, p.beta, p.state))
    if not p.per_channel:
        g = np.broadcast_to(g[..., None], k.shape)
    out = np.empty_like(v)
    for t in range(q.shape[1]):
        state = np.exp(g[:, t])[..., None] * state
        delta = beta[:, t][..., None] * (v[:, t] - np.einsum("nhkv,nhk->nhv", state, k[:, t]))
        state = state + k[:, t][..., None] * delta[..., None, :]
        out[:, t] = np.einsum("nhkv,nhk->nhv", state, q[:, t]) / D ** 0.5
    return out, state


def error(got, want):
    return max(float(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max()) for a, b in zip(got, want))
