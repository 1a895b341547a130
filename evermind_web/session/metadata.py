"""What is told of a run beside a model or an adapter, as far as it has the shape that the page gives it.

Records and files carry it as JSON, and a file may be anybody's: what does not fit is left out, as if it were not known,
so that one wrong number cannot keep a page from showing all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any


def training_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `training` in a record's or a file's metadata; fields of another type or shape are left out."""
    found = metadata.get("training")
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if name in _FITS and _FITS[name](value)}


def is_date(value: Any) -> bool:
    """Whether `value` is a time as the store writes it; any other text may not be one for JavaScript."""
    try:
        return bool(datetime.fromisoformat(value).isoformat(timespec="milliseconds").replace("+00:00", "Z") == value)
    except (TypeError, ValueError):
        return False


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # not NaN, not infinite, and JavaScript has it, too


def _rows(value: Any, width: int) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(row, list | tuple) and len(row) == width and all(map(_number, row)) for row in value
    )


def _record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"points", "held_out", "skipped"}
        and _rows(value["points"], 3)
        and _rows(value["held_out"], 2)
        and _number(value["skipped"])
    )


def _persona(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("colour", ""), str)
        and isinstance(value.get("texts"), list)
        and all(map(_text, value["texts"]))
    )


def _text(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("title"), str)
        and _number(value.get("words"))
        and ("date" not in value or is_date(value["date"]))
    )


_FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            "steps",
            "tokens",
            "seconds",
            "tokens_per_second",
            "loss_before",
            "loss_after",
            "unigram",
            "characters",
            "vocab_size",
        ),
        _number,
    ),
    **dict.fromkeys(("first_loss", "last_loss"), lambda value: value is None or _number(value)),
    **dict.fromkeys(("stopped", "kept"), _is(bool)),
    "notices": lambda value: isinstance(value, list) and all(map(_is(str), value)),
    "recipe": _is(dict),
    "date": is_date,
    "record": _record,
    "persona": _persona,
}
