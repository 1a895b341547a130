"""GP13: a device that computes some operation wrong leaves that one to NumPy, and says so; results stay right.

The device is native WebGPU (or NumPy in its place, with operations that were spoiled), so this runs in CPython; the
check itself also runs in each browser test that opens a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import environment, ops
from evermind_web.backend import selfcheck, webgpu_backend
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.device import Kernel, load_kernel
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.patched import PatchedBackend
from evermind_web.backend.request import request_backend
from evermind_web.errors import BackendError
from evermind_web.training import EvermindLMTrainer

SEQUENCES = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3], [2, 4, 6], [1, 3, 5]] * 2


class Wrong(NumpyBackend):
    """NumPy that doubles the outputs of some operations."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken_ops, self.ran = broken, list[str]()

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        self.ran.append(op)
        super().run(op, ins, outs, scalars)
        if op in self.broken_ops:
            for buf in outs:
                self.array(buf)[...] = self.array(buf) * 2 + 1


def learned(backend: Backend) -> bytes:
    model = ew.EvermindLM(9, d_model=12, hidden_dim=8, num_experts=3, top_k=2, seed=1, backend=backend)
    trainer = EvermindLMTrainer(model, accum_steps=2, epochs=2, dropout=0.1, balance_coef=0.01, mixed_precision=True)
    losses = trainer.fit(SEQUENCES)
    adapter = ew.EvermindLMLoRA(model, rank=2)
    adapter.fit(SEQUENCES, accum_steps=2)
    text = adapter.generate([1, 2], max_new_tokens=6)
    return model.export_weights() + repr((losses, text)).encode() + adapter.serialize_adapter()


@pytest.mark.parametrize("op", ops.OPS)
async def test_gp13_each_operation_is_checked(op: str) -> None:
    assert list(await selfcheck.broken_operations(Wrong(op))) == [op]


async def test_gp13_a_sound_device_is_left_alone() -> None:
    sound = Wrong()
    assert await selfcheck.verified(sound) is sound
    assert set(sound.ran) == set(ops.OPS)


@pytest.mark.parametrize(
    "broken", [("conv_norm_fwd",), ("moe_bwd", "adamw"), ("embed_bwd", "head_xent_bwd", "dropout")]
)
async def test_gp13_what_is_broken_runs_on_numpy_with_the_same_bits(broken: tuple[str, ...]) -> None:
    device = Wrong(*broken)
    patched = await selfcheck.verified(device)
    assert isinstance(patched, PatchedBackend)
    assert set(patched.broken) == set(broken)
    assert all(op in patched.adapter_name for op in broken)
    device.ran.clear()
    assert learned(patched) == learned(NumpyBackend())
    assert not set(broken) & set(device.ran)
    assert len(set(device.ran)) > 10, "all else runs on the device"


async def test_gp13_a_device_with_too_much_wrong_is_refused() -> None:
    with pytest.raises(BackendError, match=r"wrong results in 5 operations: embed_fwd: x differs from NumPy's by"):
        await selfcheck.verified(Wrong("embed_fwd", "conv_norm_fwd", "moe_fwd", "adamw", "sample"))


async def test_gp13_a_good_verdict_is_remembered_and_a_bad_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: set[str] = set()

    async def recall(key: str) -> bool:
        return key in notes

    async def remember(key: str) -> None:
        notes.add(key)

    monkeypatch.setattr(environment, "recall", recall)
    monkeypatch.setattr(environment, "remember", remember)
    await selfcheck.verified(Wrong("conv_norm_fwd"))
    assert not notes
    await selfcheck.verified(Wrong())
    (key,) = notes
    assert ew.__version__ in key
    again = Wrong()
    await selfcheck.verified(again)
    assert not again.ran


async def test_gp13_a_kernel_that_does_not_compile_is_found_by_name(
    gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(name: str, change: Callable[[str], str]) -> Callable[[str], Kernel]:
        def load(wanted: str) -> Kernel:
            kernel = load_kernel(wanted)
            code = change(kernel.code) if wanted == name else kernel.code
            return Kernel(wanted, code, kernel.bindings)

        return load

    monkeypatch.setattr(
        webgpu_backend, "load_kernel", spoil("conv_norm_fwd", lambda code: code.replace("fn main", "fn mian"))
    )
    device = await request_backend("wgpu")
    try:
        broken = await selfcheck.broken_operations(device, ("embed_fwd", "conv_norm_fwd", "rmsnorm_fwd"))
        assert list(broken) == ["conv_norm_fwd"]
        patched = PatchedBackend(device, broken)
        model, twin = (ew.EvermindLM(9, d_model=12, hidden_dim=8, seed=1, backend=b) for b in (patched, NumpyBackend()))
        assert np.abs(model.forward([1, 2, 3]) - twin.forward([1, 2, 3])).max() < 1e-4
    finally:
        device.dispose()
