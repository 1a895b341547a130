"""What a run learns and who learns it: a text becomes a lesson, and a lesson gets its learner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from evermind_web.backend.base import Backend
from evermind_web.batch import Example
from evermind_web.lora import LoraModel
from evermind_web.model import EvermindLM
from evermind_web.session import adapter_file, recipes, texts
from evermind_web.session.fitting import Learner, Lesson
from evermind_web.session.model_set import ModelSet
from evermind_web.session.progress import Report, phase_report
from evermind_web.session.recipes import Recipe
from evermind_web.session.writing import begin
from evermind_web.tokenizer import BPETokenizer
from evermind_web.training import EvermindLMTrainer

# The tokenizer works without waiting; slices of this many characters leave room for Stop in between.
ENCODE_SLICE = 20_000
WATCHED = 8  # windows of held-out text that are measured while a base learns
NAME = "learning"  # of the adapter that learns, in its own LoraModel


async def train_tokenizer(text: str, report: Report | None) -> BPETokenizer:
    """A tokenizer for a text, of as many merges as suit it."""
    tokenizer = BPETokenizer()
    sample = texts.excerpt(text, recipes.TOKENIZER_CHARACTERS)
    await asyncio.sleep(0)
    tokenizer.train(sample, num_merges=recipes.merges_for(sample), on_progress=phase_report(report, "tokenizer"))
    await asyncio.sleep(0)
    return tokenizer


async def encode(tokenizer: BPETokenizer, text: str, report: Report | None) -> list[int]:
    """The ids of a text, with reports and room for others meanwhile."""
    on_progress = phase_report(report, "encode")
    ids: list[int] = []
    done = 0
    while done < len(text):
        end = text.find("\n", done + ENCODE_SLICE) + 1 or len(text)
        ids += tokenizer.encode(text[done:end])
        done = end
        on_progress(done, len(text))
        await asyncio.sleep(0)
    return ids


# ── a base ───────────────────────────────────────────────────────────────────
async def base_lesson(tokenizer: BPETokenizer, text: str, steps: int, seed: int, report: Report | None) -> Lesson:
    """What a fresh model learns from a text in so many steps."""
    corpus = texts.split(await encode(tokenizer, texts.excerpt(text, steps * recipes.CHARACTERS_PER_STEP), report))
    line_ends = {i for token, i in tokenizer.vocab.items() if token.endswith("Ċ")}  # "Ċ" stands for "\n"
    starts = [0, *(at + 1 for at, token in enumerate(corpus.train[:-1]) if token in line_ends)]
    windows = texts.training_windows(corpus.train, steps, seed, starts, begin(tokenizer)[0])
    held_out = texts.windows_in_order(corpus.held_out)
    options = {"accum_steps": texts.BATCH, **recipes.SCHEDULE, "eval_every": max(10, -(-steps // recipes.LOOKS))}
    return Lesson(windows, options, held_out, held_out[:: -(-len(held_out) // WATCHED)], corpus.unigram)


def base_learner(backend: Backend, lesson: Lesson, vocab_size: int, seed: int) -> Learner[EvermindLM]:
    """A fresh model of the page's own size."""
    model = EvermindLM(vocab_size=vocab_size, **recipes.MODEL, seed=seed, backend=backend)
    trainer = EvermindLMTrainer(model, lr=recipes.LEARNING_RATE, **lesson.options)
    return Learner(model, trainer, partial(trainer.fit_async, lesson.windows))


# ── a persona ────────────────────────────────────────────────────────────────
async def persona_lesson(
    current: ModelSet, text: str, options: dict[str, Any], report: Report | None
) -> tuple[Lesson, Recipe]:
    """What an adapter of this model learns from a text, and the recipe. options: `length`, `steps`, `seed`."""
    parameters = current.model.num_parameters
    usual = "quick" if current.model.backend.name == "numpy" else "normal"
    wish = options.get("length") or usual, options.get("steps")
    characters = 3 * recipes.persona(parameters, 0, *wish).tokens  # of which a token has about 2.5 to 3
    ids = await encode(current.tokenizer, texts.excerpt(text, int(characters / (1 - recipes.SLICE))), report)
    recipe = recipes.persona(parameters, len(ids), *wish)
    recipe = replace(recipe, seed=options.get("seed") or recipe.seed)
    part = recipes.SHORT_SLICE if len(ids) < recipes.SHORT_TEXT else recipes.SLICE
    corpus = texts.split(ids, part, len(ids))
    windows = recipe.windows(corpus.train[: recipe.tokens])
    held_out: list[Example] = list(texts.scored_windows(corpus.held_out, current.reach))
    return Lesson(windows, recipe.options(len(windows)), held_out, held_out, corpus.unigram), recipe


def adapter_learner(current: ModelSet, lesson: Lesson, start: bytes) -> Learner[LoraModel]:
    """An adapter that begins as `start` on the model that is current now."""
    lora = LoraModel(current.model)
    adapter_file.put(lora, NAME, start)
    return Learner(lora, lora, partial(lora.fit_async, lesson.windows, **lesson.options))
