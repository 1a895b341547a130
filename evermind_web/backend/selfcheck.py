"""Every operation on a device, against NumPy, on small data: some drivers compile a kernel so that it computes wrong.

Run when a device is opened, once per release, adapter and browser: a good verdict is remembered where that is
possible. Operations that differ run on NumPy from then on (`patched.py`), and the backend's name says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from evermind_web import environment, ops
from evermind_web._version import __version__
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.patched import PatchedBackend
from evermind_web.backend.reference import REFERENCE
from evermind_web.errors import BackendError, DeviceLostError
from evermind_web.layout import ALIGN, limbic_layout, moe_layout

# No size is that of a tile, and there are more rows than one has.
SIZES = {
    "N": 70, "D": 20, "V": 67, "K": 3, "H": 24, "E": 5, "k": 2, "R": 3, "P": 3 * ALIGN, "G": 3, "B": 2, "S": 2, "I": 5,
    "A": 4, "bits": 8, "half": 0, "add": 1,
}  # fmt: skip
RTOL = 1e-3  # of the largest value: ten times what two orders of summation make of the worst operation
MAX_BROKEN = 4  # a device with more is not worth it
Operands = dict[str, Array]


async def verified(backend: Backend) -> Backend:
    """`backend`, or one that leaves its broken operations to NumPy. Raises BackendError if too many are broken."""
    key = f"{__version__} {backend.adapter_name} {environment.user_agent()}"
    if await environment.recall(key):
        return backend
    broken = await broken_operations(backend)
    if not broken:
        await environment.remember(key)
        return backend
    if len(broken) > MAX_BROKEN:
        what = next(iter(broken.values()))
        raise BackendError(
            f"{backend.adapter_name} computes wrong results in {len(broken)} operations: {what}; "
            'use the backend "numpy", or another browser or driver'
        )
    return PatchedBackend(backend, broken)


async def broken_operations(backend: Backend, names: Iterable[str] = ops.OPS) -> dict[str, str]:
    """What is wrong, by operation; {} on a sound device."""
    names = tuple(names)
    try:
        found = await _outputs(backend, names)
    except DeviceLostError:
        raise
    except BackendError as error:
        if len(names) == 1:
            return {names[0]: f"{names[0]}: {error}"}
        each = [await broken_operations(backend, (name,)) for name in names]  # which one was it?
        return {name: why for one in each for name, why in one.items()}
    expected = await _outputs(NumpyBackend(), names)
    return {name: why for name in names if (why := _difference(name, expected[name], found[name]))}


def _difference(op: str, expected: Operands, found: Operands) -> str:
    for name, right in expected.items():
        if op == "sample" and name == "out":
            continue  # the token, which is compared, and the bits of its log-probability
        wrong = np.abs(found[name].astype(np.float64) - right).max()
        limit = 0 if right.dtype.kind == "i" else RTOL * np.abs(right).max()
        if not wrong <= limit:  # also if it is NaN
            return f"{op}: {name} differs from NumPy's by up to {wrong:.3g} of {np.abs(right).max():.3g}"
    return ""


async def _outputs(backend: Backend, names: Iterable[str]) -> dict[str, Operands]:
    """Outputs by operation and name; everything is queued, then read at once."""
    owned: list[Buf] = []
    outputs: dict[str, dict[str, Buf]] = {}
    try:
        for name in names:
            op, drawn, bufs = ops.OPS[name], draw(name), {}
            for arg in (*op.ins, *op.outs):
                bufs[arg.name] = backend.alloc(drawn[arg.name].shape, arg.dtype)
                owned.append(bufs[arg.name])
                backend.write(bufs[arg.name], drawn[arg.name])
            outputs[name] = {arg.name: bufs[arg.name] for arg in op.outs}
            scalars = {scalar: SIZES[scalar] for scalar in op.scalars}
            op(backend, [bufs[arg.name] for arg in op.ins], list(outputs[name].values()), **scalars)
        arrays = iter(await backend.read(*(buf for outs in outputs.values() for buf in outs.values())))
        return {name: {out: next(arrays) for out in outs} for name, outs in outputs.items()}
    finally:
        for buf in owned:
            backend.free(buf)
        with suppress(BackendError):  # there is an error on its way, or none
            backend.flush()


def draw(name: str) -> Operands:
    """Operands of an operation by name, the same ones each time."""
    random, op = np.random.default_rng(7), ops.OPS[name]
    letters = _letters(name)
    drawn = {
        arg.name: _operand(arg.name, arg.dtype, tuple(ops.extent_of(dim, letters) for dim in arg.dims), random)
        for arg in (*op.ins, *op.outs)
    }
    if "order" in drawn and name != "moe_fwd":  # the routing is what moe_fwd makes of m and W
        routed = draw("moe_fwd") | {"m": drawn["m"], "W": drawn["W"]}
        args = [routed[arg.name] for arg in (*ops.OPS["moe_fwd"].ins, *ops.OPS["moe_fwd"].outs)]
        REFERENCE["moe_fwd"](*args, SIZES["H"], SIZES["E"], SIZES["k"])
        drawn |= {arg.name: routed[arg.name] for arg in ops.OPS["moe_fwd"].outs if arg.name in drawn}
    return drawn


def _letters(name: str) -> Mapping[str, int]:
    D, H, V = SIZES["D"], SIZES["H"], SIZES["V"]
    values = SIZES["P"] if name == "dequant" else V * D
    scales = SIZES["K"] - 1 if name in ("conv_step", "layer_step") else SIZES["G"] if name == "dequant" else V
    block = limbic_layout(SIZES["I"], H, SIZES["A"]) if name.startswith("limbic") else moe_layout(D, H, SIZES["E"])
    return SIZES | {"Q": scales, "C": values * SIZES["bits"] // 32, "M": block.size}


def _operand(name: str, dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if dtype == "int32":
        if name in ("cursor", "out", "counts", "noise", "order", "inverse", "starts"):
            return np.zeros(shape, np.int32)
        if name in ("tokens", "targets"):
            return random.integers(0, SIZES["V"], shape).astype(np.int32)
        if name == "experts":
            return random.integers(0, SIZES["E"], shape).astype(np.int32)
        if name == "pos":
            return (np.arange(shape[0]) % 35).astype(np.int32)
        return random.integers(-(2**31), 2**31, shape).astype(np.int32)  # draws and codes: any word
    if name == "hyper":
        betas = {"beta1": 0.9, "one_minus_beta1": 0.1, "beta2": 0.99, "one_minus_beta2": 0.01}
        steps = {"lr": 0.1, "eps": 1e-4, "bias_correction1": 0.1, "bias_correction2": 0.01}
        return ops.hyper_vector(betas | steps)
    if name == "sampling":
        vector = np.zeros(shape, np.float32)
        vector[[ops.SAMPLING["temperature"], ops.SAMPLING["top_p"], ops.SAMPLING["repetition_penalty"]]] = 1.0
        return vector
    if name in ("stats", "bias"):
        return np.zeros(shape, np.float32)
    if name in ("weights", "v", "rstd", "probs", "balance", "group", "scales"):
        return np.asarray(0.02 + 0.1 * random.random(shape), np.float32)
    return np.asarray(random.normal(0, 0.5, shape), np.float32)
