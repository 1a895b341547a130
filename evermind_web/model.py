"""EvermindLM: the language model, its weights and gradients on a backend, and its checkpoints."""

from __future__ import annotations

from evermind_web.backend.base import Backend
from evermind_web.backend.request import resolve_backend
from evermind_web.batch import Batch, Example, Tokens, check_item, item_batches
from evermind_web.checks import check_value, checked
from evermind_web.embedding import DenseBackward
from evermind_web.flat_model import FlatModel
from evermind_web.flat_vector import part_sizes
from evermind_web.formats.arch import evermind_tensor_spec
from evermind_web.formats.evl0 import inspect_evl0, read_evl0, write_evl0
from evermind_web.formats.model_delta import checkpoint_with_delta, delta_against
from evermind_web.language_model import Codec as Codec
from evermind_web.language_model import LanguageModel
from evermind_web.language_model import drain as drain
from evermind_web.network import Grads, Noise, Views, cut, views_of
from evermind_web.params import ParamTable, check_arch, initial_weights

DEFAULT_SEED = 0x45564C4D


class EvermindLM(LanguageModel, FlatModel):
    """Tied embedding; layers of causal depthwise convolution and a shared-expert top-k mixture of experts.

    `backend`: None (the default backend), "numpy", or what `request_backend` returned. Weights are fresh, from
    `seed` (0…2³²−1), bit for bit those of the reference. Raises InvalidArgumentError for an impossible shape.
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
        backend: str | Backend | None = None,
    ) -> None:
        config = check_arch((vocab_size, d_model, num_layers, conv_kernel, hidden_dim, num_experts, top_k))
        table = ParamTable(evermind_tensor_spec(config))
        device = resolve_backend(backend)
        sizes = part_sizes(table.units(), device)
        initial = initial_weights(table, d_model, seed)  # before anything is allocated on the device
        FlatModel.__init__(self, device, table, initial, sizes)
        LanguageModel.__init__(self, self.backend, config)
        self.weights = cut(config, table, self.flat)
        self._grad_views: Views | None = None
        self._grads: Grads | None = None

    async def views_async(self) -> Views:
        """See `LanguageModel`."""
        return self.weights

    # ---- gradients ----

    @property
    def grads(self) -> Grads:
        """Where the gradients of all weights go: views into the gradient vector."""
        if self._grads is None:
            self._grad_views = cut(self.config, self.table, self.flat_grads)
            embedding = DenseBackward(self.backend, self.weights.emb, self._grad_views.emb)
            self._grads = Grads(embedding, self._grad_views.layers)
        return self._grads

    def accumulate(self, batch: Batch, checkpoint: bool = False, noise: Noise | None = None) -> None:
        """Queue forward and backward of one batch: `loss` += and gradients +=. noise: of a training step."""
        self.queue_gradients(batch, self.weights, self.grads, checkpoint, noise)

    async def loss_and_backward_async(self, tokens: Tokens | Example, *, checkpoint: bool = False) -> float:
        """Mean cross-entropy (nats) of ids (T) for their next tokens; its gradient is added to `gradients()`.

        An `Example` has targets of its own. 0.0, and no gradient, where nothing is to be predicted. checkpoint=True
        recomputes each layer in the backward pass: the same numbers with the memory of one layer.
        """
        check_value("checkpoint", checkpoint, bool, "EvermindLM.loss_and_backward_async")
        item = check_item(tokens, self.config.vocab_size)
        if not item.scored:
            return 0.0
        self.backend.zero(self.loss)
        for batch in item_batches([item], [1 / item.scored], self.backend.row_multiple):
            self.accumulate(batch, checkpoint)
        (loss,) = await self.backend.read(self.loss)
        return float(loss[0])

    def loss_and_backward(self, tokens: Tokens | Example) -> float:
        """Blocking twin of `loss_and_backward_async`."""
        return self.alone(self.loss_and_backward_async(tokens))

    def loss_and_backward_checkpointed(self, tokens: Tokens | Example) -> float:
        """`loss_and_backward` with activation checkpointing."""
        return self.alone(self.loss_and_backward_async(tokens, checkpoint=True))

    # ---- weights ----

    @checked
    async def export_weights_async(self, fp16: bool = False) -> bytes:
        """An EVL0 checkpoint. fp16 rounds to nearest; a value that fp16 cannot hold is refused by its tensor's name."""
        return write_evl0(self.config, await self.packed_weights_async(), fp16)

    def export_weights(self, fp16: bool = False) -> bytes:
        """Blocking twin of `export_weights_async`."""
        return self.alone(self.export_weights_async(fp16))

    def load_weights(self, data: bytes) -> None:
        """Take the weights of an EVL0 checkpoint of this shape; the CRC is verified before anything changes.

        Raises FormatError (not a whole checkpoint) or ConfigMismatchError (of another model).
        """
        _, packed = read_evl0(data, self.config)
        self.load_packed(packed)

    async def load_weights_async(self, data: bytes) -> None:
        """`load_weights`, and the upload is done when it returns."""
        self.load_weights(data)
        await self.backend.read(self.loss)

    @classmethod
    def from_checkpoint(cls, data: bytes, backend: str | Backend | None = None) -> EvermindLM:
        """A model of the checkpoint's own shape with its weights."""
        arch, _, _ = inspect_evl0(data)  # no decoded copy is kept meanwhile
        model = cls(**arch._asdict(), backend=backend)
        model.load_weights(data)
        return model

    async def export_delta_async(self, base: bytes, eps: float = 0.0) -> bytes:
        """An EVD0 file: the rows in which this model differs by more than eps from the checkpoint `base`.

        It does not name the base: see `load_delta`.
        """
        return delta_against(self.config, base, await self.packed_weights_async(), eps)

    def export_delta(self, base: bytes, eps: float = 0.0) -> bytes:
        """Blocking twin of `export_delta_async`."""
        return self.alone(self.export_delta_async(base, eps))

    @checked
    def load_delta(self, base: bytes, delta: bytes, base_fingerprint: str | None = None) -> None:
        """Take the weights of the checkpoint `base` with the rows of an EVD0 file over them; all is checked first.

        The file does not name its base, and over another one of the same shape it makes a third model: keep the base's
        `fingerprint()` beside it and give it here, then another base raises ConfigMismatchError.
        """
        self.load_weights(checkpoint_with_delta(self.config, base, delta, base_fingerprint))

    def dispose(self) -> None:
        """Give all memory back; the model must not be used afterwards. A second call does nothing."""
        if not self._bufs:
            return
        self._free_work()
        for views in (self.weights, self._grad_views):
            for view in views_of(views) if views else ():
                self.backend.free(view)
        self._grads = self._grad_views = None
        super().dispose()
