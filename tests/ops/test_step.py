"""One decoding step of a layer: the same as its parts, on NumPy and on devices of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.kernels import step, tiles
from evermind_web.backend.native_webgpu import NativeDevice
from evermind_web.backend.webgpu_backend import WebGPUBackend
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree
from tests.parity import run_op

CASES = op_cases("layer_step")


@pytest.fixture(scope="module", params=["two dispatches", "three dispatches", "one thread a row"])
def device(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Plans as for few rows on a GPU, as for many, and as for a CPU that plays one."""
    backend = WebGPUBackend(NativeDevice(), "wgpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "software", request.param == "one thread a row")
        patch.setattr(step, "_WORTH", 1 << 30 if request.param == "two dispatches" else 0)
        patch.setattr(tiles, "choose", lambda adapter_name: None)  # the backend would look at the adapter, a CPU
        yield backend
    backend.dispose()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


@pytest.mark.parametrize("case", op_cases("head_logits"), ids=str)
def test_logits_of_few_rows_agree(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


def in_parts(backend: Backend, case: OpCase) -> tuple[Array, Array]:
    """out and state by the operations that layer_step stands for; out lies where x did."""
    drawn, z = case.operands(), case.sizes
    B, D, E, k = z["B"], z["D"], z["E"], z["k"]
    bufs = {name: backend.alloc(array.shape) for name, array in drawn.items()}
    for name, array in drawn.items():
        backend.write(bufs[name], array)
    n, a, m = (backend.alloc((B, D)) for _ in range(3))
    rstd, noise = backend.alloc((B,)), backend.alloc((64,), "int32")
    ints = [backend.alloc(shape, "int32") for shape in ((B, k), (B * k,), (B * k,), (E + 1,))]
    floats = [backend.alloc(shape) for shape in ((B, k), (B, E), (B * (k + 1), z["H"]))]
    x, state = bufs["x"], bufs["state"]
    ops.rmsnorm_fwd(backend, (x, bufs["norm_conv"]), (n, rstd))
    ops.conv_step(backend, (x, n, bufs["conv"]), (a, state))
    ops.rmsnorm_fwd(backend, (a, bufs["norm_moe"]), (m, rstd))
    outs = (x, ints[0], floats[0], floats[1], *ints[1:], floats[2])
    ops.moe_fwd(backend, (a, m, bufs["W"], noise), outs, **case.scalars)
    out, after = asyncio.run(backend.read(x, state))
    return out, after


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numpy_s_step_is_its_parts_bit_for_bit(cpu: Backend, case: OpCase) -> None:
    step, (out, state) = asyncio.run(run_op(cpu, case)), in_parts(cpu, case)
    assert step["out"].tobytes() == out.tobytes()
    assert step["state"].tobytes() == state.tobytes()


def test_out_may_be_x(cpu: Backend, gpu: Backend, device: Backend) -> None:
    case = CASES[-2]
    for backend in (cpu, device):
        bufs = {name: backend.alloc(array.shape) for name, array in case.operands().items()}
        for name, array in case.operands().items():
            backend.write(bufs[name], array)
        given = [bufs[arg.name] for arg in ops.layer_step.ins]
        ops.layer_step(backend, given, (bufs["x"], bufs["state"]), **case.scalars)
        (out,) = asyncio.run(backend.read(bufs["x"]))
        assert out.tobytes() == asyncio.run(run_op(backend, case))["out"].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_survives_in_its_row_alone(gpu: Backend, device: Backend, value: float) -> None:
    case = next(case for case in CASES if case.sizes["B"] == 17)
    clean = asyncio.run(run_op(device, case))["out"]

    def spoil(drawn: dict[str, Array]) -> None:
        drawn["x"][4, 2] = value

    out = asyncio.run(run_op(device, OpCase(case.op, case.sizes, edits=(spoil,))))["out"]
    assert not np.isfinite(out[4]).any()
    assert np.delete(out, 4, axis=0).tobytes() == np.delete(clean, 4, axis=0).tobytes()


def test_a_nan_score_is_not_chosen_but_shows(gpu: Backend, device: Backend) -> None:
    case = next(case for case in CASES if case.note == "tr11-ties")

    def spoil(drawn: dict[str, Array]) -> None:
        drawn["W"][case.sizes["D"]] = np.nan  # the router's row of expert 1

    assert np.isnan(asyncio.run(run_op(device, OpCase(case.op, case.sizes, edits=(spoil,))))["out"]).all()
