"""One decoding step of a layer: what norm, convolution and mixture do one after another."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference.conv import conv_step
from evermind_web.backend.reference.moe import moe_fwd
from evermind_web.backend.reference.norm import rmsnorm_fwd

_NO_NOISE = np.zeros(64, np.int32)


def layer_step(
    x: Array,
    norm_conv: Array,
    conv: Array,
    norm_moe: Array,
    W: Array,
    out: Array,
    state: Array,
    H: int,
    E: int,
    k: int,
) -> None:
    """See `ops.layer_step`."""
    B = len(x)
    n, a, m, rstd = np.empty_like(x), np.empty_like(x), np.empty_like(x), np.empty(B, x.dtype)
    rmsnorm_fwd(x, norm_conv, n, rstd)
    conv_step(x, n, conv, a, state)
    rmsnorm_fwd(a, norm_moe, m, rstd)
    experts, order, inverse, starts = (np.empty(s, np.int32) for s in ((B, k), (B * k,), (B * k,), (E + 1,)))
    gates, probs, hidden = (np.empty(s, x.dtype) for s in ((B, k), (B, E), (B * (k + 1), H)))
    moe_fwd(a, m, W, _NO_NOISE, out, experts, gates, probs, order, inverse, starts, hidden, H, E, k)
