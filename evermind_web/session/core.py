"""The story of the page in Python: teach a model a text, write with it, personalise it.

One session holds one model (see `ModelSet`) and runs one job at a time. Long jobs are async and yield
between steps, so that `stop` can be called in the middle. Results and reports are plain dicts, lists,
strings and numbers. Saved things are `library.py`'s business; JavaScript is `face.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, cast

from evermind_web import EvermindLMLoRA
from evermind_web.backend.base import Backend
from evermind_web.backend.request import request_backend
from evermind_web.errors import BackendError, DeviceLostError, EvermindError, InvalidArgumentError
from evermind_web.model import EvermindLM
from evermind_web.session import recipes, texts
from evermind_web.session.fitting import Fitting, Learner, reason_of
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.session.progress import Report, phase_report
from evermind_web.tokenizer import BPETokenizer, StreamDecoder
from evermind_web.training import EvermindLMTrainer

# The tokenizer works without waiting; slices of this many characters leave room for Stop in between.
ENCODE_SLICE = 20_000
TRAINING: dict[str, Any] = {"accum_steps": texts.BATCH, **recipes.SCHEDULE}
NO_MODEL = "There is no model yet. Teach one a text first, or load a saved one."


class Session:
    """One model in memory on one backend. Make it with `await Session.open()`."""

    def __init__(self, backend: Backend, fallback_reason: str = "") -> None:
        self.backend = backend
        self.fallback_reason = fallback_reason
        self.current: ModelSet | None = None
        self.active_adapter: str | None = None
        self._job_name = ""
        self._stopping = False
        self._step = 0  # of the training that runs, for messages
        self._fitting: Fitting[Any] | None = None

    # ── life ─────────────────────────────────────────────────────────────────
    @classmethod
    async def open(cls, backend: str | None = None) -> Session:
        """A session on `backend` ("webgpu" or "numpy"); None takes WebGPU if it works, else NumPy with the reason kept.

        Raises WebGPUUnavailableError if WebGPU was asked for by name and is not there.
        """
        return cls(*await _open_backend(backend))

    def describe(self) -> dict[str, Any]:
        """Backend, model and adapters in memory as plain values."""
        current = self.current
        return {
            "backend": self.backend.name,
            "adapter_name": self.backend.adapter_name,
            "fallback_reason": self.fallback_reason,
            "model": None if current is None else _describe_model(current),
            "adapters": [] if current is None else [_describe_adapter(a) for a in current.adapters.values()],
            "active_adapter": self.active_adapter,
        }

    def adopt(self, model_set: ModelSet, active_adapter: str | None = None) -> None:
        """Make `model_set` the current one and free the one before."""
        previous, self.current = self.current, model_set
        self.active_adapter = active_adapter
        if previous is not None and previous is not model_set:
            previous.dispose()

    def dispose(self) -> None:
        """Free the model and the device. The session cannot be used afterwards."""
        self.stop()
        if self.current is not None:
            self.current.dispose()
            self.current = None
        self.backend.dispose()

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return bool(self._job_name)

    def stop(self) -> None:
        """Ask the running job to end after the step or token in flight. What was learned is kept."""
        self._stopping = True
        if self._fitting is not None:
            self._fitting.stop()

    # ── learning ─────────────────────────────────────────────────────────────
    async def train(
        self, data: str | bytes, options: dict[str, Any] | None = None, report: Report | None = None
    ) -> dict[str, Any]:
        """Train a tokenizer and a model on `data` and make them the current ones.

        `options`: `length` ("quick", "normal", "long") or `steps`, `seed`, `name` of the text for messages.
        Returns losses (nats per token) before and after on text that was held out, and the session's description.
        A failure, or Stop before the first step, leaves the model before as it was.
        """
        options = options or {}
        text = texts.read_text(data, options.get("name") or "the text")
        texts.check_learnable(text)
        steps = recipes.steps_for(options.get("length") or "quick", options.get("steps"))
        seed = options.get("seed", recipes.BASE_SEED)
        async with self._job("Training"):
            tokenizer = await self._train_tokenizer(text, report)
            corpus = await self._encode(tokenizer, texts.excerpt(text, steps * recipes.CHARACTERS_PER_STEP), report)
            fitting = Fitting(partial(self._base_learner, corpus, tokenizer, steps, seed), self._recover, report)
            kept = False
            try:
                result = await self._fit(fitting, corpus)
                result |= {"characters": len(text), "vocab_size": tokenizer.vocab_size}
                if result["steps"]:
                    self.adopt(await ModelSet.of_trained(fitting.learner.model, tokenizer, dict(result)))
                    kept = True
            finally:
                fitting.learner.dispose(keep_model=kept)
        return result | {"session": self.describe()}

    async def personalize(
        self, data: str | bytes, name: str, options: dict[str, Any] | None = None, report: Report | None = None
    ) -> dict[str, Any]:
        """Train a LoRA adapter called `name` on `data`; the base stays as it is. Options and result as in `train`.

        Learning under a name again replaces that adapter once the new one is ready.
        """
        options = options or {}
        current = self._require_model()
        name = check_name(name)
        text = texts.read_text(data, options.get("name") or "the text")
        texts.check_learnable(text)
        steps = recipes.steps_for(options.get("length") or "quick", options.get("steps"))
        async with self._job("Personalising"):
            corpus = await self._encode(
                current.tokenizer, texts.excerpt(text, steps * recipes.CHARACTERS_PER_STEP), report
            )
            seed = options.get("seed", recipes.BASE_SEED)
            fitting = Fitting(partial(self._adapter_learner, corpus, steps, seed), self._recover, report)
            kept = False
            try:
                result = await self._fit(fitting, corpus)
                result |= {"characters": len(text)}
                if result["steps"]:
                    lora, current = fitting.learner.model, self._require_model()
                    blob = await lora.serialize_adapter_async()
                    replaced = current.adapters.get(name)
                    current.adapters[name] = Adapter(name, blob, dict(result), lora=lora)
                    self.active_adapter, kept = name, True
                    if replaced is not None and replaced.lora is not None:
                        replaced.lora.dispose()
            finally:
                fitting.learner.dispose(keep_model=kept)
        return result | {"name": name, "session": self.describe()}

    async def _train_tokenizer(self, text: str, report: Report | None) -> BPETokenizer:
        tokenizer = BPETokenizer()
        sample = texts.excerpt(text, recipes.TOKENIZER_CHARACTERS)
        await asyncio.sleep(0)
        tokenizer.train(sample, num_merges=recipes.merges_for(sample), on_progress=phase_report(report, "tokenizer"))
        await asyncio.sleep(0)
        return tokenizer

    async def _encode(self, tokenizer: BPETokenizer, text: str, report: Report | None) -> texts.Split:
        on_progress = phase_report(report, "encode")
        ids: list[int] = []
        done = 0
        while done < len(text):
            end = text.find("\n", done + ENCODE_SLICE) + 1 or len(text)
            ids += tokenizer.encode(text[done:end])
            done = end
            on_progress(done, len(text))
            await asyncio.sleep(0)
        return texts.split(ids)

    def _base_learner(self, corpus: texts.Split, tokenizer: BPETokenizer, steps: int, seed: int) -> Learner[EvermindLM]:
        model = EvermindLM(vocab_size=tokenizer.vocab_size, **recipes.MODEL, seed=seed, backend=self.backend)
        trainer = EvermindLMTrainer(model, lr=recipes.LEARNING_RATE, **TRAINING)
        return Learner(model, trainer, partial(trainer.fit_async, _windows(corpus, tokenizer, steps, seed)))

    def _adapter_learner(self, corpus: texts.Split, steps: int, seed: int) -> Learner[EvermindLMLoRA]:
        current = self._require_model()
        lora = EvermindLMLoRA(current.model, rank=min(recipes.ADAPTER_RANK, current.model.config.d_model))
        windows = _windows(corpus, current.tokenizer, steps, seed)
        return Learner(lora, lora, partial(lora.fit_async, windows, lr=recipes.ADAPTER_LEARNING_RATE, **TRAINING))

    async def _fit(self, fitting: Fitting[Any], corpus: texts.Split) -> dict[str, Any]:
        fitting.stopping = self._stopping
        self._fitting = fitting
        try:
            return await fitting.run(corpus)
        finally:
            self._step, self._fitting = fitting.progress.steps, None

    # ── writing ──────────────────────────────────────────────────────────────
    async def stream(self, prompt: str, options: dict[str, Any] | None = None) -> AsyncGenerator[str, None]:
        """Pieces of text that continue `prompt`, each as soon as its characters are whole.

        `options`: `max_new_tokens`, `temperature`, `seed`, and `adapter`: a name, None for the bare base;
        left out, the active adapter. An empty prompt starts from the beginning-of-text token.
        """
        options = options or {}
        sampling = recipes.Sampling.of(options)
        current = self._require_model()
        async with self._job("Writing"):
            name = options.get("adapter", self.active_adapter)
            async for piece in self._pieces(current, await self._writer(current, name), prompt, sampling):
                yield piece

    async def compare(
        self, prompt: str, options: dict[str, Any] | None = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """("base" or "adapter", piece) pairs: the base writes first, then the adapter, from one prompt and seed.

        `options` as in `stream`; `adapter` defaults to the active one.
        """
        options = options or {}
        sampling = recipes.Sampling.of(options)
        current = self._require_model()
        name = options.get("adapter") or self.active_adapter
        if not name:
            raise EvermindError("There is no adapter to compare with. Personalise the model first.")
        async with self._job("Writing"):
            # One after the other: an adapter may borrow the base's buffers while it writes.
            for side, writer in (("base", None), ("adapter", name)):
                async for piece in self._pieces(current, await self._writer(current, writer), prompt, sampling):
                    yield side, piece

    def set_adapter(self, name: str | None) -> dict[str, Any]:
        """Make `name` the adapter that writes, None for the bare base. Returns the description."""
        current = self._require_model()
        if name is not None and name not in current.adapters:
            raise InvalidArgumentError(f"this model has no adapter called “{name}”.")
        self.active_adapter = name
        return self.describe()

    async def _writer(self, current: ModelSet, adapter: str | None) -> EvermindLM | EvermindLMLoRA:
        if adapter is None:
            return current.model
        if adapter not in current.adapters:
            raise InvalidArgumentError(f"this model has no adapter called “{adapter}”.")
        return await current.lora_of(current.adapters[adapter])

    async def _pieces(
        self, current: ModelSet, writer: EvermindLM | EvermindLMLoRA, prompt: str, sampling: recipes.Sampling
    ) -> AsyncIterator[str]:
        tokenizer = current.tokenizer
        ids = tokenizer.encode(prompt) or _begin(tokenizer)
        decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
        # Both return generators, which have to be closed when the loop is left early.
        stream = cast(
            AsyncGenerator[int, None],
            writer.stream_async(
                ids,
                max_new_tokens=sampling.max_new_tokens,
                temperature=float(sampling.temperature),
                seed=sampling.seed,
                stop_token=tokenizer.eos_id,
            ),
        )
        try:
            async for token in stream:
                if piece := decoder.feed(token):
                    yield piece
                await asyncio.sleep(0)
                if self._stopping:
                    break
        finally:
            await stream.aclose()
        if rest := decoder.finish():
            yield rest

    # ── one job at a time, and a lost device ─────────────────────────────────
    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold the session for one job. Raises EvermindError, naming the other, while one runs."""
        if self._job_name:
            raise EvermindError(f"{self._job_name} is still running. Stop it first, or wait until it is done.")
        self._job_name, self._stopping, self._step = name, False, 0
        try:
            yield
        finally:
            self._job_name = ""

    @asynccontextmanager
    async def _job(self, name: str) -> AsyncIterator[None]:
        with self.exclusive(name):
            try:
                yield
            except DeviceLostError as error:
                step = f" at step {self._step}" if self._step else ""
                await self._recover()
                raise DeviceLostError(
                    f"GPU lost{step} ({reason_of(error)}): the model is as it was before, "
                    f"and the work goes on with {self.backend.name}. Try again."
                ) from error

    async def _recover(self, numpy: bool = False) -> str:
        """Open a device again, or NumPy, and bring the model back from its bytes; returns the backend's name."""
        with suppress(EvermindError):  # whatever of the lost one can still be freed
            self.backend.dispose()
        reason = "the GPU was lost too often"
        if numpy:
            self.backend, self.fallback_reason = await request_backend("numpy"), reason
        else:
            self.backend, self.fallback_reason = await _open_backend(None)
        try:
            if self.current is not None:
                self.current = await self.current.moved_to(self.backend)
        except DeviceLostError:  # at once again
            return await self._recover(numpy=True)
        return self.backend.name

    def _require_model(self) -> ModelSet:
        if self.current is None:
            raise EvermindError(NO_MODEL)
        return self.current


def check_name(name: str) -> str:
    """`name` without spaces around it. Raises InvalidArgumentError for an empty, long or unprintable one."""
    name = str(name).strip()
    if not name:
        raise InvalidArgumentError("Give it a name first.")
    if len(name) > 80 or not name.isprintable():
        raise InvalidArgumentError("A name has at most 80 characters, on one line. Choose a shorter one.")
    return name


async def _open_backend(name: str | None) -> tuple[Backend, str]:
    if name is not None:
        return await request_backend(name), ""
    try:
        return await request_backend("webgpu"), ""
    except BackendError as error:
        return await request_backend("numpy"), str(error)


def _windows(corpus: texts.Split, tokenizer: BPETokenizer, steps: int, seed: int) -> list[list[int]]:
    line_ends = {i for token, i in tokenizer.vocab.items() if token.endswith("Ċ")}  # "Ċ" stands for "\n"
    starts = [0, *(at + 1 for at, token in enumerate(corpus.train[:-1]) if token in line_ends)]
    return texts.training_windows(corpus.train, steps, seed, starts, _begin(tokenizer)[0])


def _begin(tokenizer: BPETokenizer) -> list[int]:
    """The beginning-of-text token; an imported tokenizer may lack one, then a line end."""
    return [tokenizer.bos_id] if tokenizer.bos_id is not None else tokenizer.encode("\n")


def _describe_model(current: ModelSet) -> dict[str, Any]:
    return {
        "name": current.name,
        "saved": current.saved,
        "fingerprint": current.fingerprint,
        "parameters": int(current.model.num_parameters),
        "vocab_size": int(current.model.config.vocab_size),
        "bytes": len(current.checkpoint),
        "training": current.metadata,
    }


def _describe_adapter(adapter: Adapter) -> dict[str, Any]:
    return {"name": adapter.name, "saved": adapter.saved, "bytes": len(adapter.data), "training": adapter.metadata}
