"""JSON from files of strangers: text that no file could hold again is refused with the rest that is no JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def loads(text: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """`json.loads`; ValueError also for half of a surrogate pair, which has no UTF-8, RecursionError if it is deep."""
    value = json.loads(text, object_pairs_hook=object_pairs_hook)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    else:
        text.encode()
    return value
