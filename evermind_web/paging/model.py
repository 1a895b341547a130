"""PagedEvermindLM: forward, evaluation and generation of a model that need not fit into memory.

What every token uses lies on the backend (embedding, convolutions, gains) or on the host (routers, shared experts).
Routing and experts run on the host, in NumPy, whatever the backend is: experts never take memory on a GPU, at the
price of one readback a layer. On NumPy all numbers are bit for bit those of the whole model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.reference import moe
from evermind_web.backend.reference.moe import Expert, choose_experts, router_logits, softmax
from evermind_web.backend.request import resolve_backend
from evermind_web.batch import I32, Batch, Item, Tokens, item_batches, make_batch, next_token_item
from evermind_web.checks import checked, disposed
from evermind_web.embedding import DenseEmbedding
from evermind_web.environment import run_blocking
from evermind_web.flat_vector import FlatVector, part_sizes
from evermind_web.formats.arch import Arch, TensorSpec, evermind_tensor_spec
from evermind_web.generation import Chunk, Decoder, GenerationConfig, failure_at, written
from evermind_web.language_model import LanguageModel
from evermind_web.network import Views
from evermind_web.paging.experts import ExpertCache, PagingStats, expert_of
from evermind_web.paging.source import ByteSource, CheckpointSource, ExpertSource, FileBytes, MemoryBytes
from evermind_web.params import F32, ParamTable
from evermind_web.rng import SeededRng, seeds_from

PIECE = 1 << 16  # values of an always-resident tensor that are read at once


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """Convolution and gains on the backend; router (E,D) and shared expert on the host."""

    conv: Buf
    norm_conv: Buf
    norm_moe: Buf
    router: F32
    shared: Expert


@dataclass
class Rows:
    """The buffers of N rows on their way through the layers."""

    backend: Backend
    bufs: list[Buf] = field(default_factory=list)

    def new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        """A buffer that `free` gives back."""
        self.bufs.append(self.backend.alloc(shape, dtype))
        return self.bufs[-1]

    def of(self, values: I32 | F32, dtype: str) -> Buf:
        """A buffer with these values."""
        buf = self.new(values.shape, dtype)
        self.backend.write(buf, values)
        return buf

    def free(self) -> None:
        """Give all back."""
        for buf in self.bufs:
            self.backend.free(buf)
        self.bufs.clear()


class PagedEvermindLM(LanguageModel):
    """Open one with `open` or `open_async`. It reads and writes text; it cannot be trained."""

    def __init__(self, backend: Backend, source: ExpertSource, max_bytes: int) -> None:
        arch = source.arch
        self._source = source
        self.table = ParamTable(spec for spec in evermind_tensor_spec(arch) if not _on_host(spec))
        on_host = sum(
            spec.size for spec in evermind_tensor_spec(arch) if _on_host(spec) and ".experts." not in spec.name
        )
        self.experts = ExpertCache(source, max_bytes, 4 * (self.table.padded_size + on_host))
        sizes = part_sizes(self.table.units(), backend)
        super().__init__(backend, arch)
        self._flat = FlatVector.alloc(backend, sizes)
        self._views: list[Buf] = []
        self.embedding = DenseEmbedding(backend, self._view("token_embedding.weight"))
        self.layers: list[PagedLayer] = []

    @classmethod
    @checked
    async def open_async(
        cls,
        source: str | os.PathLike[str] | bytes | ByteSource | ExpertSource,
        max_bytes: int,
        backend: str | Backend | None = None,
        verify: bool | None = None,
    ) -> PagedEvermindLM:
        """A model over an EVL0 or EVM1 file: a path, bytes, or a `ByteSource` such as `await HttpBytes.open(url)`.

        max_bytes: ceiling of all weights in memory, float32, whether every token uses them or they were paged in; bytes
        of the source itself do not count. verify: see `CheckpointSource.open`.
        Raises InvalidArgumentError if the ceiling has no room for one expert, FormatError for a damaged file.
        """
        if isinstance(source, (str, os.PathLike)):
            source = FileBytes(source)
        elif isinstance(source, bytes):
            source = MemoryBytes(source)
        try:
            tensors = await CheckpointSource.open(source, verify) if isinstance(source, ByteSource) else source
            model = cls(resolve_backend(backend), tensors, max_bytes)
        except BaseException:
            source.close()
            raise
        try:
            await model._load()
        except BaseException:
            model.dispose()
            raise
        return model

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str] | bytes | ByteSource | ExpertSource,
        max_bytes: int,
        backend: str | Backend | None = None,
        verify: bool | None = None,
    ) -> PagedEvermindLM:
        """Blocking twin of `open_async`."""
        return run_blocking(cls.open_async(source, max_bytes, backend, verify))

    @property
    def stats(self) -> PagingStats:
        """What paging did so far, and what is in memory."""
        return self.experts.stats

    def _view(self, name: str) -> Buf:
        spec = self.table.by_name[name]
        self._views.append(self._flat.view(spec.padded_offset, spec.shape))
        return self._views[-1]

    async def _load(self) -> None:
        """Read what every token uses, in pieces, so that no second copy of it is ever in memory."""
        for spec in self.table.specs:
            for first in range(0, spec.size, PIECE):
                values = await self._source.values(spec.name, first, min(PIECE, spec.size - first))
                view = self._flat.view(spec.padded_offset + first, values.shape)
                self.backend.write(view, values)
                self.backend.free(view)
        E, D, H = self.config.num_experts, self.config.d_model, self.config.hidden_dim
        for i in range(self.config.num_layers):
            at = f"layers.{i}"
            router = await self._source.values(f"{at}.moe.router.weight", 0, E * D)
            shared = await self._source.values(f"{at}.moe.shared.w1", 0, 2 * H * D + H + D)
            conv, norm_conv, norm_moe = (self._view(f"{at}.{n}.weight") for n in ("conv", "norm_conv", "norm_moe"))
            host = router.reshape(E, D), expert_of(shared, self.config)
            self.layers.append(PagedLayer(conv, norm_conv, norm_moe, *host))

    async def mixture(self, layer: int, a: Buf, m: Buf, out: Buf, rows: int) -> Array:
        """out (N,D) = a + shared(m) + Σ gate · expert(m) for the first `rows` rows, 0 for the others.

        Returns the experts (rows,k) that were chosen.
        """
        w, k = self.layers[layer], self.config.top_k
        on_a, on_m = await self.backend.read(a, m)
        x = on_m[:rows]
        result = np.zeros_like(on_a)
        with np.errstate(all="ignore"):  # NaN passes through, as everywhere
            logits = router_logits(x, w.router)
            chosen = choose_experts(logits, k)
            gates = softmax(np.take_along_axis(logits, chosen, axis=1)).ravel()
            if np.isnan(logits).any():  # as in moe_fwd
                gates[...] = np.nan
            result[:rows] = on_a[:rows] + _apply(w.shared, x)
            order, which = np.argsort(chosen.ravel(), kind="stable"), chosen.ravel()
            for expert in np.unique(which).tolist():  # ascending: the order of `ops.moe_fwd`, so the same sums
                slots = order[which[order] == expert]
                # The expert is not kept in a variable: it may have to leave memory before the next one is read.
                result[slots // k] += gates[slots, None] * _apply(await self.experts.get(layer, expert), x[slots // k])
        self.backend.write(out, result)
        return chosen

    async def _through(
        self, batch: Batch, scratch: Rows, states: Sequence[Buf] = (), chosen: list[Array] | None = None
    ) -> Buf:
        """Rows of a batch through all layers: x (N,D). states: those of a decoder, filled with the last normed rows.

        chosen: takes what each `mixture` returns.
        """
        backend, N, D = self.backend, len(batch.tokens), self.config.d_model
        tokens, pos = scratch.of(batch.tokens, "int32"), scratch.of(batch.pos, "int32")
        x, n, a, m = (scratch.new((N, D)) for _ in range(4))
        rstd = scratch.new((N,))
        self.embedding.lookup(tokens, x)
        for i, w in enumerate(self.layers):
            ops.rmsnorm_fwd(backend, (x, w.norm_conv), (n, rstd))
            if states:
                _keep_last(backend, n, batch.rows, self.config, states[i])
            ops.conv_fwd(backend, (x, n, w.conv, pos), (a,))
            ops.rmsnorm_fwd(backend, (a, w.norm_moe), (m, rstd))
            experts = await self.mixture(i, a, m, x, batch.rows)
            if chosen is not None:
                chosen.append(experts)
        return x

    # ---- what `LanguageModel` asks for ----

    async def views_async(self) -> Views:
        """The embedding; layers are run by this class itself."""
        return Views(self.embedding, ())

    async def forward_async(self, tokens: Tokens) -> F32:
        """Logits float32 (T,V) of token ids (T)."""
        ids, vocab = self.check_sequence(tokens), self.config.vocab_size
        if not len(ids):
            return np.zeros((0, vocab), np.float32)
        batch = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple)
        scratch = Rows(self.backend)
        try:
            logits = scratch.new((len(batch.tokens), vocab))
            self.embedding.logits(await self._through(batch, scratch), logits)
            (out,) = await self.backend.read(logits)
        finally:
            scratch.free()
        return np.asarray(out[: len(ids)], np.float32)

    async def _choices(self, batch: Batch) -> list[Array]:
        scratch, chosen = Rows(self.backend), list[Array]()
        try:
            await self._through(batch, scratch, chosen=chosen)
        finally:
            scratch.free()
        return chosen

    async def evaluate_items(self, items: Sequence[Item], weights: Sequence[float]) -> float:
        """See `LanguageModel`."""
        self.backend.zero(self.loss)
        for batch in item_batches(items, weights, self.backend.row_multiple):
            scratch = Rows(self.backend)
            try:
                x = await self._through(batch, scratch)
                scored = scratch.of(batch.targets, "int32"), scratch.of(batch.weights, "float32")
                self.embedding.loss(x, *scored, self.loss)
                self.backend.flush()
            finally:
                scratch.free()
        (loss,) = await self.backend.read(self.loss)
        return float(loss[0])

    async def _continue(self, ids: I32, config: GenerationConfig, texts: int) -> AsyncGenerator[Chunk, None]:
        if config.max_new_tokens == 0:
            return
        decoder = PagedDecoder(self, texts)
        try:
            rngs = [SeededRng(seed) for seed in seeds_from(config.seed, texts)]
            decoder.configure(config, ids)
            running = set(range(texts))
            for made in range(config.max_new_tokens):
                await (decoder.step_async() if made else decoder.prefill_async(ids))
                (out,) = await decoder.start_tokens(rngs, 1, first=True)
                new, failure = written(out[:, 0, :1].tolist(), running, config.stops)
                if failure is not None:
                    raise failure_at(failure[1], len(ids) + made)
                yield Chunk(new, np.ascontiguousarray(out[:, 1, :1], "<i4").view("<f4"))
                if not running:
                    return
        finally:
            decoder.free()

    def dispose(self) -> None:
        """Give all memory back and close the source; a second call does nothing."""
        self._free_work()
        if self._views:
            for buf in self._views:
                self.backend.free(buf)
            self._flat.free()
            self._views.clear()
            self.layers.clear()
            self.experts.clear()
            self._source.close()
        self.backend = disposed(type(self).__name__)


class PagedDecoder(Decoder):
    """`generation.Decoder` with experts on demand: every layer waits for its experts, so steps come one by one."""

    def __init__(self, model: PagedEvermindLM, texts: int) -> None:
        super().__init__(model.backend, model.config, Views(model.embedding, ()), 1, texts)
        self.model = model
        self.n, self.a, self.m = (self._new(self.x.shape) for _ in range(3))
        self.rstd = self._new((texts,))

    async def prefill_async(self, prompt: I32) -> None:
        """See `Decoder.prefill`."""
        ids = prompt[-(self.arch.num_layers * self.history + 1) :]
        batch = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple)
        scratch = Rows(self.backend)
        try:
            x = await self.model._through(batch, scratch, self.state)
            D = self.arch.d_model
            for text in range(self.texts):
                self.backend.copy(x, (len(ids) - 1) * D, self.x, text * D, D)
        finally:
            scratch.free()

    async def step_async(self) -> None:
        """See `Decoder.step`."""
        backend = self.backend
        self.model.embedding.lookup(self.token, self.x)
        for i, (w, state) in enumerate(zip(self.model.layers, self.state, strict=True)):
            ops.rmsnorm_fwd(backend, (self.x, w.norm_conv), (self.n, self.rstd))
            ops.conv_step(backend, (self.x, self.n, w.conv), (self.a, state))
            ops.rmsnorm_fwd(backend, (self.a, w.norm_moe), (self.m, self.rstd))
            await self.model.mixture(i, self.a, self.m, self.x, self.texts)


def _on_host(spec: TensorSpec) -> bool:
    return ".moe." in spec.name


def _apply(expert: Expert, x: F32) -> F32:
    """w2 · relu(w1 · x + b1) + b2 for rows x (N,D), by the same products as `ops.moe_fwd` on NumPy."""
    matmul = moe.matmul  # type: ignore[attr-defined]  # NumPy's, or SIMD in a browser: what the reference uses
    hidden = np.empty((len(x), expert.w1.shape[0]), np.float32)
    moe._expert_hidden(x, expert, hidden)
    y: F32 = matmul(hidden, expert.w2.T) + expert.b2
    return y


def _keep_last(backend: Backend, n: Buf, rows: int, arch: Arch, state: Buf) -> None:
    """Queue state (B,K-1,D) = the last of `rows` normed rows, for every text; a shorter text leaves zeros before."""
    D, history = arch.d_model, arch.conv_kernel - 1
    kept = min(rows, history)
    for text in range(state.shape[0]):
        end = (text + 1) * history * D
        backend.copy(n, (rows - kept) * D, state, end - kept * D, kept * D)
