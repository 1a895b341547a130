"""The SIMD modules as they are assembled: small, the same each time, and importing nothing but the memory."""

from __future__ import annotations

import base64
import json
import subprocess

from evermind_web.backend import simd
from evermind_web.backend.numpy_backend import NumpyBackend
from tools.common import ROOT


def assemble() -> dict[str, bytes]:
    done = subprocess.run(["node", ROOT / "simd" / "assemble.mjs"], capture_output=True, text=True, check=True)
    return {name: base64.b64decode(module) for name, module in json.loads(done.stdout).items()}


def test_both_variants_are_small_and_the_same_each_time() -> None:
    modules = assemble()
    assert set(modules) == {"relaxed", "strict"}
    assert modules == assemble()
    for module in modules.values():
        assert module[:4] == b"\0asm"
        assert module[10:19] == b"\x08dylink.0"  # the first section: Emscripten takes it for a library
        assert len(module) < 4096  # so much may be compiled at once on the main thread, in any browser
        assert module.count(b"\x03env\x06memory\x02\x00\x00") == 1
    assert len(modules["relaxed"]) != len(modules["strict"])


def test_in_cpython_numpy_does_the_work() -> None:
    assert simd.kernels() is None
    assert "SIMD" not in NumpyBackend().adapter_name
