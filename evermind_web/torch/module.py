"""`EvermindModule`: the language model as an `nn.Module`.

Parameters carry the names, shapes and order of files (`evermind_tensor_spec`), so `state_dict()` is a checkpoint.
In float32 logits and gradients are those of the NumPy backend; under `torch.autocast` the matmuls run in the lower
precision, while norms, router, gates, the residual stream and the convolution's sums stay in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.formats.evl0 import read_evl0, write_evl0
from evermind_web.model import DEFAULT_SEED
from evermind_web.params import ParamTable, check_arch, initial_weights
from evermind_web.torch.convert import packed_from_state, state_from_packed
from evermind_web.torch.dispatch import collect_rows, gather_rows, make_plan, per_tile

EPS = 1e-5


class Routing(NamedTuple):
    """How one layer spread its rows: mean probability and number of choices of each expert, both (E)."""

    probs: Tensor
    counts: Tensor


class Weight(nn.Module):
    """A tensor called `weight`."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


class Expert(nn.Module):
    """w2 relu(w1 m + b1) + b2."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.zeros(hidden, d_model))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.zeros(d_model, hidden))
        self.b2 = nn.Parameter(torch.zeros(d_model))


class Mixture(nn.Module):
    """A shared expert and the gated sum of the top k of E routed ones, for rows m (N, D)."""

    def __init__(self, arch: Arch, hidden_dropout: float) -> None:
        super().__init__()
        self.top_k, self.hidden_dropout = arch.top_k, hidden_dropout
        self.router = Weight(arch.num_experts, arch.d_model)
        self.shared = Expert(arch.d_model, arch.hidden_dim)
        self.experts = nn.ModuleList(Expert(arch.d_model, arch.hidden_dim) for _ in range(arch.num_experts))

    def forward(self, m: Tensor) -> tuple[Tensor, Routing]:
        # A product and a sum, not a matmul: equal router rows must give equal scores, for ties go by index.
        scores = (m.unsqueeze(1) * self.router.weight).sum(-1)  # (N, E)
        experts = torch.argsort(-scores.detach(), dim=1, stable=True)[:, : self.top_k]
        gates = scores.gather(1, experts).softmax(1)
        plan = make_plan(experts, len(self.experts))
        m = m.to(compute_dtype(m))
        routed = collect_rows(self._routed(gather_rows(m, plan), plan), plan, m.shape[0])
        out = self._shared(m) + (gates.unsqueeze(-1) * routed).sum(1)
        return out, Routing(scores.softmax(1).mean(0), plan.counts)

    def _drop(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, self.hidden_dropout, self.training)

    def _shared(self, m: Tensor) -> Tensor:
        p = self.shared
        return F.linear(self._drop(F.linear(m, p.w1, p.b1).relu()), p.w2, p.b2)

    def _routed(self, m: Tensor, plan: Any) -> Tensor:
        """(G, tile, D) → the same shape, each tile through its expert."""

        def of_tiles(name: str) -> Tensor:
            return per_tile(torch.stack([getattr(expert, name) for expert in self.experts]).to(m.dtype), plan)

        hidden = torch.baddbmm(of_tiles("b1").unsqueeze(1), m, of_tiles("w1").mT).relu()
        return torch.baddbmm(of_tiles("b2").unsqueeze(1), self._drop(hidden), of_tiles("w2").mT)


class Layer(nn.Module):
    """x (B, T, D) → the same shape: causal depthwise convolution, then the mixture, each on a normed input."""

    def __init__(self, arch: Arch, dropout: float, hidden_dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv = Weight(arch.d_model, arch.conv_kernel)
        self.norm_conv = Weight(arch.d_model)
        self.norm_moe = Weight(arch.d_model)
        self.moe = Mixture(arch, hidden_dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        n = rmsnorm(x, self.norm_conv.weight)
        x = x + self._drop(causal_conv(n.to(compute_dtype(n)), self.conv.weight))
        branch, routing = self.moe(rmsnorm(x, self.norm_moe.weight).flatten(0, 1))
        return x + self._drop(branch.view_as(x)), routing

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training)


class EvermindModule(nn.Module):
    """Token ids (T) or (B, T) int64 → logits (…, V).

    Takes the shape as EvermindLM does; fresh weights are its weights for the same seed, bit for bit. While training,
    `dropout` acts on the embedded tokens and on what each branch adds, `hidden_dropout` inside the experts, and
    `token_dropout` blanks whole tokens. Raises InvalidArgumentError for an impossible shape.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        num_layers: int = 2,
        conv_kernel: int = 3,
        hidden_dim: int | None = None,
        num_experts: int = 4,
        top_k: int = 2,
        seed: int = DEFAULT_SEED,
        *,
        dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        arch = check_arch((vocab_size, d_model, num_layers, conv_kernel, hidden_dim, num_experts, top_k))
        self.config, self.dropout, self.token_dropout = arch, dropout, token_dropout
        self.token_embedding = Weight(arch.vocab_size, arch.d_model)
        self.layers = nn.ModuleList(Layer(arch, dropout, hidden_dropout) for _ in range(arch.num_layers))
        table = ParamTable(evermind_tensor_spec(arch))
        self.load_packed(table.pack(initial_weights(table, arch.d_model, seed)))

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.features(tokens if tokens.ndim == 2 else tokens.unsqueeze(0))
        logits = F.linear(x, self.token_embedding.weight)
        return logits if tokens.ndim == 2 else logits.squeeze(0)

    def features(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """The residual stream after the last layer (B, T, D), and each layer's routing, for ids (B, T)."""
        x = F.embedding(tokens, self.token_embedding.weight)
        if self.training and self.token_dropout:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.token_dropout
            x = x * kept.unsqueeze(-1)
        x = F.dropout(x, self.dropout, self.training)
        routings = []
        for layer in self.layers:
            x, routing = layer(x)
            routings.append(routing)
        return x, routings

    def compile_layers(self, **options: Any) -> None:
        """`torch.compile` each layer in place; all share one compiled program, so it takes as long as one layer."""
        for layer in self.layers:
            layer.compile(**options)

    @property
    def context(self) -> int:
        """How many tokens a prediction looks back at, itself included: L·(K−1)+1."""
        return self.config.num_layers * (self.config.conv_kernel - 1) + 1

    # ---- files ----

    def load_packed(self, packed: Any) -> None:
        """Overwrite all weights with a packed float32 vector (P,) in canonical order."""
        state = state_from_packed(self.config, packed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.from_numpy(state[name]))

    def packed(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """All weights as one packed float32 vector (P,) in canonical order."""
        return packed_from_state(self.config, self.state_dict())

    def to_evl0(self, fp16: bool = False) -> bytes:
        """An EVL0 checkpoint. With fp16, a finite value that fp16 cannot hold is refused by its tensor's name."""
        return write_evl0(self.config, self.packed(), fp16)

    @classmethod
    def from_evl0(cls, data: bytes, **options: Any) -> EvermindModule:
        """A module of the checkpoint's shape with its weights; options: the dropouts. FormatError for other bytes."""
        arch, packed = read_evl0(data)
        module = cls(**arch._asdict(), **options)
        module.load_packed(packed)
        return module


def rmsnorm(x: Tensor, gain: Tensor) -> Tensor:
    """gain · x / sqrt(mean(x²) + 1e-5) over the last axis."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * gain


def causal_conv(n: Tensor, taps: Tensor) -> Tensor:
    """Σ_j taps[c, j] · n[b, t−j, c], zeros before the start; n (B, T, D), taps (D, K)."""
    length, reach = n.shape[1], taps.shape[1] - 1
    padded = F.pad(n, (0, 0, reach, 0))
    out = n * taps[:, 0]
    for j in range(1, reach + 1):
        out = out + padded[:, reach - j : reach - j + length] * taps[:, j]
    return out


def compute_dtype(x: Tensor) -> torch.dtype:
    """What matmuls run in where x is: autocast's dtype, or x's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
