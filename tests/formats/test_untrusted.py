"""CK8: bytes of a stranger are never executed, and are called what they are."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evermind_web.errors import FormatError
from evermind_web.formats.delta import deserialize_row_delta
from evermind_web.formats.evl0 import read_evl0
from evermind_web.formats.lora_blob import read_lora

READERS: dict[str, Callable[[bytes], Any]] = {
    "checkpoint": read_evl0,
    "adapter": read_lora,
    "delta": deserialize_row_delta,
}


class Bomb:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.sentinel),)


def bombs(folder: Path) -> dict[str, bytes]:
    bomb = Bomb(folder / "sentinel")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(bomb))
    array = io.BytesIO()
    np.save(array, np.array([bomb], dtype=object), allow_pickle=True)
    return {"pickle": pickle.dumps(bomb), "zip": packed.getvalue(), "npy": array.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "zip", "npy"])
@pytest.mark.parametrize("what", READERS)
def test_ck8_foreign_bytes_are_named_and_not_run(tmp_path: Path, what: str, kind: str) -> None:
    with pytest.raises(FormatError, match=rf"not an? {what} \(looks like .*{kind}"):
        READERS[what](bombs(tmp_path)[kind])
    assert not (tmp_path / "sentinel").exists()


def test_ck8_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(bombs(tmp_path)["pickle"])
    assert (tmp_path / "sentinel").exists()


def test_ck8_loaders_do_not_import_pickle() -> None:
    """NumPy itself imports pickle, so the question is which of our modules name it."""
    code = (
        "import sys, evermind_web.formats.evl0, evermind_web.formats.lora_blob, evermind_web.formats.delta\n"
        "ours = [m for n, m in sys.modules.items() if n.startswith('evermind_web')]\n"
        "assert len(ours) > 5\n"
        "print([m.__name__ for m in ours if hasattr(m, 'pickle')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
