"""JSON from files of strangers: text that no file could hold again is refused with the rest that is no JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

DEEPEST = 200
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^][{}]+")


def loads(text: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """`json.loads`; ValueError also for half of a surrogate pair, which has no UTF-8, RecursionError if it is deep."""
    check_depth(text)
    value = json.loads(text, object_pairs_hook=object_pairs_hook)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    else:
        text.encode()
    return value


def check_depth(text: str) -> None:
    """Raise RecursionError for lists in lists too deep: in a browser the parser's stack overflows and Python ends."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", text))
    for _ in range(DEEPEST // 2):  # each round takes the innermost level away
        shorter = brackets.replace("[]", "").replace("{}", "")
        if shorter == brackets:
            break
        brackets = shorter
    if len(brackets) > DEEPEST // 2:
        raise RecursionError(f"lists and objects lie in each other more than {DEEPEST // 2} deep")
