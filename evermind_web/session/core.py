"""The story of the page in Python: teach a model a text, write with it, personalise it.

One session holds one model (see `ModelSet`) and runs one job at a time. Long jobs are async and yield
between steps, so that `stop` can be called in the middle. Results and reports are plain dicts, lists,
strings and numbers. Saved things are `library.py`'s business; JavaScript is `face.py`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from evermind_web import EvermindLMLoRA
from evermind_web.backend.base import Backend
from evermind_web.backend.request import request_backend
from evermind_web.errors import BackendError, DeviceLostError, EvermindError, InvalidArgumentError
from evermind_web.language_model import LanguageModel
from evermind_web.lora.adapter import LoRAAdapter
from evermind_web.model import EvermindLM
from evermind_web.session import recipes, texts
from evermind_web.session.fitting import Fitting, Learner, reason_of
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.session.mood import Mood
from evermind_web.session.progress import Report, phase_report
from evermind_web.session.writing import begin, expert_shares, pieces, token_shares
from evermind_web.tokenizer import BPETokenizer
from evermind_web.training import EvermindLMTrainer

# The tokenizer works without waiting; slices of this many characters leave room for Stop in between.
ENCODE_SLICE = 20_000
TRAINING: dict[str, Any] = {"accum_steps": texts.BATCH, **recipes.SCHEDULE}
# Adapters that have no GPU behind them.
SOFTWARE = re.compile("swiftshader|llvmpipe|lavapipe|softpipe|basic render", re.IGNORECASE)
NO_MODEL = "There is no model yet. Teach one a text first, or load a saved one."


class Session:
    """One model in memory on one backend. Make it with `await Session.open()`."""

    def __init__(self, backend: Backend, fallback_reason: str = "") -> None:
        self.backend = backend
        self.fallback_reason = fallback_reason
        self.current: ModelSet | None = None
        self.active_adapter: str | None = None
        self.mix: dict[str, float] = {}
        self.mood: Mood | None = None
        self._wanted = ""  # the backend that was asked for by name
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
        session = cls(*await _open_backend(backend))
        session._wanted = backend or ""
        return session

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
            "mix": self.mix,
        }

    def adopt(self, model_set: ModelSet, active_adapter: str | None = None) -> None:
        """Make `model_set` the current one and free the one before."""
        previous, self.current = self.current, model_set
        self.active_adapter, self.mix = active_adapter, {}
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

    def pause(self, on: bool) -> None:
        """Let the training that runs rest, or go on. Without effect on anything else."""
        if self._fitting is not None:
            self._fitting.pause(on)

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

        Learning under a name again replaces that adapter once the new one is ready; with the option `go_on` it starts
        from what that one knows.
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
            known = current.adapter(name).data if options.get("go_on") else b""
            fitting = Fitting(partial(self._adapter_learner, corpus, steps, seed, known), self._recover, report)
            kept = False
            try:
                result = await self._fit(fitting, corpus)
                result |= {"characters": len(text)}
                if result["steps"]:
                    lora, current = fitting.learner.model, self._require_model()
                    blob = await lora.serialize_adapter_async()
                    current.put(Adapter(name, blob, dict(result), lora=lora))
                    self.active_adapter, self.mix, kept = name, {}, True
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
        trainer = EvermindLMTrainer(model, lr=recipes.LEARNING_RATE, **_options(steps))
        return Learner(model, trainer, partial(trainer.fit_async, _windows(corpus, tokenizer, steps, seed)))

    def _adapter_learner(
        self, corpus: texts.Split, steps: int, seed: int, known: bytes = b""
    ) -> Learner[EvermindLMLoRA]:
        current = self._require_model()
        lora = EvermindLMLoRA(current.model, rank=min(recipes.ADAPTER_RANK, current.model.config.d_model))
        if known:
            lora.dispose()
            adapter = LoRAAdapter.deserialize(known)
            lora = EvermindLMLoRA(current.model, adapter.rank, adapter.alpha)
            lora.adapter = adapter
        windows = _windows(corpus, current.tokenizer, steps, seed)
        options = _options(steps) | {"lr": recipes.adapter_rate(current.model.num_parameters, len(corpus.train))}
        return Learner(lora, lora, partial(lora.fit_async, windows, **options))

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
        recipes.Sampling.of(options)
        current = self._require_model()
        async with self._job("Writing"):
            mix = {} if "adapter" in options else self.mix
            writer = await self._writer(current, options.get("adapter", self.active_adapter), mix)
            async for piece in self._pieces(writer, prompt, options):
                yield piece

    async def compare(
        self, prompt: str, options: dict[str, Any] | None = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """(side, piece) pairs from one prompt and seed: side "base" writes first, then "adapter", then "second".

        `options` as in `stream`; `adapter` defaults to the active one, `second` names another one, or is left out.
        """
        options = options or {}
        recipes.Sampling.of(options)
        current = self._require_model()
        name = options.get("adapter") or self.active_adapter
        if not name:
            raise EvermindError("There is no adapter to compare with. Personalise the model first.")
        sides = {"base": None, "adapter": name} | ({"second": options["second"]} if options.get("second") else {})
        async with self._job("Writing"):
            # One after the other: an adapter may borrow the base's buffers while it writes.
            for side, adapter in sides.items():
                async for piece in self._pieces(await self._writer(current, adapter, {}), prompt, options):
                    yield side, piece

    async def token_shares(self, text: str, adapter: str | None) -> list[dict[str, Any]]:
        """What the base (None) or an adapter makes of the last tokens of `text`; see `writing.token_shares`."""
        current = self._require_model()
        async with self._job("Looking at the tokens"):
            return await token_shares(await self._writer(current, adapter, {}), current.tokenizer, text)

    async def expert_shares(self, text: str, adapter: str | None) -> list[list[float]]:
        """Each layer's use of its experts on `text`; see `writing.expert_shares`."""
        current = self._require_model()
        async with self._job("Looking at the experts"):
            ids = (begin(current.tokenizer) + current.tokenizer.encode(text[:4000]))[:512]
            return await expert_shares(await self._writer(current, adapter, {}), ids)

    def set_mix(self, weights: dict[str, float]) -> dict[str, Any]:
        """Write with the weighted sum of several adapters; {} goes back to the active one. Returns the description."""
        current = self._require_model()
        for name in weights:
            current.adapter(name)
        self.mix = {name: float(weight) for name, weight in weights.items()}
        return self.describe()

    def set_adapter(self, name: str | None) -> dict[str, Any]:
        """Make `name` the adapter that writes, None for the bare base. Returns the description."""
        current = self._require_model()
        if name is not None:
            current.adapter(name)
        self.active_adapter, self.mix = name, {}
        return self.describe()

    async def _writer(self, current: ModelSet, name: str | None, mix: dict[str, float]) -> LanguageModel:
        if mix:
            return await current.mixed(mix)
        if name is None:
            return current.model
        return await current.lora_of(current.adapter(name))

    def _pieces(self, writer: LanguageModel, prompt: str, options: dict[str, Any]) -> AsyncIterator[str]:
        tokenizer = self._require_model().tokenizer
        config = recipes.Sampling.of(options).config(tokenizer.eos_id)
        if self.mood is not None:
            config = self.mood.applied(config)
        return pieces(writer, tokenizer, prompt, config, lambda: self._stopping)

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
            self.backend, self.fallback_reason = await _open_backend(None, self._wanted == "webgpu")
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


async def _open_backend(name: str | None, software: bool = False) -> tuple[Backend, str]:
    """WebGPU, or NumPy and the reason. software: also a WebGPU that computes on the processor will do."""
    if name is not None:
        return await request_backend(name), ""
    try:
        gpu = await request_backend("webgpu")
    except BackendError as error:
        return await request_backend("numpy"), str(error)
    if software or not SOFTWARE.search(gpu.adapter_name):
        return gpu, ""
    reason = f"WebGPU here is {gpu.adapter_name}, which computes on the processor: NumPy is faster at that"
    gpu.dispose()
    return await request_backend("numpy"), reason


def _options(steps: int) -> dict[str, Any]:
    """Options of a run, with a look at held-out text now and then: what was best there is what is kept at the end."""
    return TRAINING | {"eval_every": max(10, -(-steps // recipes.LOOKS)), "keep_best": True}


def _windows(corpus: texts.Split, tokenizer: BPETokenizer, steps: int, seed: int) -> list[list[int]]:
    line_ends = {i for token, i in tokenizer.vocab.items() if token.endswith("Ċ")}  # "Ċ" stands for "\n"
    starts = [0, *(at + 1 for at, token in enumerate(corpus.train[:-1]) if token in line_ends)]
    return texts.training_windows(corpus.train, steps, seed, starts, begin(tokenizer)[0])


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
