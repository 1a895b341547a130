"""A transformer as a teacher: it can look back at names and phrases, which fixed convolutions cannot, so its
predictions on the training texts tell a student more than the one token that happened to follow.

It is trained by the same command (`--kind transformer`) and only ever used by it (`--teacher`); it is never shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch
from evermind_web.torch.module import Routing, Weight, rmsnorm

HEAD = 64  # width of an attention head
ROPE_BASE = 10000.0


class Block(nn.Module):
    """x (B, T, D) → the same shape: causal attention with rotary positions, then an MLP, each on a normed input."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_attention, self.norm_mlp = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(rmsnorm(x, self.norm_attention)).view(batch, length, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        q, k = rotated(parts[0], cos, sin), rotated(parts[1], cos, sin)
        seen = F.scaled_dot_product_attention(q, k, parts[2].to(q.dtype), is_causal=True)
        x = x + self._drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self._drop(self.down(self._drop(F.gelu(self.up(rmsnorm(x, self.norm_mlp))))))

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training)


class Transformer(nn.Module):
    """Decoder-only language model with tied embeddings; has what the trainer needs of an EvermindModule.

    Of the shape it takes V, D, L and H (the MLP's width). `chunk` tokens are scored at a time, each after `context`
    others.
    """

    def __init__(self, shape: Arch, window: int, seed: int, dropout: float = 0.0) -> None:
        super().__init__()
        if shape.d_model % HEAD:
            raise InvalidArgumentError(f"a transformer's d_model must be a multiple of {HEAD}, got {shape.d_model}")
        self.config, self.dropout, self.window = shape, dropout, window
        self.chunk = self.context = window // 2
        self.token_embedding = Weight(shape.vocab_size, shape.d_model)
        self.layers = nn.ModuleList(Block(shape.d_model, shape.hidden_dim, dropout) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.ones(shape.d_model))
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.ndim > 1:
                    closing = name.endswith(("out.weight", "down.weight"))
                    p.normal_(0.0, 0.02 / ((2 * shape.num_layers) ** 0.5 if closing else 1), generator=random)
        angles = torch.outer(torch.arange(2 * window), ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def features(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """What the tied head takes (B, T, D) for ids (B, T), and no routings. T at most twice the window."""
        x = F.dropout(F.embedding(tokens, self.token_embedding.weight), self.dropout, self.training)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.layers:
            x = block(x, cos, sin)
        return rmsnorm(x, self.norm), []

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for ids (B, T)."""
        return F.linear(self.features(tokens)[0], self.token_embedding.weight)

    def compile_layers(self, **options: Any) -> None:
        """`torch.compile` each block in place."""
        for block in self.layers:
            block.compile(**options)

    def packed(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """All weights as one vector."""
        return torch.cat([p.detach().flatten() for p in self.parameters()]).float().cpu().numpy()

    @torch.no_grad()
    def load_packed(self, packed: Any) -> None:
        """Overwrite all weights with what `packed` gave."""
        values, start = torch.from_numpy(np.asarray(packed, np.float32)), 0
        for p in self.parameters():
            p.copy_(values[start : start + p.numel()].view_as(p))
            start += p.numel()

    def save(self, path: Path) -> None:
        """Write a file for `load`."""
        about = {"shape": tuple(self.config), "window": self.window, "state": self.state_dict()}
        torch.save(about, path)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Transformer:
        """A frozen teacher from a file of `save`."""
        about = torch.load(path, map_location=device, weights_only=True)
        teacher = cls(Arch(*about["shape"]), about["window"], 0).to(device)
        teacher.load_state_dict(about["state"])
        return teacher.eval().requires_grad_(False)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on heads (B, heads, T, 64), computed in float32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


@torch.no_grad()
def soft_targets(teachers: Sequence[Transformer], tokens: Tensor) -> Tensor:
    """The teachers' mean probabilities (B*T, V) of what follows each of the ids (B, T)."""
    parts = [teacher(tokens).flatten(0, 1).float().softmax(-1) for teacher in teachers]
    return torch.stack(parts).mean(0) if len(parts) > 1 else parts[0]
