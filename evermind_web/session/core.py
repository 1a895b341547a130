"""The story of the page in Python: teach a model a text, write with it, personalise it.

One session holds one model (see `ModelSet`) and runs one job at a time. Long jobs are async and yield
between steps, so that `stop` can be called in the middle. Results and reports are plain dicts, lists,
strings and numbers. Saved things are `library.py`'s business; JavaScript is `face.py`'s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from typing import Any

from evermind_web.backend.base import Backend
from evermind_web.errors import DeviceLostError, EvermindError, InvalidArgumentError
from evermind_web.language_model import LanguageModel
from evermind_web.session import adapter_file, learning, recipes, texts
from evermind_web.session.devices import open_backend, open_wished
from evermind_web.session.fitting import Fitting, reason_of
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.session.mood import Mood
from evermind_web.session.progress import Report
from evermind_web.session.writing import begin, expert_shares, pieces, token_shares

NO_MODEL = "There is no model yet. Teach one a text first, or load a saved one."
NO_GAIN = (
    "“{}” writes as before: what it tried made text that it had not seen no better, so nothing was changed. "
    "Give it more text, or a longer run."
)


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
    async def open(cls, backend: str | None = None, strict: bool = True) -> Session:
        """A session on `backend` ("webgpu" or "numpy"); None takes WebGPU if it works, else NumPy with the reason kept.

        Raises WebGPUUnavailableError if WebGPU was asked for by name and is not there; strict=False takes NumPy then,
        and for a name that is none.
        """
        session = cls(*await (open_backend if strict else open_wished)(backend))
        session._wanted = backend or ""
        return session

    def describe(self) -> dict[str, Any]:
        """Backend, model and adapters in memory as plain values."""
        current = self.current
        return {
            "backend": self.backend.name,
            "adapter_name": self.backend.adapter_name,
            "fallback_reason": self.fallback_reason,
            "model": None if current is None else current.describe(),
            "adapters": [] if current is None else [a.describe() for a in current.adapters.values()],
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

    @property
    def stopping(self) -> bool:
        """Whether the job that runs, or the last one, was asked to end."""
        return self._stopping

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
            tokenizer = await learning.train_tokenizer(text, report)
            lesson = await learning.base_lesson(tokenizer, text, steps, seed, report)
            fitting = Fitting(
                lesson,
                lambda: learning.base_learner(self.backend, lesson, tokenizer.vocab_size, seed),
                self._recover,
                report,
                lambda model: model.export_weights_async(),
            )
            kept = False
            try:
                result = await self._fit(fitting)
                result |= {"characters": len(text), "vocab_size": tokenizer.vocab_size}
                if result["steps"]:
                    self.adopt(ModelSet.of_trained(fitting.learner.model, tokenizer, fitting.taken, dict(result)))
                    kept = True
            finally:
                fitting.dispose(keep_model=kept)
        return result | {"session": self.describe()}

    async def personalize(
        self, data: str | bytes, name: str, options: dict[str, Any] | None = None, report: Report | None = None
    ) -> dict[str, Any]:
        """Train a LoRA adapter called `name` on `data`; the base stays as it is. Options and result as in `train`.

        How it learns says `recipes.Recipe`; `steps` are about so many, in whole passes over the text, and `length` is
        "normal" on a GPU if it is left out. Learning under a name again replaces that adapter once the new one is
        ready; with the option `go_on` it starts from what that one knows. A run that nobody stopped and that made
        held-out text no better leaves the adapter as it began: `kept` is False, and `notice` says so.
        """
        options = options or {}
        current = self._require_model()
        name = check_name(name)
        text = texts.read_text(data, options.get("name") or "the text")
        texts.check_learnable(text)
        async with self._job("Personalising"):
            lesson, recipe = await learning.persona_lesson(current, text, options, report)
            arch, fingerprint = current.model.config, current.fingerprint
            known = current.adapter(name).data if options.get("go_on") else b""
            start = known or adapter_file.fresh(recipe.adapter(arch), arch, fingerprint)
            fitting = Fitting(
                lesson, lambda: learning.adapter_learner(self._require_model(), lesson, start), self._recover, report
            )
            try:
                result = await self._fit(fitting)
                kept = result["stopped"] or result["loss_after"] < result["loss_before"]
                result |= {"characters": len(text), "kept": kept, "recipe": asdict(recipe)}
                if not kept:
                    result["loss_after"] = result["loss_before"]
                if result["steps"]:
                    learned = adapter_file.taken(fitting.learner.model, learning.NAME, fingerprint) if kept else start
                    self._require_model().put(Adapter(name, learned, dict(result)))
                    self.active_adapter, self.mix = name, {}
            finally:
                fitting.dispose()
        return result | {"name": name, "notice": "" if kept else NO_GAIN.format(name), "session": self.describe()}

    async def _fit(self, fitting: Fitting[Any]) -> dict[str, Any]:
        fitting.stopping = self._stopping
        self._fitting = fitting
        try:
            return await fitting.run()
        finally:
            self._step, self._fitting = fitting.progress.steps, None

    # ── writing ──────────────────────────────────────────────────────────────
    async def stream(self, prompt: str, options: dict[str, Any] | None = None) -> AsyncGenerator[str, None]:
        """Pieces of text that continue `prompt`, each as soon as its characters are whole.

        `options`: `max_new_tokens`, `temperature`, `seed`, and `adapter`: a name, None for the bare base;
        left out, the active adapter. An empty prompt starts from the beginning-of-text token.
        """
        options = options or {}
        recipes.sampling(options)
        prompt, current = texts.checked_text(prompt), self._require_model()
        async with self._job("Writing"):
            weights = _one(options["adapter"]) if "adapter" in options else self.mix or _one(self.active_adapter)
            writer = current.writer(weights)
            async for piece in self._pieces(writer, prompt, options):
                yield piece

    async def compare(
        self, prompt: str, options: dict[str, Any] | None = None
    ) -> AsyncGenerator[tuple[str, str], None]:
        """(side, piece) pairs from one prompt and seed: side "base" writes first, then "adapter", then "second".

        `options` as in `stream`; `adapter` defaults to the mix or the active one, `second` names another one, or is
        left out.
        """
        options = options or {}
        recipes.sampling(options)
        prompt, current = texts.checked_text(prompt), self._require_model()
        weights = _one(options["adapter"]) if options.get("adapter") else self.mix or _one(self.active_adapter)
        if not weights:
            raise EvermindError("There is no adapter to compare with. Personalise the model first.")
        sides = {"base": {}, "adapter": weights}
        if options.get("second"):
            sides["second"] = _one(options["second"])
        async with self._job("Writing"):
            # One after the other: adapters share buffers.
            for side, shares in sides.items():
                async for piece in self._pieces(current.writer(shares), prompt, options):
                    yield side, piece

    async def token_shares(self, text: str, adapter: str | None) -> list[dict[str, Any]]:
        """What the base (None) or an adapter makes of the last tokens of `text`; see `writing.token_shares`."""
        text, current = texts.checked_text(text), self._require_model()
        async with self._job("Looking at the tokens"):
            return await token_shares(current.writer(_one(adapter)), current.tokenizer, text)

    async def expert_shares(self, text: str, adapter: str | None) -> list[list[float]]:
        """Each layer's use of its experts on `text`; see `writing.expert_shares`."""
        text, current = texts.checked_text(text), self._require_model()
        async with self._job("Looking at the experts"):
            ids = (begin(current.tokenizer) + current.tokenizer.encode(text[:4000]))[:512]
            return await expert_shares(current.writer(_one(adapter)), ids)

    def set_mix(self, weights: dict[str, float]) -> dict[str, Any]:
        """Write with the weighted sum of several adapters; {} goes back to the active one. Returns the description."""
        current = self._require_model()
        mix = {}
        for name, weight in weights.items():
            current.adapter(name)
            mix[name] = float(
                recipes.checked_number(f"the share of “{name}”", weight, -recipes.MAX_WEIGHT, recipes.MAX_WEIGHT)
            )
        self.mix = mix
        return self.describe()

    def set_adapter(self, name: str | None) -> dict[str, Any]:
        """Make `name` the adapter that writes, None for the bare base. Returns the description."""
        current = self._require_model()
        if name is not None:
            current.adapter(name)
        self.active_adapter, self.mix = name, {}
        return self.describe()

    def _pieces(self, writer: LanguageModel, prompt: str, options: dict[str, Any]) -> AsyncIterator[str]:
        tokenizer = self._require_model().tokenizer
        config = recipes.sampling(options, tokenizer.eos_id)
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
            self.backend, self.fallback_reason = (await open_backend("numpy"))[0], reason
        else:
            self.backend, self.fallback_reason = await open_backend(None, self._wanted == "webgpu")
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


def _one(name: str | None) -> dict[str, float]:
    """The weights of one adapter alone; None: of no adapter."""
    return {} if name is None else {name: 1.0}
