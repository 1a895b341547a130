"""Lists inside a tokenizer.json, which may hold anything at all."""

from __future__ import annotations

from typing import Any

from evermind_web.errors import FormatError


def checked_list(value: Any, what: str) -> list[Any]:
    """`value` if it is a list, [] if it is missing; FormatError otherwise."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise FormatError(f"tokenizer.json: expected a list of {what}, got {type(value).__name__}")
    return value
