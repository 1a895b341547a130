"""Bits per byte of held-out text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from evermind_web.torch.module import EvermindModule
from evermind_web.torch.teacher import Transformer

CHUNK = 1 << 14


@torch.no_grad()
def bits_per_byte(
    module: EvermindModule | Transformer, pieces: Sequence[NDArray[Any]], token_bytes: NDArray[np.int64]
) -> float:
    """Bits per byte over all pieces, each read as one text from its second token on.

    A piece runs in chunks that overlap by what the model looks back at, so that chunks change nothing.
    """
    device = next(module.parameters()).device
    was_training = module.training
    module.eval()
    chunk = module.chunk if isinstance(module, Transformer) else CHUNK
    nats, size = torch.zeros((), dtype=torch.float64, device=device), 0
    for piece in pieces:
        ids = torch.from_numpy(piece.astype(np.int64)).to(device)
        for start in range(0, len(ids) - 1, chunk):
            first = max(0, start - module.context)
            targets = ids[start + 1 : start + chunk + 1]
            x, _ = module.features(ids[first : start + len(targets)].unsqueeze(0))
            logits = F.linear(x[0, start - first :], module.token_embedding.weight).float()
            nats += F.cross_entropy(logits, targets, reduction="sum")
        size += int(token_bytes[piece[1:]].sum())
    module.train(was_training)
    return float(nats) / math.log(2) / size if size else math.nan
