"""One tiny training step on a device, against NumPy: some drivers compile a kernel to something that computes wrong.

Run once when a device is opened. The kernels that it compiles are those that training needs anyway.
"""

from __future__ import annotations

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import BackendError
from evermind_web.layout import moe_layout

N, D, V, K, H, E, k = 70, 20, 67, 3, 24, 5, 2
RTOL = 1e-3  # of the largest value: ten times what two orders of summation make of the worst operation


async def check_backend(backend: Backend) -> None:
    """Raises BackendError naming the first result that differs from NumPy's."""
    expected, found = await _step(NumpyBackend()), await _step(backend)
    for name, right in expected.items():
        wrong = np.abs(found[name] - right).max()
        if not wrong <= RTOL * np.abs(right).max():  # also if it is NaN
            raise BackendError(
                f"{backend.adapter_name} computes wrong results: {name} differs from NumPy's by up to {wrong:.3g} "
                f'of {np.abs(right).max():.3g}; use the backend "numpy", or another browser or driver'
            )


async def _step(b: Backend) -> dict[str, Array]:
    random = np.random.default_rng(7)
    owned: list[Buf] = []

    def new(*shape: int, dtype: str = "float32") -> Buf:
        owned.append(b.alloc(shape, dtype))
        return owned[-1]

    def put(values: Array) -> Buf:
        buf = new(*values.shape, dtype="int32" if values.dtype.kind == "i" else "float32")
        b.write(buf, values)
        return buf

    def normal(*shape: int) -> Buf:
        return put(random.normal(0, 0.5, shape).astype("<f4"))

    size = moe_layout(D, H, E).size
    tokens, targets = (put(random.integers(0, V, N).astype("<i4")) for _ in range(2))
    pos = put((np.arange(N) % 35).astype("<i4"))
    emb, taps, gain, W = normal(V, D), normal(D, K), normal(D), normal(size)
    x, n, a, m, out, d, dm, dn = (new(N, D) for _ in range(8))
    rstd_n, rstd_m, weights = new(N), new(N), put(np.full(N, 1 / N, "<f4"))
    experts, order, inverse, starts = (new(*shape, dtype="int32") for shape in ((N, k), (N * k,), (N * k,), (E + 1,)))
    gates, probs, hidden = new(N, k), new(N, E), new(N * (k + 1), H)
    loss, demb, dtaps, dgain, dW = new(1), new(V, D), new(D, K), new(D), new(size)

    ops.embed_fwd(b, (tokens, emb), (x,))
    ops.rmsnorm_fwd(b, (x, gain), (n, rstd_n))
    ops.conv_fwd(b, (x, n, taps, pos), (a,))
    ops.rmsnorm_fwd(b, (a, gain), (m, rstd_m))
    ops.moe_fwd(b, (a, m, W, new(ops.NOISE_SIZE, dtype="int32")), (out, experts, gates, probs, order, inverse, starts, hidden), H=H, E=E, k=k)
    betas = {"beta1": 0.9, "one_minus_beta1": 0.1, "beta2": 0.99, "one_minus_beta2": 0.01}
    corrections = {"bias_correction1": 0.1, "bias_correction2": 0.01}
    hyper = put(ops.hyper_vector({"lr": 0.1, "eps": 1e-4, **betas, **corrections}))
    ops.head_xent_bwd(b, (out, emb, targets, weights, hyper), (loss, d, demb))
    ops.moe_bwd(b, (m, W, experts, gates, order, inverse, starts, hidden, d), (dm, dW), H=H, E=E, k=k)
    ops.rmsnorm_bwd(b, (a, gain, rstd_m, dm), (d, dgain))
    ops.conv_bwd(b, (n, taps, pos, d), (dn, dtaps))
    ops.embed_bwd(b, (tokens, d), (demb,))
    stats, group, moment, variance = new(2), put(np.ones(size // 64, "<f4")), new(size), new(size)
    ops.grad_stats(b, (dW, hyper), (stats,), half=0)
    ops.adamw(b, (dW, group, hyper, stats), (W, moment, variance), half=0)

    results = {"the model's output": out, "the loss": loss, "the gradient of the embedding": demb,
               "the gradient of the experts": dW, "the gradient of a gain": dgain,
               "the gradient of the convolution": dtaps, "the gradient of its input": dn,
               "the updated weights": W}  # fmt: skip
    arrays = await b.read(*results.values())
    for buf in owned:
        b.free(buf)
    b.flush()
    return dict(zip(results, arrays, strict=True))
