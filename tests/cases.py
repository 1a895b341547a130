"""The one list of cases: models (MODEL_CASES) and single operations (OP_CASES), the same for every backend.

Needs NumPy and the package only, so that it also runs inside a page. All values are made from fixed seeds. Sizes
are odd on purpose: no power of two, fewer tokens than taps, one expert, all experts, one row, more rows than a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.reference import REFERENCE
from evermind_web.backend.reference.moe import router_logits, split_block
from evermind_web.batch import Batch, make_batch, next_token_item, sequence_weights
from evermind_web.flat_vector import FlatVector
from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.layout import ALIGN, limbic_layout, moe_layout
from evermind_web.network import Tape, cut, forward
from evermind_web.params import ParamTable
from tests.operands import (
    Edit,
    Operands,
    draw_operand,
    equal_router,
    finite_halves,
    hyper,
    put,
    router_noise,
    sampled_at,
    small_halves,
    small_scales,
    zero_router,
)

# ---- models -------------------------------------------------------------------------------------------------------

# A float32 backend must not be asked to decide what rounding decides.
ROUTER_MARGIN = 1e-4
PRE_ACTIVATION_MARGIN = 1e-5


@dataclass(frozen=True)
class ModelCase:
    """A model's shape, the lengths of its sequences, and what is special about its weights or tokens."""

    name: str
    arch: Arch
    lengths: tuple[int, ...]
    tokens: str = "random"  # or "repeated"
    router: str = "random"  # or "zero", "equal": exact ties
    seed: int = 1

    def __str__(self) -> str:
        return self.name

    def table(self) -> ParamTable:
        """Where the tensors of this shape lie."""
        return ParamTable(evermind_tensor_spec(self.arch))

    def sequences(self) -> list[list[int]]:
        """Token ids (T) of each sequence."""
        rng = np.random.default_rng(self.seed)
        if self.tokens == "repeated":  # one id over and over, then two that alternate
            return [[(3, 3 + i)[t % 2] for t in range(length)] for i, length in enumerate(self.lengths)]
        return [rng.integers(0, self.arch.vocab_size, length).tolist() for length in self.lengths]

    def batch(self, multiple: int = 1) -> Batch:
        """All sequences as one ragged batch; its loss is the mean of their mean losses."""
        items = [next_token_item(np.array(s, np.int32)) for s in self.sequences()]
        return make_batch(items, sequence_weights(items), multiple)

    def weights(self, clear: bool = True) -> Array:
        """Padded float32 vector, every tensor away from its initial value.

        clear: drawn again until no routing choice and no relu of the batch is within float32's rounding of its border.
        """
        for draw in range(50):
            vector = draw_weights(self, np.random.default_rng([self.seed, draw]))
            if not clear or self._is_clear(vector):
                return vector
        raise AssertionError(f"{self.name}: no clear draw")

    def _is_clear(self, vector: Array) -> bool:
        backend, table = NumpyBackend(np.float64), self.table()
        flat, batch = FlatVector.alloc(backend, vector.shape), self.batch()
        flat.write(vector)
        views = cut(self.arch, table, flat)
        tape = Tape(backend, self.arch, len(batch.tokens), shared_layers=False)
        tape.load(batch)
        forward(tape, views)
        _, D, _, _, H, E, k = self.arch
        for t, w in zip(tape.layers, views.layers, strict=True):
            m = backend.array(t.m)
            router, (shared, *routed) = split_block(backend.array(w.moe), D, H, E)
            scores = -np.sort(-router_logits(m, router), axis=1)[:, : k + 1]
            gaps = -np.diff(scores, axis=1)
            if (gaps[gaps > 0] < ROUTER_MARGIN).any():
                return False
            experts = backend.array(t.experts)
            pre = [m @ shared.w1.T + shared.b1]
            pre += [m[(experts == e).any(axis=1)] @ p.w1.T + p.b1 for e, p in enumerate(routed)]
            if min(np.abs(part).min(initial=1.0) for part in pre) < PRE_ACTIVATION_MARGIN:
                return False
        return True


def draw_weights(case: ModelCase, rng: np.random.Generator) -> Array:
    """Padded float32 weights whose activations and gradients are neither tiny nor huge."""
    table, arch = case.table(), case.arch
    vector = np.zeros(table.padded_size, np.float32)
    std = {"w1": np.sqrt(2 / arch.d_model), "b1": 0.3, "w2": 1 / np.sqrt(arch.hidden_dim), "b2": 0.3}
    for spec, part in table.slices(vector):
        kind = spec.name.split(".")[-1] if spec.name.split(".")[-1] in std else spec.name.split(".")[-2]
        noise = rng.standard_normal(spec.shape)
        if kind in std:
            part[...] = std[kind] * noise
        elif kind == "token_embedding":
            part[...] = noise / np.sqrt(arch.d_model)
        elif kind == "conv":
            part[...] = 0.5 * noise
            part[:, 0] += 1
        elif kind.startswith("norm"):
            part[...] = 1 + 0.3 * noise
        elif kind == "router":
            part[...] = noise / np.sqrt(arch.d_model)
            if case.router == "zero":
                part[...] = 0
            elif case.router == "equal":  # pairs of equal rows: each choice meets an exact tie
                part[1::2] = part[: arch.num_experts // 2 * 2 : 2]
        else:
            raise AssertionError(f"no draw for {spec.name}")
    return vector


def _model(name: str, shape: tuple[int, ...], lengths: tuple[int, ...], **special: str) -> ModelCase:
    return ModelCase(name, Arch.of(shape), lengths, seed=len(name) + sum(shape), **special)


MODEL_CASES: tuple[ModelCase, ...] = (
    # V, D, L, K, H, E, k
    _model("smallest", (37, 5, 1, 1, 7, 1, 1), (2,)),
    _model("all-experts", (37, 5, 3, 2, 7, 4, 4), (3, 17)),
    _model("ragged", (37, 12, 2, 3, 20, 3, 2), (17, 2, 40)),
    _model("top-1-of-7", (301, 20, 1, 5, 33, 7, 1), (40, 3)),
    _model("shorter-than-kernel", (37, 20, 2, 5, 24, 7, 7), (3, 2)),
    _model("wide", (301, 64, 1, 3, 40, 4, 2), (17,)),
    _model("no-history", (37, 64, 1, 1, 24, 3, 3), (17,)),
    _model("repeated-tokens", (37, 12, 2, 3, 20, 4, 2), (17, 17), tokens="repeated"),
    _model("idle-experts", (37, 20, 2, 2, 18, 7, 1), (3,)),
    _model("ties-zero-router", (37, 12, 2, 3, 20, 4, 2), (17,), router="zero"),
    _model("ties-equal-rows", (37, 20, 1, 2, 16, 7, 3), (17, 3), router="equal"),
    _model("no-layers", (37, 12, 0, 3, 8, 2, 1), (17,)),
    _model("one-expert", (37, 12, 1, 3, 24, 1, 1), (40,)),
    _model("more-rows-than-a-tile", (301, 20, 1, 3, 33, 4, 2), (40, 40, 17)),
)


def model_case(name: str) -> ModelCase:
    """One case by name."""
    return next(case for case in MODEL_CASES if case.name == name)


# ---- operations ---------------------------------------------------------------------------------------------------

GARBAGE = 7.5  # what overwritten outputs hold beforehand


@dataclass(frozen=True)
class OpCase:
    """One operation with the sizes of its letters; `edits` change the drawn operands into something special."""

    op: str
    sizes: dict[str, int]
    note: str = ""
    edits: tuple[Edit, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        sizes = "-".join(f"{letter}{size}" for letter, size in self.sizes.items())
        return "-".join(filter(None, (self.op, sizes, self.note)))

    @property
    def scalars(self) -> dict[str, int]:
        """The operation's scalars."""
        return {name: self.sizes[name] for name in ops.OPS[self.op].scalars}

    def operands(self) -> Operands:
        """Fresh float32 and int32 arrays by operand name; those of accumulating outputs hold what is added onto."""
        seed = [ord(letter) for letter in f"{self.op}{self.note}"] + list(self.sizes.values())
        rng, op = np.random.default_rng(seed), ops.OPS[self.op]
        letters = self.sizes | {"Q": self.sizes.get("Q", max(self.sizes.get("K", 1) - 1, 1)), "G": 0, "M": 0}
        if "P" in letters:
            letters["G"] = letters["P"] // ALIGN
            letters["C"] = letters["P"] * letters.get("bits", 32) // 32
        if "I" in letters:
            letters["M"] = limbic_layout(letters["I"], letters["H"], letters["A"]).size
        if "E" in letters:
            letters["M"] = moe_layout(letters["D"], letters["H"], letters["E"]).size
        drawn: Operands = {}
        for arg in (*op.ins, *op.outs):
            shape = tuple(ops.extent_of(dim, letters) for dim in arg.dims)
            if arg in op.outs and not arg.accumulates:
                drawn[arg.name] = np.full(shape, GARBAGE, np.int32 if arg.dtype == "int32" else np.float32)
            else:
                drawn[arg.name] = draw_operand(arg.name, arg.dtype, shape, letters, rng)
        if self.op in ("moe_bwd", "moe_bwd_inputs"):
            self._route(drawn)
        for edit in self.edits:
            edit(drawn)
        return drawn

    def _route(self, drawn: Operands) -> None:
        """The routing operands of moe_bwd are those that moe_fwd gives."""
        sizes, op = self.sizes, ops.OPS["moe_fwd"]
        outs = {}
        for arg in op.outs:
            shape = tuple(ops.extent_of(dim, sizes) for dim in arg.dims)
            outs[arg.name] = np.zeros(shape, np.int32 if arg.dtype == "int32" else np.float32)
        scalars = (sizes["H"], sizes["E"], sizes["k"])
        REFERENCE["moe_fwd"](
            np.zeros_like(drawn["m"]), drawn["m"], drawn["W"], np.zeros(64, np.int32), *outs.values(), *scalars
        )
        drawn.update({name: array for name, array in outs.items() if name in drawn})


def _sized(names: Sequence[str], letters: str, *sizes: tuple[int, ...]) -> list[OpCase]:
    return [OpCase(op, dict(zip(letters.split(), size, strict=True))) for op in names for size in sizes]


_MOE_SIZES = [
    (1, 5, 7, 1, 1), (2, 12, 20, 3, 2), (17, 20, 33, 7, 1), (40, 64, 24, 4, 4), (3, 20, 18, 7, 7), (97, 12, 20, 3, 2),
]  # fmt: skip
_N_V_D = [(1, 37, 5), (3, 301, 12), (17, 37, 20), (40, 301, 64), (97, 37, 12), (130, 301, 20)]
_SPIKES = {"nan": np.nan, "inf": np.inf, "minus-inf": -np.inf}


def _case(op: str, sizes: dict[str, int], note: str, *edits: Edit) -> OpCase:
    return OpCase(op, sizes, note, edits)


_CUT_OFFS: dict[str, dict[str, float]] = {
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "all-cut-offs": {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
}
_PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25}
_P = {"P": 192, "half": 0}
_STATS = _P | {"add": 0}
_HALF = {"P": 192, "half": 1, "add": 0}
_SMALL_HEAD = {"N": 17, "V": 37, "D": 12}

_N_V_D_R = [(1, 37, 5, 1), (17, 37, 20, 3), (40, 301, 64, 8), (130, 301, 20, 20)]
_LORA_HEAD = {"N": 17, "V": 37, "D": 12, "R": 3}
_PACKED = ("packed_embed_fwd", "packed_head_logits", "packed_head_xent_fwd", "packed_head_xent_bwd")

OP_CASES: tuple[OpCase, ...] = (
    *_sized(["embed_fwd", "embed_bwd"], "N V D", *_N_V_D),
    _case("embed_bwd", {"N": 97, "V": 37, "D": 12}, "one-token", put("tokens", 36)),
    *_sized(["rmsnorm_fwd", "rmsnorm_bwd"], "N D", (1, 5), (17, 12), (40, 20), (97, 64), (3, 192), (1100, 20)),
    _case("rmsnorm_fwd", {"N": 3, "D": 5}, "zero-row", put("x", 0, 1)),
    _case("rmsnorm_bwd", {"N": 3, "D": 5}, "zero-row", put("x", 0, 1)),
    *_sized(
        ["conv_fwd", "conv_norm_fwd", "conv_bwd"],
        "N D K",
        (1, 5, 3),
        (2, 12, 5),
        (40, 20, 1),
        (97, 12, 2),
        (40, 64, 3),
        (130, 5, 5),
        (1100, 12, 3),
    ),
    *_sized(["conv_step"], "B D K", (1, 5, 1), (1, 12, 2), (3, 20, 3), (2, 64, 5)),
    *_sized(["moe_fwd", "moe_bwd"], "N D H E k", *_MOE_SIZES),
    *_sized(
        ["layer_step"],
        "B D K H E k",
        (1, 5, 1, 7, 1, 1),
        (1, 12, 2, 20, 3, 2),
        (3, 20, 3, 33, 7, 1),
        (2, 64, 5, 24, 20, 20),
        (17, 70, 3, 64, 9, 3),
    ),
    _case("layer_step", {"B": 5, "D": 12, "K": 3, "H": 20, "E": 9, "k": 3}, "tr11-ties", equal_router(9)),
    _case("moe_fwd", {"N": 65, "D": 12, "H": 20, "E": 4, "k": 2}, "tr11-ties", zero_router),
    _case("moe_fwd", {"N": 33, "D": 12, "H": 20, "E": 7, "k": 3}, "router-noise", router_noise),
    *_sized(["balance_bwd"], "N D H E k", *_MOE_SIZES),
    *_sized(["dropout"], "N D", (1, 5), (17, 12), (97, 20), (130, 64)),
    _case("dropout", {"N": 3, "D": 5}, "nothing", put("noise", 0, ops.NOISE["threshold"])),
    *_sized(["head_logits", "head_xent_fwd", "head_xent_bwd"], "N V D", *_N_V_D),
    _case("head_xent_bwd", _SMALL_HEAD, "nothing-scored", put("targets", ops.IGNORE)),
    _case("head_xent_bwd", _SMALL_HEAD, "loss-scale", put("hyper", hyper(grad_scale=1024.0))),
    _case("head_xent_bwd", _SMALL_HEAD, "gp9-large-logits", put("x", 500.0, 1)),
    *_sized(["lora_fwd", "lora_bwd"], "V R D", (37, 1, 5), (37, 5, 12), (301, 8, 64), (37, 12, 12)),
    *_sized(["rmsnorm_bwd_inputs"], "N D", (17, 12), (40, 20)),
    *_sized(["conv_bwd_inputs"], "N D K", (1, 5, 3), (40, 20, 1), (97, 12, 2)),
    *_sized(["moe_bwd_inputs"], "N D H E k", *_MOE_SIZES),
    *_sized(["lora_down", "lora_up", "lora_outer"], "N R D", (1, 1, 5), (17, 5, 12), (97, 8, 64), (301, 12, 20)),
    *_sized(["lora_dropout"], "R D", (1, 5), (8, 301)),
    _case("lora_down", {"N": 17, "R": 5, "D": 12}, "no-dropout", put("noise", 0)),
    _case("lora_outer", {"N": 17, "R": 5, "D": 12}, "no-dropout", put("noise", 0)),
    *_sized(["lora_head_logits", "lora_head_xent_fwd", "lora_head_xent_bwd"], "N V D R", *_N_V_D_R),
    _case("lora_head_xent_bwd", _LORA_HEAD, "nothing-scored", put("targets", ops.IGNORE)),
    _case("lora_head_xent_bwd", _LORA_HEAD, "loss-scale", put("hyper", hyper(grad_scale=1024.0))),
    *[
        _case(op, {"N": n, "V": v, "D": d, "R": r, "C": -(-v * d // 4), "Q": q, "bits": 8}, "int8", small_scales)
        for op in _PACKED
        for n, v, d, r, q in ((17, 37, 5, 3, 1), (40, 301, 12, 8, 301), (130, 301, 64, 8, 301))
    ],
    *[
        _case(op, {"N": 40, "V": 301, "D": 12, "R": 8, "C": 301 * 6, "Q": 1, "bits": 16}, "fp16", small_halves)
        for op in _PACKED
    ],
    *_sized(["limbic_fwd", "limbic_bwd"], "N I H A", (1, 5, 3, 2), (17, 32, 16, 8), (97, 12, 20, 8)),
    *_sized(["dequant"], "P Q bits", (192, 3, 8), (20032, 1, 8)),
    _case("dequant", {"P": 192, "Q": 1, "bits": 16}, "finite", finite_halves),
    *_sized(["grad_stats"], "P half add", *((size, half, 0) for size in (64, 192, 20032) for half in (0, 1))),
    *_sized(["adamw"], "P half", *((size, half) for size in (64, 192, 20032) for half in (0, 1))),
    *[_case("grad_stats", _STATS, f"gp8-{name}", put("g", value, 77)) for name, value in _SPIKES.items()],
    _case("grad_stats", _HALF, "overflows-half", put("g", 65520.0, 191)),
    _case("grad_stats", _HALF, "largest-half", put("g", 65519.0, 191)),
    _case("grad_stats", _STATS, "scaled", put("hyper", hyper(inv_grad_scale=1 / 16384))),
    _case("grad_stats", _STATS, "overwrites", put("stats", np.nan)),
    *[_case("grad_stats", _P | {"add": 1}, f"adds-to-{flag}", put("stats", (150.0, flag))) for flag in (0, 1)],
    _case("grad_stats", _P | {"add": 1}, "adds-inf-to-1", put("stats", (150.0, 1)), put("g", np.inf, 77)),
    _case("adamw", _P, "gp8-skipped", put("stats", (4.0, 1.0))),
    _case("adamw", _P, "scaled", put("hyper", hyper(inv_grad_scale=1 / 16384))),
    _case("adamw", _P, "clipped", put("hyper", hyper(max_grad_norm=0.5)), put("stats", (4.0, 0.0))),
    *[
        _case("sample", {"B": b, "V": v, "S": 4}, f"t{t:g}", sampled_at(t))
        for b, v in ((1, 37), (3, 301))
        for t in (0.0, 0.7, 1.0)
    ],
    *[
        _case("sample", {"B": 1, "V": 3, "S": 2}, f"sa1-t{t:g}", put("logits", (0, 30, 30)), sampled_at(t))
        for t in (0.0, 1e-4, 1e-30)
    ],
    *[_case("sample", {"B": 3, "V": 301, "S": 5}, name, sampled_at(0.8, **s)) for name, s in _CUT_OFFS.items()],
    *[
        _case(
            "sample",
            {"B": 2, "V": 37, "S": 8},
            f"penalties-t{t:g}",
            put("counts", 2, (0, 5)),
            sampled_at(t, **_PENALTIES),
        )
        for t in (0.0, 1.0)
    ],
    _case("sample", {"B": 2, "V": 37, "S": 3}, "bias", put("bias", np.inf * -1, slice(0, 36)), sampled_at(1.0)),
    _case("sample", {"B": 2, "V": 37, "S": 1}, "all-forbidden", put("bias", -np.inf), sampled_at(0.0)),
    *[
        _case("sample", {"B": 3, "V": 37, "S": 1}, f"sa2-{name}", put("logits", value, (1, 5)))
        for name, value in _SPIKES.items()
    ],
)


def op_cases(*names: str) -> list[OpCase]:
    """The cases of some operations; every operation has at least one."""
    found = [case for case in OP_CASES if case.op in names]
    assert {case.op for case in found} == set(names), f"no case for one of {names}"
    return found
