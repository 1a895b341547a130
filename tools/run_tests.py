"""`make test`: the CPython tests and the browser tests side by side, two processes for two cores.

With arguments (`make test ARGS="tests/ops -k conv"`) it is one call of pytest with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tools.common import ROOT, say

BROWSER = "tests/browser"


def command(*arguments: str) -> list[str]:
    """One call of pytest."""
    return [sys.executable, "-m", "pytest", *arguments]


def side_by_side() -> int:
    """Run both halves; the browser's output is kept until the other half has printed its own. 0 if both passed."""
    started = time.monotonic()
    # NumPy's own threads would spin for the cores that the other half needs.
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    say("test", f"CPython tests now; {BROWSER} runs beside them and is shown when it has ended")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
        browser = subprocess.Popen(command(BROWSER), cwd=ROOT, env=alone, stdout=kept, stderr=subprocess.STDOUT)
        try:
            python = subprocess.run(command("tests", f"--ignore={BROWSER}"), cwd=ROOT, env=alone).returncode
            say("test", f"CPython tests ended after {time.monotonic() - started:.0f} s; waiting for {BROWSER}")
            code = browser.wait()
        finally:
            if browser.poll() is None:
                browser.terminate()
                browser.wait(30)
        kept.seek(0)
        sys.stdout.write(kept.read())
    passed = python == 0 and code == 0
    say("test", f"{'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s")
    return 0 if passed else 1


def main(arguments: Sequence[str]) -> int:
    """The exit code of the tests."""
    if arguments:
        return subprocess.run(command(*arguments), cwd=ROOT).returncode
    return side_by_side()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
