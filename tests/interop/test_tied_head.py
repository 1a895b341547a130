"""TR19: the head is the embedding; a copy of it in a file is dropped, another head is refused."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer, import_evermind_tensors, named_tensors
from evermind_web.errors import FormatError
from evermind_web.formats.safetensors_io import NamedTensor


def model() -> EvermindLM:
    return EvermindLM(23, 8, 1, seed=3, backend="numpy")


def test_tr19_an_equal_head_is_dropped() -> None:
    lm = model()
    tensors = list(named_tensors(lm))
    copy = NamedTensor("lm_head.weight", tensors[0].shape, tensors[0].data.copy())
    loaded = import_evermind_tensors([*tensors, copy], top_k=2)
    assert loaded.export_weights() == lm.export_weights()
    assert [p.name for p in loaded.parameters()] == [p.name for p in lm.parameters()]


def test_tr19_another_head_is_refused_by_both_names() -> None:
    tensors = list(named_tensors(model()))
    other = NamedTensor("lm_head.weight", tensors[0].shape, tensors[0].data + np.float32(0.1))
    with pytest.raises(FormatError, match=r"'lm_head\.weight' differs from 'token_embedding\.weight'"):
        import_evermind_tensors([*tensors, other], top_k=2)


def test_tr19_after_loading_head_and_lookup_are_one_memory() -> None:
    lm = model()
    lm.load_weights(model().export_weights())
    EvermindLMTrainer(lm).fit([[1, 2, 3, 4]])
    emb = lm.parameters()[0].data
    assert lm.forward([5])[0].shape == (23,)
    before = lm.forward([1])[0].copy()
    emb[7] += 1  # a row that is not looked up: only the logit of token 7 may change
    changed = np.flatnonzero(lm.forward([1])[0] != before)
    assert changed.tolist() == [7]
