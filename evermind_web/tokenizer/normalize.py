"""Unicode normalisation that a tokenizer.json may ask for; anything else it could ask for is refused by name."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from evermind_web.errors import FormatError
from evermind_web.tokenizer.json_lists import checked_list

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


def build_normalizer(spec: Mapping[str, Any] | None) -> Callable[[str], str] | None:
    """The function of a `normalizer` entry, or None if text is taken as it is."""
    forms = _forms(spec)
    if not forms:
        return None

    def normalize(text: str) -> str:
        for form in forms:
            text = unicodedata.normalize(form, text)
        return text

    return normalize


def _forms(spec: Mapping[str, Any] | None) -> list[_Form]:
    if spec is None:
        return []
    kind = spec.get("type") if isinstance(spec, Mapping) else spec
    if isinstance(spec, Mapping) and kind == "Sequence":
        return [form for child in checked_list(spec.get("normalizers"), "normalizers") for form in _forms(child)]
    if kind in _FORMS:
        return [cast(_Form, kind)]
    raise FormatError(f"normalizer {kind!r} is not supported: expected none, {', '.join(_FORMS)} or a Sequence of them")
