"""The bill of materials of dist/ (`dist/sbom.cdx.json`, CycloneDX): what it carries, versions, licences, hashes.

Versions and hashes come from the locks that the build verifies against: package-lock.json and Pyodide's lock file.
"""

from __future__ import annotations

import base64
import json
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

from tools.common import ROOT, ToolError, sha256

Component = dict[str, Any]


def sbom(version: str, wheels: list[Path], libraries: tuple[str, ...]) -> dict[str, Any]:
    """Return the document. `version` is ours; `wheels` are those in dist/, ours left out; `libraries` are npm's.

    Raises:
        ToolError: the licence of a wheel is not known.
    """
    parts = [_npm(name) for name in ("pyodide", *libraries)]
    parts.append(_component("cpython", "3.13", "PSF-2.0", "generic"))
    parts += [_wheel(path) for path in sorted(wheels)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component("evermind-web", version, "MIT", "pypi")},
        "components": parts,
    }


def _component(name: str, version: str, licence: str, kind: str) -> Component:
    key = "expression" if " " in licence else "license"
    value: Any = licence if key == "expression" else {"id": licence}
    return {
        "type": "library", "name": name, "version": version, "purl": f"pkg:{kind}/{name}@{version}",
        "licenses": [{key: value}],
    }  # fmt: skip


def _npm(name: str) -> Component:
    entry = json.loads((ROOT / "package-lock.json").read_text())["packages"][f"node_modules/{name}"]
    algorithm, digest = entry["integrity"].split("-", 1)
    part = _component(name, entry["version"], entry["license"], "npm")
    return part | {
        "hashes": [{"alg": algorithm.upper().replace("SHA", "SHA-"), "content": base64.b64decode(digest).hex()}]
    }


def _wheel(path: Path) -> Component:
    with zipfile.ZipFile(path) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(member))
    name, version = about["Name"], about["Version"]
    licence = about["License-Expression"] or LICENCES.get(name)
    if not licence:
        raise ToolError(f"{path.name} states no licence expression: look it up and add it to tools/sbom.py")
    return _component(name, version, licence, "pypi") | {
        "hashes": [{"alg": "SHA-256", "content": sha256(path.read_bytes())}]
    }


# Wheels of that age name their licence in prose.
LICENCES = {
    "numpy": "BSD-3-Clause",
    "regex": "Apache-2.0 AND CNRI-Python",
    "micropip": "MPL-2.0",
    "packaging": "Apache-2.0 OR BSD-2-Clause",
}
