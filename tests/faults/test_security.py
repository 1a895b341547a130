"""What keeps a stranger's text, file or package from running: read from the sources, the locks and dist/."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tools.common import ROOT

PAGE_FILES = sorted([*(ROOT / "web").rglob("*.mjs"), *(ROOT / "web").glob("*.js"), *(ROOT / "web").glob("*.html")])
PYTHON_FILES = sorted((ROOT / "evermind_web").rglob("*.py"))

# Text becomes HTML or code nowhere; the policy of the page would stop most of it, other people's pages have none.
FORBIDDEN_IN_PAGES = {
    r"\beval\s*\(": "eval",
    r"\bnew\s+Function\b|\bFunction\s*\(": "code from text",
    r"\b(inner|outer)HTML\b|\binsertAdjacentHTML\b|\bsetHTMLUnsafe\b": "HTML from text",
    r"\bdocument\.write|\bcreateContextualFragment\b|\bsrcdoc\b": "HTML from text",
    r"\bDOMParser\b(?!.*// inert)": "HTML from text",
    r"\bset(Timeout|Interval)\s*\(\s*[\"'`]": "code from text",
    r"javascript:": "code in an address",
    r"\son[a-z]+\s*=\s*[\"']": "a handler in HTML",
    r"<style\b|<[^>]*\sstyle\s*=": "styles in HTML",
    r"<script(?![^>]*\bsrc=)": "a script in HTML",
    r"https?://(?!www\.w3\.org/)(?!localhost)[\w.]+\.\w+/[^\s)]*\.(m?js|css|wasm|whl)": "code of another origin",
    r"__proto__|\bObject\.setPrototypeOf\b": "prototypes",
}
MODULES_THAT_RUN_FILES = {"pickle", "marshal", "shelve", "dill", "joblib", "imp", "code"}
CALLS_THAT_RUN_TEXT = {"eval", "exec", "compile"}


def page_problems(text: str) -> list[str]:
    code = re.sub(r"^\s*(//|\*|/\*).*$", "", text, flags=re.MULTILINE)
    return [why for pattern, why in FORBIDDEN_IN_PAGES.items() if re.search(pattern, code)]


@pytest.mark.parametrize("path", PAGE_FILES, ids=lambda path: path.name)
def test_no_text_becomes_code_or_html_in_a_page(path: Path) -> None:
    assert page_problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("box.innerHTML = name;", "HTML"),
        ("const f = new Function('return 1');", "code"),
        ('setTimeout("x()", 5)', "code"),
        ('<p onclick="x()">', "handler"),
        ("<script>x()</script>", "script"),
        ('import x from "https://cdn.example.com/x.mjs";', "origin"),
        ("target['__proto__'] = 1", "prototypes"),
    ],
)
def test_the_lint_of_pages_sees_it(text: str, says: str) -> None:
    assert says in " ".join(page_problems(text))


def python_problems(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES_THAT_RUN_FILES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES_THAT_RUN_FILES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS_THAT_RUN_TEXT:
                found.append(called.id)
            keywords = {k.arg: k.value for k in node.keywords}
            if "allow_pickle" in keywords:
                found.append("allow_pickle")
            if isinstance(called, ast.Attribute) and ast.unparse(called) == "torch.load":
                safe = keywords.get("weights_only")
                if not (isinstance(safe, ast.Constant) and safe.value is True):
                    found.append("torch.load without weights_only=True")
    return found


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT / "evermind_web")))
def test_ck8_no_file_is_run_and_no_text_is_code(path: Path) -> None:
    assert python_problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text", ["import pickle", "from pickle import loads", "eval(x)", "np.load(f, allow_pickle=True)", "torch.load(f)"]
)
def test_the_lint_of_python_sees_it(text: str) -> None:
    assert python_problems(text)


def test_messages_are_only_heard_from_a_worker_of_ours_or_by_a_worker() -> None:
    """A window hears any other window: no listener is on one. A dedicated worker hears only who made it.

    The store hears other tabs of its own origin over a BroadcastChannel, and only that there was something.
    """
    for path in PAGE_FILES:
        text = path.read_text(encoding="utf-8")
        listeners = re.findall(r"(\S*?)\.?addEventListener\(\s*[\"']message[\"']", text)
        listeners += re.findall(r"(\S+)\.onmessage\s*=", text)
        allowed = {"worker", "self"} if "worker" in path.name or "evermind" in path.name else {"worker"}
        if path.name == "store.mjs":
            assert listeners == ["this.#others"]
            assert ".onmessage = () =>" in text, "what was said is not looked at"
            assert "this.#others = engine.persistent && globalThis.BroadcastChannel ? new BroadcastChannel(" in text
            continue
        assert set(listeners) <= allowed, path.name
        assert "SharedWorker" not in text
        assert "BroadcastChannel" not in text


# ── what others made ─────────────────────────────────────────────────────────
def test_python_dependencies_are_pinned_with_hashes() -> None:
    text = (ROOT / "tools" / "requirements-dev.txt").read_text()
    joined = text.replace("\\\n", " ")
    entries = [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[\w.\-\[\]]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_javascript_dependencies_are_pinned_with_hashes_and_licences() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    others = {name: entry for name, entry in packages.items() if name}
    assert len(others) > 5
    for name, entry in others.items():
        assert entry["integrity"].startswith("sha512-"), name
        assert entry["license"], name
    wanted = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values()), wanted
