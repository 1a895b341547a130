"""What a caller passes, compared with what the annotations say: one rule for all public functions.

`@checked` does it for a function, `check_fields` for a dataclass. Ranges are checked where the values are used, and
what has no simple type (token ids by the million, a protocol that tells nothing at run time) is let through to those
who know it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from operator import index
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from evermind_web.errors import BackendError, EvermindError, InvalidArgumentError

F = TypeVar("F", bound=Callable[..., Any])
MAX_NUMBERS = 2**31 - 1  # of a model, or of any one thing in memory
_HUGE = 2**1000  # about where floats end; Python refuses to print numbers of thousands of digits


class Rule(NamedTuple):
    """What is wanted, in words, and whether a value is that."""

    wanted: str
    takes: Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    """Whether it is an int of Python or NumPy; True and False are not, nor one that no float can hold."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and -_HUGE < int(value) < _HUGE


def is_number(value: Any) -> bool:
    """Whether it is a real number, infinity among them; NaN, True and False are not."""
    return is_whole(value) or (isinstance(value, (float, np.floating)) and bool(value == value))


def is_bytes(value: Any) -> bool:
    """Whether it holds the bytes of a file."""
    return isinstance(value, (bytes, bytearray, memoryview))


def _is_numbers(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "biuf" or np.asarray(value, np.float32).size == 0
    except (TypeError, ValueError, OverflowError):
        return False


_NUMBERS = Rule("an array of numbers", _is_numbers)
_PATH = Rule("a path", lambda value: isinstance(value, os.PathLike))
_SIMPLE: dict[Any, Rule] = {
    bool: Rule("True or False", lambda value: isinstance(value, (bool, np.bool_))),
    int: Rule("a whole number", is_whole),
    float: Rule("a number", is_number),
    str: Rule("a text", lambda value: isinstance(value, str)),
    bytes: Rule("the bytes of a file", is_bytes),
    Path: _PATH,
    os.PathLike[str]: _PATH,
    NoneType: Rule("None", lambda value: value is None),
    npt.ArrayLike: _NUMBERS,
}


def _rule(hint: Any) -> Rule | None:
    """The rule of an annotation; None where everything may pass."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        rules = [rule for rule in map(_rule, args) if rule]
        return Rule(" or ".join(r.wanted for r in rules), _any_of(rules)) if len(rules) == len(args) else None
    if origin is Literal:
        return Rule(f"one of {', '.join(map(repr, args))}", lambda value: isinstance(value, str) and value in args)
    if origin is np.ndarray:
        return _NUMBERS
    if origin is Callable:
        return Rule("a function", callable)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = map(_SIMPLE.get, args)
        inside = f" ({key.wanted}: {item.wanted})" if key and item else ""
        return Rule(f"a dict{inside}", _mapping_of(key, item))
    if origin is tuple and ... not in args:
        return Rule(f"{len(args)} values", _tuple_of([_SIMPLE.get(arg) for arg in args]))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        many = origin is Iterable and args[0] in _SIMPLE  # whoever goes through such a one looks at each
        kind = None if many or get_origin(args[0]) in (Union, UnionType, Sequence) else _rule(args[0])
        return Rule(f"a list (of {kind.wanted} each)" if kind else "a list", _list_of(kind))
    if not isinstance(hint, type) or hint in (Any, object):
        return None
    if not getattr(hint, "_is_protocol", False):
        return Rule(f"a {hint.__name__}", lambda value: isinstance(value, hint))
    if not getattr(hint, "_is_runtime_protocol", False):
        return None
    needs = [name for name in (*vars(hint), *hint.__annotations__) if not name.startswith("_")]
    wanted = f"an object with {', '.join(needs)}" if len(needs) < 4 else f"a {hint.__name__}"
    # A str has an `encode`, too, and is no codec.
    return Rule(wanted, lambda value: isinstance(value, hint) and not isinstance(value, str))


def _any_of(rules: Sequence[Rule]) -> Callable[[Any], bool]:
    return lambda value: any(rule.takes(value) for rule in rules)


def _all(rule: Rule | None, values: Iterable[Any]) -> bool:
    return rule is None or all(map(rule.takes, values))


def _mapping_of(key: Rule | None, item: Rule | None) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and _all(key, value) and _all(item, value.values())


def _tuple_of(rules: Sequence[Rule | None]) -> Callable[[Any], bool]:
    def takes(value: Any) -> bool:
        if not isinstance(value, (tuple, list)) or len(value) != len(rules):
            return False
        return all(rule is None or rule.takes(item) for rule, item in zip(rules, value, strict=True))

    return takes


def _list_of(rule: Rule | None) -> Callable[[Any], bool]:
    def takes(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            return False
        if getattr(value, "ndim", 1) == 0:  # an array of one number, which only looks like a list
            return False
        return not isinstance(value, Collection) or _all(rule, value)  # a generator can be gone through once only

    return takes


@cache
def _rules(of: Any) -> dict[str, Rule]:
    """The rules by name of parameter or field."""
    found = {name: _rule(hint) for name, hint in get_type_hints(of).items() if name != "return"}
    return {name: rule for name, rule in found.items() if rule}


def shown(value: Any) -> str:
    """What messages show of a value: itself, or its type where that is long, or cannot be printed."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    return text if 0 < len(text) <= 60 else type(value).__name__


def _refuse(name: str, value: Any, wanted: str, owner: str) -> None:
    got, then = shown(value), f"see help({owner.removesuffix('.__init__')})"
    if wanted == _SIMPLE[bytes].wanted:
        got, then = type(value).__name__, "read it first: Path(…).read_bytes()"
    elif wanted == _SIMPLE[str].wanted and is_bytes(value):
        got, then = type(value).__name__, "decode it first"
    raise InvalidArgumentError(f"{name} must be {wanted}, got {got}; {then}")


def checked(function: F) -> F:
    """`function`, which raises InvalidArgumentError for an argument that is not what its annotation says."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        rules = _rules(function)
        for name, value in (*zip(names, args, strict=False), *keywords.items()):
            if name in rules and not rules[name].takes(value):
                _refuse(name, value, rules[name].wanted, function.__qualname__)
        return function(*args, **keywords)

    return call  # type: ignore[return-value]


def check_fields(record: Any) -> None:
    """InvalidArgumentError for the first field of a dataclass that is not what its annotation says."""
    for name, rule in _rules(cast(Any, type(record))).items():
        if not rule.takes(getattr(record, name)):
            _refuse(name, getattr(record, name), rule.wanted, type(record).__qualname__)


def check_value(name: str, value: Any, hint: Any, owner: str) -> None:
    """InvalidArgumentError unless `value` is what the annotation `hint` says; owner: the call, for its help."""
    rule = _rule(hint)
    if rule and not rule.takes(value):
        _refuse(name, value, rule.wanted, owner)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int from `least` to 2³²−1; InvalidArgumentError naming it otherwise."""
    if not is_whole(value):
        raise InvalidArgumentError(f"{name} must be a whole number, got {shown(value)}")
    number = index(value)
    if number < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, got {number}")
    if number >= 2**32:
        raise InvalidArgumentError(f"{name} must be below 2**32, got {number}")
    return number


def number_in(name: str, value: Any, low: float, high: float, open_ends: bool = False) -> None:
    """InvalidArgumentError unless it is a finite number in low…high, with `open_ends` strictly between."""
    inside = is_number(value) and abs(value) < np.inf and (low < value < high if open_ends else low <= value <= high)
    if not inside:
        raise InvalidArgumentError(f"{name} must be a number in {low}…{high}, got {shown(value)}")


def check_size(what: str, count: int) -> None:
    """InvalidArgumentError for more numbers than any device here holds."""
    if count > MAX_NUMBERS:
        raise InvalidArgumentError(
            f"{what} of {count} numbers is more than any device here holds, {MAX_NUMBERS}; choose smaller sizes"
        )


def zeros(what: str, *shape: int) -> npt.NDArray[np.float32]:
    """float32 zeros of `shape`. Raises InvalidArgumentError as `check_size`, BackendError where memory is short."""
    check_size(what, math.prod(shape))
    try:
        return np.zeros(shape, np.float32)
    except MemoryError:
        raise BackendError(f"out of memory: {what} of shape {shape} does not fit; choose smaller sizes") from None


def check_finite(name: str, values: npt.NDArray[Any], error: type[EvermindError] = InvalidArgumentError) -> None:
    """The error, naming the tensor and the place, unless all values are finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise error(
            f"{name}: element {bad[0]} is {values.flat[bad[0]]}, expected finite numbers"
            f" ({bad.size} of {values.size} are not); take weights from before they were damaged"
        )


def utf8(text: str) -> bytes:
    """The bytes of a text that goes into a file; InvalidArgumentError for half of a surrogate pair, which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        near = text[max(error.start - 20, 0) : error.start + 1]
        raise InvalidArgumentError(
            f"no file can hold {near!r}: its end is half a surrogate pair; leave it out"
        ) from None


class _Disposed:
    def __init__(self, owner: str) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        raise BackendError(f"this {self._owner} was disposed: its memory is given back; make a new one")


def disposed(owner: str) -> Any:
    """What stands where the backend of a disposed object was, and says so to whoever asks it for anything."""
    return _Disposed(owner)
