"""dist/ says what it carries, with versions, licences and hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import build_dist, runtime, sbom
from tools.common import ToolError, sha256


def test_every_wheel_and_library_of_the_site_is_listed() -> None:
    wheels = [runtime.cache_folder() / entry["file_name"] for entry in runtime.wheels().values()]
    document = sbom.sbom("1.2.3", wheels, build_dist.LIBRARIES)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    parts = {part["name"]: part for part in document["components"]}
    assert {"pyodide", "cpython", "comlink", "idb", "uplot", "numpy", "regex"} <= set(parts)
    assert parts["pyodide"]["version"] == runtime.version()
    for name, part in parts.items():
        assert part["licenses"][0].popitem()[1], name
        assert part["purl"].endswith(f"@{part['version']}")
        if name != "cpython":
            assert len(part["hashes"][0]["content"]) in (64, 128), name
    numpy = next(path for path in wheels if path.name.startswith("numpy"))
    assert parts["numpy"]["hashes"][0]["content"] == sha256(numpy.read_bytes())
    assert document["metadata"]["component"]["version"] == "1.2.3"
    json.dumps(document)


def test_a_wheel_without_a_licence_stops_the_build(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "odd-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("odd-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    with pytest.raises(ToolError, match="states no licence"):
        sbom.sbom("1", [tmp_path / "odd-1.0-py3-none-any.whl"], ())
