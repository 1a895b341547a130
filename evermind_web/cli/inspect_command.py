"""Print what is in a file of this package: model, adapter, delta, training state, tokenizer, backup, GGUF, …"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from evermind_web.cli import folder
from evermind_web.cli.contents import contents

NAME = "inspect"
MANY = 8  # entries of a list that are shown without --all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="any file of this package, or a folder of them")
    parser.add_argument("--json", action="store_true", help="print JSON, everything in it")
    parser.add_argument("--all", action="store_true", help="print long lists whole")


async def run(arguments: argparse.Namespace) -> None:
    """Print the contents; a damaged or unknown file is an error."""
    found = _read(arguments.file)
    if arguments.json:
        print(json.dumps(_plain(found), indent=1, ensure_ascii=False))
        return
    for line in _lines(found, "", None if arguments.all else MANY):
        print(line)


def _read(path: Path) -> dict[str, Any]:
    """Contents of a file, or of every file in a folder; a text, such as a model card, only by its size."""
    if not path.is_dir():
        return contents(folder.read_bytes(path))
    folder.settle(path)
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    texts = {p.name: {"kind": "text", "bytes": p.stat().st_size} for p in files if p.suffix in (".md", ".txt")}
    return {"kind": "folder", **{p.name: texts.get(p.name) or contents(folder.read_bytes(p)) for p in files}}


def _lines(value: dict[str, Any], indent: str, limit: int | None) -> list[str]:
    lines = []
    for key, item in value.items():
        label = indent + (key.replace("_", " ") if key.isidentifier() else key)  # tokens stay as they are
        if isinstance(item, dict) and item:
            lines += [f"{label}:", *_lines(item, indent + "  ", limit)]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            shown = item if limit is None else item[:limit]
            lines += [f"{label}: {len(item)}", *(f"{indent}  {_row(row)}" for row in shown)]
            lines += [f"{indent}  … {len(item) - len(shown)} more (--all)"] if len(shown) < len(item) else []
        elif item not in (None, "", [], {}):
            lines.append(f"{label}: {_short(item)}")
    return lines


def _row(row: dict[str, Any]) -> str:
    return "  ".join(_short(item) for item in row.values() if item not in (None, "", {}))


def _short(item: Any) -> str:
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        return text if len(text) <= 200 else text[:199] + "…"
    return f"{item:,}" if isinstance(item, int) else f"{item:.6g}"


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they become their names."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and value - value != 0 else value
