"""Which module may import which: read from the sources, so that the layers of the design stay what they are.

numbers and files → operations → backends; the model sits on operations and knows no backend.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "evermind_web"
NAME = PACKAGE.name


def module_name(path: Path) -> str:
    """ "backend.base" of evermind_web/backend/base.py; a package is named after its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, nodes: list[ast.stmt] | None = None) -> set[str]:
    """Full names of all modules that a file imports, also inside functions; or of those that `nodes` import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{source(path, node)}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else source(path, node) for name in names}
    return found


def source(path: Path, node: ast.ImportFrom) -> str:
    """Full name of what `from … import` names, relative or not."""
    package = [NAME, *path.relative_to(PACKAGE).parent.parts]
    start = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*start, *([node.module] if node.module else [])])


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of the package."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return name.startswith(NAME + ".") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


IMPORTS = {module_name(path): imports_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def own(module: str) -> set[str]:
    """What a module imports from the package, without the package's name."""
    return {name.removeprefix(NAME + ".") for name in IMPORTS[module] if name.startswith(NAME + ".")}


def inside(folder: str) -> list[str]:
    """A package and all its modules."""
    found = [name for name in IMPORTS if name == folder or name.startswith(folder + ".")]
    assert found, f"no module in {folder}"
    return found


def test_only_one_module_knows_the_browser() -> None:
    for module, imported in IMPORTS.items():
        roots = {name.split(".")[0] for name in imported}
        browser = roots & {"js", "pyodide", "pyodide_js", "micropip", "evermind_web_js"}
        assert not browser or module == "environment", f"{module} imports {browser}"


# A folder (or module), and what of the package its modules may import besides each other.
MAY_IMPORT = {
    "errors": set(),
    "checks": {"errors"},
    "layout": set(),
    "strict_json": set(),
    "rng": {"errors", "checks"},
    "quant": {"errors", "checks"},
    "formats": {"errors", "checks", "quant", "layout", "strict_json"},
    "tokenizer": {"errors", "checks", "strict_json"},
    "store": {"errors", "checks", "environment", "formats.crc", "formats.stored_zip", "strict_json"},
    "params": {"errors", "checks", "formats.arch", "layout", "rng"},
    "batch": {"errors", "checks", "layout", "ops"},
    "ops": {"errors", "backend.base"},
    "backend.base": set(),
    "backend.reference": {"backend.base", "layout", "ops"},
    "backend.kernels": {"errors", "layout"},
    "backend.simd": {"errors", "resources", "environment", "backend.base"},
    "backend.numpy_backend": {"errors", "backend.base", "backend.reference", "backend.simd"},
    "backend.device": {"errors", "backend.base", "resources"},
    "backend.webgpu_backend": {"errors", "layout", "backend.base", "backend.device", "backend.kernels"},
    "backend.native_webgpu": {"errors", "backend.base", "backend.device"},
    "backend.bridge_device": {"errors", "backend.base", "backend.device", "environment"},
}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_layer_imports_only_what_lies_below(folder: str) -> None:
    for module in inside(folder):
        below = {name for allowed in (folder, *MAY_IMPORT[folder]) for name in inside(allowed)}
        strangers = own(module) - below
        assert not strangers, f"{module} imports {sorted(strangers)}"


# The maths that some of the model's side shares with the NumPy backend: it runs on the host whatever the backend is.
HOST_MATHS = {"backend.reference.optim", "backend.reference.moe", "backend.reference.lora"}


@pytest.mark.parametrize("module", [name for name in IMPORTS if name and not name.startswith(("backend", "cli"))])
def test_the_models_side_knows_no_particular_backend(module: str) -> None:
    backends = {name for name in own(module) if name.startswith("backend")}
    assert backends <= {"backend.base", "backend.request"} | HOST_MATHS, f"{module} imports {sorted(backends)}"


@pytest.mark.parametrize("module", inside("backend"))
def test_backends_know_no_model(module: str) -> None:
    above = {"model", "network", "training", "lora", "generation", "optim", "params", "batch", "session", "limbic"}
    assert not {name for name in own(module) if name.split(".")[0] in above}


# What a page never runs, and may need more: native devices, the command line, training with PyTorch.
OUTSIDE_THE_PAGE = ("backend.native_webgpu", "cli", "pretrain", "torch")


def test_a_page_needs_only_numpy_and_regex() -> None:
    for module, imported in IMPORTS.items():
        allowed = {*sys.stdlib_module_names, NAME, "numpy"}
        allowed |= {"regex"} if module.startswith("tokenizer") else set()
        allowed |= {"js", "pyodide", "pyodide_js", "evermind_web_js"} if module == "environment" else set()
        strangers = {name.split(".")[0] for name in imported} - allowed
        assert not strangers or module.startswith(OUTSIDE_THE_PAGE), f"{module} imports {strangers}"


def test_no_two_modules_import_each_other() -> None:
    """Imports at the top of files make no circle, so that any module can be read on its own."""
    edges = {module: {name for name in top_level(module) if name in IMPORTS} for module in IMPORTS}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module not in done:
            for name in sorted(edges[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def top_level(module: str) -> set[str]:
    """What a module imports from the package when it is loaded; not what only type checking needs."""
    base = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    names = imports_of(path, ast.parse(path.read_text(encoding="utf-8")).body)
    return {name.removeprefix(NAME + ".") for name in names if name.startswith(NAME + ".")} - {module}
