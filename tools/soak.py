"""`make soak`: the fault tests at full volume, for hours; `make test` runs about a hundredth of each.

    python -m tools.soak [files] [imports] [devices] [gpu] [power] [load] [long]    all without a name
    python -m tools.soak files:backup                            one parser of tests/faults/parsers.py

`SOAK_SCALE` shrinks every count (0.01 is about what `make test` does). A run that was stopped goes on where it was;
each job that is finished appends one line of figures to docs/reliability.jsonl. A broken promise is printed with the
bytes or the moment that broke it, kept under .cache/soak/, and makes the exit code 1. Jobs may run side by side.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.common import CACHE, ROOT, say

FOLDER = CACHE / "soak"
FIGURES = ROOT / "docs" / "reliability.jsonl"
FILES, CHUNK = 100_000, 1_000  # broken files a parser, in runs of so many with a seed each
IMPORTS, IMPORTS_A_RUN = 5_000, 50  # broken files a kind through the page
POINTS, POINTS_A_RUN = 300, 50  # moments at which a device is lost
BROWSERS, BROWSERS_A_RUN = 25, 5  # whose GPU process crashes twice
KILLS, MIGRATIONS, KILLS_A_PROFILE = 280, 20, 10
STEPS, GENERATIONS = 10_000, 2_000
WORKERS = 10

Json = dict[str, Any]


class Job:
    """One job: its figures so far, on disk after every piece of it, so that a stopped run goes on."""

    def __init__(self, name: str, **fresh: Any) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._path = FOLDER / f"{name.replace(': ', '-').replace(' ', '-')}.json"
        self.at: Json = json.loads(self._path.read_text()) if self._path.is_file() else fresh | {"seconds": 0.0}
        self._since = time.perf_counter()

    def save(self) -> None:
        """Write it all down, whole or not at all."""
        now = time.perf_counter()
        self.at["seconds"], self._since = round(self.at["seconds"] + now - self._since, 1), now
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.at, indent=1))
        part.replace(self._path)

    def add(self, **figures: int) -> None:
        """Add to the counts of these names."""
        for name, count in figures.items():
            self.at[name] = self.at.get(name, 0) + count

    def finish(self) -> bool:
        """Append the figures to the record and forget how far it was; whether nothing was broken."""
        line = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "job": self.name, "scale": scale(), **self.at}
        line["machine"] = f"Python {platform.python_version()}, {os.cpu_count()} processors"
        with FIGURES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._path.unlink(missing_ok=True)
        say("soak", f"{self.name}: {json.dumps(line)}")
        return not self.at["broken"]


def scale() -> float:
    """`$SOAK_SCALE`, 1 without it."""
    return float(os.environ.get("SOAK_SCALE") or 1)


def scaled(count: int) -> int:
    """A count of this run, at least 1."""
    return max(1, round(count * scale()))


def run_test(path: str, **settings: int | str) -> bool:
    """Run one file of tests with these environment variables; whether it passed."""
    import pytest

    os.environ |= {name: str(value) for name, value in settings.items()}
    longer = ("-o", "faulthandler_timeout=0")  # than a test of `make test` may take
    return pytest.main(["-q", "-p", "no:cacheprovider", *longer, str(ROOT / path)]) == 0


# ── files ────────────────────────────────────────────────────────────────────
def files(only: str = "") -> bool:
    """Broken files into every parser, or into the one that is named."""
    from tests.faults import parsers

    good = [_files(parser) for parser in parsers.PARSERS if only in ("", parser.name)]
    return all(good)


def _files(parser: Any) -> bool:
    from tests.faults import fuzz

    job, count = Job(f"files: {parser.name}", files=0, refused=0, accepted=0, broken=0), scaled(FILES)
    at = job.at
    while at["files"] < count:
        broken: list[fuzz.Broken] = []
        wanted = min(CHUNK, count - at["files"])
        # Seeds from 1000 on: those of `make test` are below.
        tally = fuzz.run(parser, wanted, 1000 + at["files"] // CHUNK, broken.append)
        job.add(files=wanted, refused=tally.refused, accepted=tally.accepted, broken=len(broken))
        at["slowest_s"] = round(max(at.get("slowest_s", 0.0), tally.slowest), 3)
        at["memory_bytes"] = max(at.get("memory_bytes", 0), tally.largest)
        for error in broken:
            keep(parser.name, error.data, error)
        job.save()
    return job.finish()


def keep(name: str, data: bytes, error: Exception) -> None:
    """Put a file that broke a promise where it can be looked at."""
    kept = FOLDER / f"{name.replace(' ', '-')}-{zlib.crc32(data):08x}.bin"
    kept.write_bytes(data)
    say("soak", f"BROKEN {error} (kept as {kept})")


# ── imports ──────────────────────────────────────────────────────────────────
def imports() -> bool:
    """Broken files of every kind through the page, which is not loaded again in between."""
    return asyncio.run(_imports())


async def _imports() -> bool:
    from playwright.async_api import async_playwright

    from tests.browser.faults.imports import KINDS, attack
    from tools.browser import launch

    good = True
    with site() as address:
        async with async_playwright() as driver:
            browser = await launch(driver, webgpu=False)
            page = await browser.new_page()
            await page.goto(f"{address}__test__/blank.html")
            for kind in KINDS:
                job = Job(f"imports: {kind.name}", files=0, refused=0, accepted=0, broken=0, slowest_s=0.0)
                while job.at["files"] < scaled(IMPORTS):
                    count, seed = min(IMPORTS_A_RUN, scaled(IMPORTS) - job.at["files"]), 1000 + job.at["files"]
                    found = await attack(page, kind, count, seed)
                    for why, data in found["broken"]:
                        keep(f"import-{kind.name}", data, AssertionError(why))
                    job.add(files=count, broken=len(found["broken"]), **{n: found[n] for n in ("refused", "accepted")})
                    job.at["slowest_s"] = max(job.at["slowest_s"], found["slowest_s"])
                    job.save()
                good &= job.finish()
            await browser.close()
    return good


# ── devices ──────────────────────────────────────────────────────────────────
def devices() -> bool:
    """A device that is lost at random moments of learning and writing: the same bits as if it had stayed."""
    job = Job("devices", points=0, broken=0)
    while job.at["points"] < scaled(POINTS):
        count = min(POINTS_A_RUN, scaled(POINTS) - job.at["points"])
        seed = 1000 + job.at["points"]
        good = run_test("tests/faults/test_device_lost.py", EVERMIND_LOST_POINTS=count, EVERMIND_LOST_SEED=seed)
        job.add(points=count, broken=int(not good))
        job.save()
    return job.finish()


def gpu() -> bool:
    """The GPU process of a browser crashes, twice a browser: the same loss, on WebGPU and then on NumPy."""
    job = Job("gpu", crashes=0, broken=0)
    while job.at["crashes"] < 2 * scaled(BROWSERS):
        count = min(BROWSERS_A_RUN, scaled(BROWSERS) - job.at["crashes"] // 2)
        settings = {"EVERMIND_CRASH_BROWSERS": count, "EVERMIND_CRASH_SEED": 1000 + job.at["crashes"]}
        good = run_test("tests/browser/faults/test_gpu_crash.py", **settings)
        job.add(crashes=2 * count, broken=int(not good))
        job.save()
    return job.finish()


# ── power ────────────────────────────────────────────────────────────────────
def power() -> bool:
    """A browser that is killed while it writes: each record is the old or the new one."""
    return asyncio.run(_power())


async def _power() -> bool:
    from playwright.async_api import async_playwright

    from tests.browser.faults.power import Plan, Profile, survive, survive_migration

    job = Job("power", kills=0, acknowledged=0, old=0, new=0, migrations_killed=0, migrated=0, broken=0)
    at = job.at
    with site() as address:
        async with async_playwright() as driver:
            while at["kills"] < scaled(KILLS) or at["migrations_killed"] < scaled(MIGRATIONS):
                seed = 1000 + at["kills"] + at["migrations_killed"]
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    profile, plan = Profile(driver, Path(folder), address), Plan(random.Random(seed))
                    try:
                        if at["kills"] < scaled(KILLS):
                            job.add(**await survive(profile, plan, min(KILLS_A_PROFILE, scaled(KILLS) - at["kills"])))
                        else:
                            job.add(migrations_killed=1, migrated=int(await survive_migration(profile, plan, 200)))
                    except AssertionError as error:
                        job.add(broken=1, kills=1)
                        say("soak", f"BROKEN with seed {seed}: {error}")
                    finally:
                        await profile.close()
                job.save()
    return job.finish()


@contextmanager
def site() -> Iterator[str]:
    """The address of dist/, brought up to date, with the tests' pages beside it."""
    from tools.build_dist import build
    from tools.common import DIST
    from tools.serve import in_background, open_server

    build(cdn=False, folder=DIST)
    server = open_server(DIST, 0, {"/__test__/": ROOT / "tests" / "browser"})
    in_background(server)
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()


# ── load ─────────────────────────────────────────────────────────────────────
def load() -> bool:
    """Ten workers, each with a Python of its own, learn on one GPU at once what each learns alone."""
    job = Job("load", workers=WORKERS, broken=0)
    job.add(broken=int(not run_test("tests/browser/faults/test_load.py", EVERMIND_LEARNERS=WORKERS)))
    job.save()
    return job.finish()


# ── long runs ────────────────────────────────────────────────────────────────
def long() -> bool:
    """Ten thousand steps and two thousand texts in one page, so in one piece: nothing grows."""
    job, figures = Job("long", broken=0), FOLDER / "long-figures.json"
    counts = {"EVERMIND_LONG_STEPS": scaled(STEPS), "EVERMIND_LONG_TEXTS": scaled(GENERATIONS)}
    good = run_test("tests/browser/faults/test_long_runs.py", **counts, EVERMIND_LONG_FIGURES=str(figures))
    job.at |= json.loads(figures.read_text()) if figures.is_file() else {}
    job.add(broken=int(not good))
    job.save()
    return job.finish()


JOBS: dict[str, Callable[[], bool]] = {
    "files": files, "imports": imports, "devices": devices, "gpu": gpu, "power": power, "load": load, "long": long,
}  # fmt: skip


def main() -> int:
    """Run the jobs that are named, or all."""
    named = {name: only for name, _, only in (word.partition(":") for word in sys.argv[1:])}
    names = list(named) or list(JOBS)
    if unknown := set(names) - set(JOBS):
        say("soak", f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
        return 2
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products, which threads only slow down
    try:
        jobs = JOBS | {"files": lambda: files(named.get("files", ""))}
        good = [jobs[name]() for name in names]  # all of them, whatever one of them finds
        return 0 if all(good) else 1
    except KeyboardInterrupt:
        say("soak", "stopped; the next run goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
