"""Reader of tests/golden/<kind>/: values made by the reference engine, copied from its conformance set.

    for case in load_cases("quant"): case.name, case["scale"], case.file("values"), case.raw("checkpoint")

cases.json holds a list `cases`; each has a name, a kind, a config, and
files: key → {path, dtype, offset, nbytes, shape}.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
DTYPES = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "u32": "<u4", "u16": "<u2", "i8": "i1", "bytes": "u1"}
JSON_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0": -0.0}


def number(value: Any) -> Any:
    """Undo the JSON spelling of non-finite numbers and −0, in lists at any depth."""
    if isinstance(value, list):
        return [number(v) for v in value]
    return JSON_NUMBERS.get(value, value) if isinstance(value, str) else value


class GoldenCase:
    """One case; its keys by case[key], its arrays by case.file(key)."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self._folder, self._spec = folder, spec
        self.name: str = spec["name"]
        self.config: dict[str, Any] = spec.get("config") or {}

    def __getitem__(self, key: str) -> Any:
        return self._spec[key]

    def __repr__(self) -> str:
        return self.name  # pytest shows it

    def has(self, key: str) -> bool:
        return key in self._spec["files"]

    def file(self, key: str) -> Any:
        """A fresh array in the stored shape and dtype; parsed JSON for json entries."""
        entry = self._spec["files"][key]
        path = self._folder / entry["path"]
        if entry["dtype"] == "json":
            return json.loads(path.read_text(encoding="utf-8"))
        data = path.read_bytes()[entry["offset"] : entry["offset"] + entry["nbytes"]]
        if len(data) != entry["nbytes"]:
            raise EOFError(f"{path} is shorter than {self.name}.{key} says")
        return np.frombuffer(data, DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()

    def raw(self, key: str) -> bytes:
        """The stored bytes: a checkpoint, an adapter, …"""
        return bytes(self.file(key).tobytes())


@cache
def load_cases(kind: str) -> tuple[GoldenCase, ...]:
    """All golden cases of a kind, in the order of the set."""
    folder = GOLDEN / kind
    index = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return tuple(GoldenCase(folder, spec) for spec in index["cases"])


def load_case(kind: str, name: str) -> GoldenCase:
    """One case by name."""
    return next(case for case in load_cases(kind) if case.name == name)
