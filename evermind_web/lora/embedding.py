"""The tied embedding with a low-rank adapter, without ever making the adapted matrix or its gradient.

With s = scale, B (V,R), A (R,D) and the frozen E (V,D):

    rows    x[n] = E[t] + s · B[t] A              logits = x Eᵀ + u Bᵀ,  u (N,R) = s · drop(x) Aᵀ
"""

from __future__ import annotations

from dataclasses import dataclass

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.lora.base import DenseMatrix, PackedMatrix
from evermind_web.network import RowPool


class RowScratch(RowPool[list[Buf]]):
    """Pairs of buffers (N,R) by number of rows N."""

    def __init__(self, backend: Backend, rank: int) -> None:
        self.rank = rank
        super().__init__(
            lambda rows: [backend.alloc((rows, rank)) for _ in range(2)], lambda pair: list(map(backend.free, pair))
        )


@dataclass(frozen=True, slots=True)
class LowRankEmbedding:
    """See `embedding.Embedding`. noise (64): of dropout, zeros for none. Rank 0 is the frozen matrix alone."""

    backend: Backend
    matrix: DenseMatrix | PackedMatrix
    b: Buf
    a: Buf
    scale: Buf
    noise: Buf
    quiet: Buf  # a noise row that drops nothing
    scratch: RowScratch

    def project(self, x: Buf) -> tuple[Buf, Buf]:
        """u (N,R) of x (N,D), and a second buffer of that shape."""
        u, spare = self.scratch.get(x.shape[0])
        if self.scratch.rank:
            ops.lora_down(self.backend, (self.noise, x, self.a, self.scale), (u,))
        return u, spare

    def lookup(self, tokens: Buf, x: Buf) -> None:
        """See `Embedding`."""
        self.matrix.lookup(tokens, x)
        if self.scratch.rank:
            u, _ = self.scratch.get(x.shape[0])
            ops.embed_fwd(self.backend, (tokens, self.b), (u,))
            ops.lora_up(self.backend, (self.quiet, u, self.a, self.scale), (x,))

    def logits(self, x: Buf, logits: Buf) -> None:
        """See `Embedding`."""
        self.matrix.logits(x, self.project(x)[0], self.b, logits)

    def loss(self, x: Buf, targets: Buf, weights: Buf, loss: Buf) -> None:
        """See `Embedding`."""
        self.matrix.loss(x, self.project(x)[0], self.b, (targets, weights), loss)


@dataclass(frozen=True, slots=True)
class LowRankBackward:
    """See `embedding.EmbeddingBackward`: gradients go to db (V,R) and da (R,D); nothing is V×D."""

    of: LowRankEmbedding
    db: Buf
    da: Buf

    @property
    def trained(self) -> bool:
        """Whether there is an adapter at all."""
        return self.of.scratch.rank > 0

    def loss(self, x: Buf, targets: Buf, weights: Buf, hyper: Buf, loss: Buf, dx: Buf) -> None:
        """Inverts `logits = x Eᵀ + u Bᵀ` and `u = s · drop(x) Aᵀ`."""
        of, backend = self.of, self.of.backend
        u, du = of.project(x)
        of.matrix.backward(x, u, of.b, (targets, weights, hyper), (loss, dx, du, self.db))
        if self.trained:
            ops.lora_up(backend, (of.noise, du, of.a, of.scale), (dx,))
            ops.lora_outer(backend, (of.noise, du, x, of.scale), (self.da,))

    def lookup(self, tokens: Buf, dx: Buf) -> None:
        """Inverts `x[n] = E[t] + s · B[t] A`: dB[t] += s · dx[n] Aᵀ; dA += s · B[t]ᵀ dx[n]."""
        of, backend = self.of, self.of.backend
        rows, rows_of_b = of.scratch.get(dx.shape[0])
        ops.lora_down(backend, (of.quiet, dx, of.a, of.scale), (rows,))
        ops.embed_bwd(backend, (tokens, rows), (self.db,))
        ops.embed_fwd(backend, (tokens, of.b), (rows_of_b,))
        ops.lora_outer(backend, (of.quiet, rows_of_b, dx, of.scale), (self.da,))
