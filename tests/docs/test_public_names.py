"""Every public name says what it is."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import evermind_web
from evermind_web import errors, limbic, store

MODULES: tuple[ModuleType, ...] = (evermind_web, limbic, store, errors)


def public_names(module: ModuleType) -> list[str]:
    """Names of a module that are this package's, and no modules."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("evermind_web")
    ]


NAMES = [(module, name) for module in MODULES for name in public_names(module)]


def test_there_are_names() -> None:
    assert len(public_names(evermind_web)) > 80
    for name in ("EvermindLM", "open_store", "request_backend", "export_evermind_async", "BenchReport"):
        assert name in public_names(evermind_web)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_docstrings(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    assert _says(value), f"{module.__name__}.{name} has no docstring"
    if inspect.isclass(value):
        for member, raw in vars(value).items():
            if not member.startswith("_") and _is_callable(raw):
                assert inspect.getdoc(getattr(value, member)), f"{name}.{member} has no docstring"
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty, f"{name} does not say what it returns"


def _is_callable(raw: Any) -> bool:
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    return inspect.isfunction(function) or isinstance(function, property)


def _says(value: Any) -> bool:
    doc = getattr(value, "__doc__", None) or ""
    generated = inspect.isclass(value) and doc.startswith(f"{value.__name__}(")  # what dataclass makes up
    return bool(doc.strip()) and not generated


ALONE = {"forward_rows_async", "backward_rows_async", "views_async"}  # no plain twin


def test_every_async_name_has_a_blocking_twin() -> None:
    for module in MODULES:
        for name in public_names(module):
            value = getattr(module, name)
            members = vars(value) if inspect.isclass(value) else [name]
            for member in {m for m in members if m.endswith("_async") and not m.startswith("_")} - ALONE:
                owner = value if inspect.isclass(value) else module
                assert hasattr(owner, member.removesuffix("_async")), f"{name}: {member} has no blocking twin"
