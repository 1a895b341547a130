"""Every example of README.md and docs/ that runs in CPython: Python on NumPy, and the command line."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from evermind_web.cli import main
from tests.docs.pages import PAGES, ROOT, SAMPLES, blocks, name, pages_with

RUNNABLE = sorted({*pages_with("python"), *pages_with("sh")})


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
async def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the two sample texts. An example that prints a value in a comment `# → value` must print it."""
    for sample in ("alice.txt", "time-machine.txt"):
        shutil.copy(SAMPLES / sample, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    both = [*blocks(page, "python"), *blocks(page, "sh")]
    for block in sorted(both, key=lambda b: b.line):
        if block.info == ("sh",):
            _run_commands(block.text)
            continue
        where = "\n" * block.line + block.text  # so that a traceback names the line of the page
        code = compile(where, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


def _run_commands(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:3] == ["python", "-m", "evermind_web"]:
            _in_thread(words[3:])


def _in_thread(arguments: list[str]) -> None:
    """`main` starts an event loop of its own, and one is running here."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(main, arguments).result() == 0, arguments


def test_there_are_examples_of_every_area() -> None:
    areas = ["model", "training", "lora", "generation", "tokenizer", "limbic", "store", "bench", "formats", "errors"]
    assert {f"docs/{area}.md" for area in areas} <= {name(page) for page in pages_with("python")}
    assert "docs/cli.md" in {name(page) for page in pages_with("sh")}
    assert "docs/javascript.md" in {name(page) for page in pages_with("js")}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", content):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:evermind_web|web|wgsl|tests|tools|docs|bench)/[\w./-]+\w)(?:::(\w+))?`", page.read_text()
    ):
        file, test = path
        assert (ROOT / file).exists(), f"{name(page)} names {file}, which is not there"
        if test:
            assert re.search(rf"def {test}\b", (ROOT / file).read_text(encoding="utf-8")), f"{file} has no {test}"
