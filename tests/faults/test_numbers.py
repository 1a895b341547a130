"""NaN, infinity and huge numbers at every input: NumPy and WebGPU decide the same, and a bad step changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import ops
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.selfcheck import SIZES, draw
from evermind_web.errors import NonFiniteError
from evermind_web.training import EvermindLMTrainer

VALUES = {"nan": np.nan, "inf": np.inf, "minus-inf": -np.inf, "1e30": 1e30, "zero-row": 0.0}
CONSTANT = {("adamw", "group")}  # written once by the package itself, from the table of parameters
SHAPE = {"vocab_size": 13, "d_model": 8, "num_layers": 2, "conv_kernel": 2, "hidden_dim": 6, "num_experts": 3}
SEQUENCES = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3], [12, 11, 10], [7, 8, 9]]

INPUTS = [
    (op.name, arg.name)
    for op in ops.OPS.values()
    for arg in (*op.ins, *(out for out in op.outs if out.accumulates))
    if arg.dtype == "float32" and (op.name, arg.name) not in CONSTANT
]


async def outputs(backend: Backend, name: str, operands: dict[str, Array]) -> dict[str, Array]:
    op, bufs = ops.OPS[name], {}
    for arg in (*op.ins, *op.outs):
        bufs[arg.name] = backend.alloc(operands[arg.name].shape, arg.dtype)
        backend.write(bufs[arg.name], operands[arg.name])
    outs = [bufs[arg.name] for arg in op.outs]
    op(backend, [bufs[arg.name] for arg in op.ins], outs, **{scalar: SIZES[scalar] for scalar in op.scalars})
    arrays = await backend.read(*outs)
    for buf in bufs.values():
        backend.free(buf)
    return {arg.name: array for arg, array in zip(op.outs, arrays, strict=True)}


@pytest.mark.parametrize(("name", "operand"), INPUTS, ids=lambda value: value)
async def test_gp8_numpy_and_webgpu_decide_the_same(gpu: Backend, name: str, operand: str) -> None:
    for what, value in VALUES.items():
        operands = draw(name)
        flat = operands[operand].reshape(len(operands[operand]), -1)
        if what == "zero-row":
            flat[len(flat) // 2] = value
        else:
            flat.reshape(-1)[flat.size // 2] = value
        want = await outputs(NumpyBackend(), name, operands)
        found = await outputs(gpu, name, operands)
        for out, right in want.items():
            if right.dtype.kind == "i":
                if (name, out) != ("sample", "out"):  # bits of a logarithm
                    assert np.array_equal(found[out], right), (what, out)
            else:
                assert np.isfinite(found[out]).all() == np.isfinite(right).all(), (what, out)


def tensors() -> list[str]:
    return [p.name for p in ew.EvermindLM(**SHAPE, seed=1).parameters()]


async def spoiled(backend: Backend, name: str, value: float) -> ew.EvermindLM:
    """A model one of whose weights has this value."""
    twin = ew.EvermindLM(**SHAPE, seed=1)
    tensor = next(p for p in twin.parameters() if p.name == name)
    tensor.data.reshape(-1)[tensor.data.size // 2] = value
    model = ew.EvermindLM(**SHAPE, seed=1, backend=backend)
    model.load_weights(twin.export_weights())
    return model


# Every fourth tensor: each kind of tensor is among them.
@pytest.mark.parametrize("name", tensors()[::3])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30], ids=str)
async def test_gp8_a_bad_weight_stops_both_at_the_same_step_with_no_bit_changed(
    backend: Backend, name: str, value: float
) -> None:
    model = await spoiled(backend, name, value)
    twin = await spoiled(NumpyBackend(), name, value)
    before = model.fingerprint()
    said = []
    for one in (model, twin):
        try:
            EvermindLMTrainer(one, accum_steps=4).fit(SEQUENCES)
            said.append("fine")
        except NonFiniteError as error:
            said.append(str(error))
    assert said[0] == said[1]
    if said[0] == "fine":
        assert value == 1e30 or "expert" in name, "only what no token meets, or a norm divides away, may pass"
    else:
        assert " is not finite at step 1" in said[0] or "are not finite at step 1" in said[0]
        assert model.fingerprint() == before
    model.dispose()


async def test_tr5_overflows_in_half_precision_are_skipped_alike(backend: Backend) -> None:
    """Scale 2³⁰ overflows fp16 at once: both halve it the same number of times, and no skipped step changes a bit."""

    def run(on: Backend) -> tuple[list[tuple[bool, float]], int, str]:
        model = ew.EvermindLM(**SHAPE, seed=1, backend=on)
        trainer = EvermindLMTrainer(model, mixed_precision={"init_scale": 2.0**30}, epochs=8, accum_steps=4)
        steps: list[tuple[bool, float]] = []
        before = model.fingerprint()
        trainer.fit(SEQUENCES, lambda info: steps.append((info.skipped, info.loss_scale)) or trainer.stop())
        unchanged = model.fingerprint() == before
        assert steps == [(True, 2.0**30)]
        assert unchanged
        trainer.fit(SEQUENCES, lambda info: steps.append((info.skipped, info.loss_scale)))
        return steps, trainer.loss_scaler.skipped, str(unchanged)

    assert run(backend) == run(NumpyBackend())


async def test_the_same_seed_gives_the_same_bits_on_one_device(backend: Backend) -> None:
    def run() -> tuple[str, list[float], list[int]]:
        model = ew.EvermindLM(**SHAPE, seed=5, backend=backend)
        losses = EvermindLMTrainer(model, epochs=3, accum_steps=2, dropout=0.2, router_noise=0.1).fit(SEQUENCES)
        text = model.generate([1, 2], max_new_tokens=12, temperature=0.9, seed=3)
        found = model.fingerprint(), losses, text
        model.dispose()
        return found

    assert run() == run()
