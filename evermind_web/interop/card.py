"""The text files of a Hugging Face repository: config.json, generation_config.json and the model card."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evermind_web.formats.arch import Arch, param_count_of

FIXED_TAGS = ("evermind", "ssm", "mixture-of-experts", "text-generation")
DEFAULT_DESCRIPTION = "A small language model, trained in a browser with evermind_web."


@dataclass(frozen=True)
class CardInfo:
    """What the author says about a model."""

    name: str = "Evermind"
    license: str = "mit"
    author: str = ""
    description: str = DEFAULT_DESCRIPTION
    tags: Sequence[str] = ()


def config_of(arch: Arch) -> dict[str, Any]:
    """config.json as a dict, keys and order of the reference."""
    return {
        "model_type": "evermind",
        "architectures": ["EvermindForCausalLM"],
        "vocab_size": arch.vocab_size,
        "d_model": arch.d_model,
        "hidden_size": arch.d_model,
        "num_hidden_layers": arch.num_layers,
        "conv_kernel": arch.conv_kernel,
        "intermediate_size": arch.hidden_dim,
        "num_experts": arch.num_experts,
        "num_experts_per_tok": arch.top_k,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.0.0",
    }


def generation_config_json() -> dict[str, Any]:
    """generation_config.json as a dict: greedy, 64 new tokens."""
    return {"do_sample": False, "temperature": 1, "max_new_tokens": 64}


def json_text(value: Any) -> str:
    """JSON as the sidecar files hold it: two spaces, non-ASCII characters as they are, no final newline."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def yaml_scalar(text: str) -> str:
    """The text as a YAML scalar: plain where that is safe, else quoted as in JSON, which YAML reads."""
    return text if re.fullmatch(r"[A-Za-z0-9](?:[\w ./+-]*[\w.+/-])?", text) else json.dumps(text, ensure_ascii=False)


def model_card(arch: Arch, info: CardInfo, fp16: bool) -> str:
    """README.md of the repository."""
    tags = "\n".join(f"  - {yaml_scalar(tag)}" for tag in (*FIXED_TAGS, *info.tags))
    rows = (
        ("vocabulary", arch.vocab_size),
        ("d_model", arch.d_model),
        ("layers", arch.num_layers),
        ("convolution taps", arch.conv_kernel),
        ("hidden width of an expert", arch.hidden_dim),
        ("experts (used per token)", f"{arch.num_experts} ({arch.top_k})"),
        ("parameters", f"{param_count_of(arch):,}"),
    )
    table = "\n".join(f"| {label} | {value} |" for label, value in rows)
    author = f"\n## Author\n\n{info.author}\n" if info.author else ""
    return f"""---
license: {yaml_scalar(info.license)}
library_name: evermind_web
pipeline_tag: text-generation
tags:
{tags}
---

# {info.name}

{info.description}

Causal depthwise convolutions mix tokens, a shared expert and the top-k of several routed experts mix channels; the
embedding is tied to the head.

## Architecture

| field | value |
| --- | --- |
{table}

## Files

- `model.safetensors`: the weights ({"F16" if fp16 else "F32"}); `evermind_web.import_evermind` reads them back.
- `model.onnx`: a graph from `input_ids` to `logits` for onnxruntime, float32.
- `model.gguf`: the same weights for tools that read GGUF; llama.cpp does not run this architecture.
- `config.json`, `generation_config.json`, `tokenizer.json`.

## Usage

```python
import numpy as np, onnxruntime, tokenizers

tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
session = onnxruntime.InferenceSession("model.onnx")
ids = tokenizer.encode("Once upon a time").ids
for _ in range(20):  # no cache: the whole context runs again for every token
    (logits,) = session.run(None, {{"input_ids": np.array([ids], np.int64)}})
    ids.append(int(logits[0, -1].argmax()))
print(tokenizer.decode(ids))
```
{author}"""
