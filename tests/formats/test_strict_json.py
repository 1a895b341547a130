"""JSON of strangers: depth is counted before the parser recurses, which in a browser would end Python."""

from __future__ import annotations

import json

import pytest

from evermind_web import strict_json

DEEPEST = strict_json.DEEPEST // 2


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000 + "]" * 20_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "[" * 20_000,  # cut off
        "[[],{}," * 5_000 + "1" + "]" * 5_000,
        '["\\"[", ' * 300 + "1" + "]" * 300,
    ],
    ids=["lists", "objects", "cut off", "with neighbours", "with quotes"],
)
def test_what_lies_too_deep_is_refused(text: str) -> None:
    with pytest.raises(RecursionError, match="100 deep"):
        strict_json.loads(text)


def test_long_is_not_deep_and_brackets_in_strings_do_not_count() -> None:
    for value in ([[i, {}] for i in range(5000)], ["[" * 5000, "\\" * 5001 + '"' * 5000], {"[": [["]"]] * 500}):
        assert strict_json.loads(json.dumps(value)) == value
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert strict_json.loads(deep + " ") == json.loads(deep)
    assert strict_json.loads('"no end of a string ' + '\\"' * 1000 + '"')
