"""The tied embedding as the network sees it: what turns ids into rows, and rows into logits.

The network asks an `Embedding` and never its matrix, so that the matrix may also be one with a low-rank adapter on
it, or one that lies packed in memory (`evermind_web.lora.embedding`). Everything is queued; nothing waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf


class Embedding(Protocol):
    """Forward. Shapes: tokens, targets (N) int32, weights (N), x (N,D), logits (N,V), loss (1)."""

    def lookup(self, tokens: Buf, x: Buf) -> None:
        """x = the rows of the tokens."""
        ...

    def logits(self, x: Buf, logits: Buf) -> None:
        """logits = x · matrixᵀ."""
        ...

    def loss(self, x: Buf, targets: Buf, weights: Buf, loss: Buf) -> None:
        """loss += the weighted cross-entropies of x's logits."""
        ...


class EmbeddingBackward(Protocol):
    """Backward of an `Embedding`; it knows the embedding, and where its gradients go (+=)."""

    @property
    def trained(self) -> bool:
        """Whether there are gradients at all; if not, `lookup` need not be called."""
        ...

    def loss(self, x: Buf, targets: Buf, weights: Buf, hyper: Buf, loss: Buf, dx: Buf) -> None:
        """Loss and gradients in one: loss (1) +=, dx (N,D) =."""
        ...

    def lookup(self, tokens: Buf, dx: Buf) -> None:
        """Inverts `x = the rows of the tokens`, given dx (N,D)."""
        ...


@dataclass(frozen=True, slots=True)
class DenseEmbedding:
    """A plain matrix emb (V,D)."""

    backend: Backend
    emb: Buf

    def lookup(self, tokens: Buf, x: Buf) -> None:
        """See `Embedding`."""
        ops.embed_fwd(self.backend, (tokens, self.emb), (x,))

    def logits(self, x: Buf, logits: Buf) -> None:
        """See `Embedding`."""
        ops.head_logits(self.backend, (x, self.emb), (logits,))

    def loss(self, x: Buf, targets: Buf, weights: Buf, loss: Buf) -> None:
        """See `Embedding`."""
        ops.head_xent_fwd(self.backend, (x, self.emb, targets, weights), (loss,))


@dataclass(frozen=True, slots=True)
class DenseBackward:
    """Backward of `DenseEmbedding`: both uses of the matrix add to demb (V,D)."""

    backend: Backend
    emb: Buf
    demb: Buf
    trained: bool = True

    def loss(self, x: Buf, targets: Buf, weights: Buf, hyper: Buf, loss: Buf, dx: Buf) -> None:
        """See `EmbeddingBackward`."""
        ops.head_xent_bwd(self.backend, (x, self.emb, targets, weights, hyper), (loss, dx, self.demb))

    def lookup(self, tokens: Buf, dx: Buf) -> None:
        """See `EmbeddingBackward`."""
        ops.embed_bwd(self.backend, (tokens, dx), (self.demb,))
