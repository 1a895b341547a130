"""`make soak`: the fault tests at full volume, for hours; `make test` runs about a hundredth of each.

    python -m tools.soak [files] [devices] [power] [long]        all of them without a name
    python -m tools.soak files:backup                            one parser of tests/faults/parsers.py

`SOAK_SCALE` shrinks every count (0.01 is about what `make test` does). A run that was stopped goes on where it was;
each job that is finished appends one line of figures to docs/reliability.jsonl. A broken promise is printed with the
bytes or the moment that broke it, kept under .cache/soak/, and makes the exit code 1.
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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.common import CACHE, ROOT, say

FOLDER = CACHE / "soak"
STATE = FOLDER / "state.json"
FIGURES = ROOT / "docs" / "reliability.jsonl"
FILES, CHUNK = 100_000, 1_000  # broken files a parser, in runs of so many with a seed each
POINTS = 50  # moments at which a device is lost
KILLS, MIGRATIONS = 280, 20
STEPS, GENERATIONS = 10_000, 2_000

Json = dict[str, Any]


class Progress:
    """How far each job is, on disk after every piece of it."""

    def __init__(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.jobs: Json = json.loads(STATE.read_text()) if STATE.is_file() else {}

    def of(self, job: str, fresh: Json) -> Json:
        """The job's figures so far."""
        found: Json = self.jobs.setdefault(job, fresh)
        return found

    def save(self) -> None:
        """Write it all down, whole or not at all."""
        part = STATE.with_suffix(".part")
        part.write_text(json.dumps(self.jobs, indent=1))
        part.replace(STATE)

    def finish(self, job: str) -> None:
        """Append the job's figures to the record and forget how far it was."""
        line = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "job": job, "scale": scale(), **self.jobs.pop(job)}
        line["machine"] = f"Python {platform.python_version()}, {os.cpu_count()} processors"
        with FIGURES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.save()
        say("soak", f"{job}: {json.dumps(line)}")


def scale() -> float:
    """`$SOAK_SCALE`, 1 without it."""
    return float(os.environ.get("SOAK_SCALE") or 1)


def scaled(count: int) -> int:
    """A count of this run, at least 1."""
    return max(1, round(count * scale()))


# ── files ────────────────────────────────────────────────────────────────────
def files(progress: Progress, only: str = "") -> bool:
    """Broken files into every parser, or into the one that is named."""
    from tests.faults import fuzz, parsers

    good = True
    for parser in (one for one in parsers.PARSERS if only in ("", one.name)):
        job, count = f"files: {parser.name}", scaled(FILES)
        at = progress.of(
            job,
            {"files": 0, "refused": 0, "accepted": 0, "broken": 0, "slowest_s": 0.0, "memory_bytes": 0, "seconds": 0.0},
        )
        while at["files"] < count:
            broken: list[fuzz.Broken] = []
            wanted, started = min(CHUNK, count - at["files"]), time.perf_counter()
            # Seeds from 1000 on: those of `make test` are below.
            tally = fuzz.run(parser, wanted, 1000 + at["files"] // CHUNK, broken.append)
            at["files"] += wanted
            at["refused"] += tally.refused
            at["accepted"] += tally.accepted
            at["broken"] += len(broken)
            at["slowest_s"] = round(max(at["slowest_s"], tally.slowest), 3)
            at["memory_bytes"] = max(at["memory_bytes"], tally.largest)
            at["seconds"] = round(at["seconds"] + time.perf_counter() - started, 1)
            for error in broken:
                kept = FOLDER / f"{parser.name.replace(' ', '-')}-{abs(hash(error.data)):x}.bin"
                kept.write_bytes(error.data)
                say("soak", f"BROKEN {error} (kept as {kept})")
            progress.save()
        good &= at["broken"] == 0
        progress.finish(job)
    return good


# ── devices ──────────────────────────────────────────────────────────────────
def devices(progress: Progress) -> bool:
    """A device that is lost at random moments of learning: the same bits as if it had stayed."""
    import pytest

    os.environ["EVERMIND_LOST_POINTS"] = str(scaled(POINTS))
    started = time.perf_counter()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests/faults/test_device_lost.py")])
    at = progress.of("devices", {})
    at |= {"points": scaled(POINTS), "failed": int(code != 0), "seconds": round(time.perf_counter() - started, 1)}
    progress.finish("devices")
    return code == 0


# ── power ────────────────────────────────────────────────────────────────────
def power(progress: Progress) -> bool:
    """A browser that is killed while it writes: each record is the old or the new one."""
    asyncio.run(_power(progress))
    return True


async def _power(progress: Progress) -> None:
    from playwright.async_api import async_playwright

    from tests.browser.faults.power import Plan, Profile, survive, survive_migration
    from tools.build_dist import build
    from tools.common import DIST
    from tools.serve import in_background, open_server

    build(cdn=False, folder=DIST)
    server = open_server(DIST, 0, {"/__test__/": ROOT / "tests" / "browser"})
    in_background(server)
    fresh = {"kills": 0, "acknowledged": 0, "old": 0, "new": 0, "migrations_killed": 0, "migrated": 0, "seconds": 0.0}
    at = progress.of("power", fresh)
    try:
        async with async_playwright() as driver:
            while at["kills"] < scaled(KILLS) or at["migrations_killed"] < scaled(MIGRATIONS):
                started, seed = time.perf_counter(), 1000 + at["kills"] + at["migrations_killed"]
                with tempfile.TemporaryDirectory() as folder:
                    profile, plan = Profile(driver, Path(folder), server.url), Plan(random.Random(seed))
                    try:
                        if at["kills"] < scaled(KILLS):
                            tally = await survive(profile, plan, min(10, scaled(KILLS) - at["kills"]))
                            for name, count in tally.items():
                                at[name] += count
                        else:
                            at["migrated"] += int(await survive_migration(profile, plan, 200))
                            at["migrations_killed"] += 1
                    finally:
                        await profile.close()
                at["seconds"] = round(at["seconds"] + time.perf_counter() - started, 1)
                progress.save()
    finally:
        server.shutdown()
        server.server_close()
    progress.finish("power")


# ── long runs ────────────────────────────────────────────────────────────────
def long(progress: Progress) -> bool:
    """Ten thousand steps and two thousand texts in one page: nothing grows."""
    import pytest

    os.environ["EVERMIND_LONG_STEPS"] = str(scaled(STEPS))
    os.environ["EVERMIND_LONG_TEXTS"] = str(scaled(GENERATIONS))
    os.environ["EVERMIND_LONG_FIGURES"] = str(FOLDER / "long.json")
    started = time.perf_counter()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests/browser/faults/test_long_runs.py")])
    at = progress.of("long", {})
    at |= json.loads((FOLDER / "long.json").read_text()) if (FOLDER / "long.json").is_file() else {}
    at |= {"failed": int(code != 0), "seconds": round(time.perf_counter() - started, 1)}
    progress.finish("long")
    return code == 0


JOBS: dict[str, Callable[[Progress], bool]] = {"files": files, "devices": devices, "power": power, "long": long}


def main() -> int:
    """Run the jobs that are named, or all."""
    named = {name: only for name, _, only in (word.partition(":") for word in sys.argv[1:])}
    names = list(named) or list(JOBS)
    if unknown := set(names) - set(JOBS):
        say("soak", f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
        return 2
    progress = Progress()
    try:
        jobs = JOBS | {"files": lambda progress: files(progress, named.get("files", ""))}
        good = [jobs[name](progress) for name in names]  # all of them, whatever one of them finds
        return 0 if all(good) else 1
    except KeyboardInterrupt:
        say("soak", "stopped; the next run goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
