"""A small base for the simulations: 0.67 M parameters, four minutes on one core, from four of the base texts.

    python bench/stand_in.py --texts FOLDER -o FOLDER     writes base.evl0 and tokenizer.json

The shipped base is ten times larger; a hundred simulated clients on NumPy want something quicker.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from evermind_web import BPETokenizer, EvermindLM, EvermindLMTrainer, StepInfo, pack_windows

TEXTS = ("dracula", "emma", "treasure-island", "sherlock-holmes")
FIRST, LAST = 20_000, 220_000  # characters of each


def report(step: StepInfo) -> None:
    """A line now and then."""
    if step.step % 100 == 0:
        print(
            f"step {step.step} of {step.total_steps}: loss {step.loss:.3f}, {step.tokens / step.seconds:.0f} tokens/s"
        )


def main() -> None:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help=f"folder with {', '.join(TEXTS)} (.txt)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    text = "".join((arguments.texts / f"{n}.txt").read_text(encoding="utf-8")[FIRST:LAST] for n in TEXTS)
    tokenizer = BPETokenizer()
    tokenizer.train(text[:400_000], vocab_size=1024)
    windows = pack_windows(tokenizer.encode(text), 64)
    np.random.default_rng(0).shuffle(windows)  # type: ignore[arg-type]
    model = EvermindLM(tokenizer.vocab_size, 64, 4, 4, 128, 8, 2, seed=1, backend="numpy")
    trainer = EvermindLMTrainer(
        model, lr=0.004, epochs=3, accum_steps=16, balance_coef=0.01, lr_scheduler_type="cosine", warmup_steps=20,
        max_grad_norm=1.0,
    )  # fmt: skip
    trainer.fit(windows, report)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "base.evl0").write_bytes(model.export_weights(fp16=True))
    tokenizer.save(str(arguments.output / "tokenizer.json"))


if __name__ == "__main__":
    main()
