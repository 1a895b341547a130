"""Kills a browser in the middle of its work and looks at what the next one finds in the same profile.

The driver decides every change and hears when each begins, after the one before was acknowledged. So it knows which
two states the store may be in after a kill: that of the last acknowledged change, or that of the one that had begun.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from playwright.async_api import Page, Playwright

from tools.browser import config

PORT_FILE = "DevToolsActivePort"
BLOCK, HEADER = 2**15, 7  # bytes, of LevelDB's log and of its entries
State = dict[str, tuple[int, int]]  # name -> size and CRC-32
Change = dict[str, Any]

# Bytes are made in the page from a seed, as `content` makes them here.
WORK = """async (changes) => {
    const { openStore } = await import("/store.mjs");
    const content = (seed, size) => {
        const bytes = new Uint8Array(size);
        for (let i = 0; i < size; i++) bytes[i] = seed * 31 + i * 7 + (i >> 8);
        return bytes;
    };
    const item = ({ name, seed, size }) => ({ name, data: content(seed, size), kind: "base" });
    const store = await openStore({ name: "power" });
    for (const change of changes) {
        await begins(change.number);
        if (change.do === "save") await store.saveMany(change.items.map(item), { replace: true });
        else if (change.do === "rename") await store.rename(change.name, change.to);
        else await store.delete(change.name);
    }
}"""
MIGRATE = """async (changes) => {
    const { openStore } = await import("/store.mjs");
    const { MIGRATIONS } = await import("/store_engines.mjs");
    const later = (db, tx) => {
        db.createObjectStore("later");
        const records = tx.objectStore("records");
        records.openCursor().then(async function each(cursor) {
            if (!cursor) return;
            await cursor.update({ ...cursor.value, migrated: true });
            return each(await cursor.continue());
        });
    };
    const store = await openStore({ name: "power", migrations: [...MIGRATIONS, later] });
    await store.list();
}"""
LOOK = """async (migrated) => {
    const { openStore } = await import("/store.mjs");
    const { MIGRATIONS } = await import("/store_engines.mjs");
    const open = (migrations) => openStore({ name: "power", migrations });
    const store = await open(MIGRATIONS).catch(() => open([...MIGRATIONS, (db) => db.createObjectStore("later")]));
    const found = {};
    for (const { name, size, crc32 } of await store.list()) {
        const { data } = await store.load(name);  // checks length and CRC-32
        found[name] = [data.length, crc32];
    }
    store.close();
    const raw = await new Promise((resolve, reject) => {
        const opening = indexedDB.open("power");
        opening.onerror = () => reject(opening.error);
        opening.onsuccess = () => {
            const tx = opening.result.transaction(["records", "blobs"]);
            const blobs = tx.objectStore("blobs").getAllKeys();
            const rows = tx.objectStore("records").getAll();
            tx.oncomplete = () => {
                opening.result.close();
                resolve({ blobs: blobs.result, rows: rows.result });
            };
        };
    });
    const owned = raw.rows.flatMap((row) => row.blobs);
    return { found, persistent: store.persistent, notice: store.notice,
             lost: raw.blobs.filter((key) => !owned.includes(key)).length,
             migrated: raw.rows.filter((row) => row.migrated).length, rows: raw.rows.length };
}"""


def content(seed: int, size: int) -> bytes:
    """The bytes that the page makes of a seed."""
    places = np.arange(size, dtype=np.uint32)
    return (seed * 31 + places * 7 + (places >> 8)).astype(np.uint8).tobytes()


@dataclass
class Plan:
    """Changes in their order, and the state of the store after each of them."""

    random: random.Random
    changes: list[Change] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [{}])

    def extend(self, count: int, largest: int) -> list[Change]:
        """Draw `count` further changes; returns them."""
        for _ in range(count):
            state = dict(self.states[-1])
            change = self._draw(state, largest)
            self.changes.append(change | {"number": len(self.states)})
            self.states.append(state)
        return self.changes[-count:]

    def forget(self, state: State) -> None:
        """Go on from what was found; what was planned after it never happened."""
        self.states.append(state)

    def _draw(self, state: State, largest: int) -> Change:
        source, names = self.random, list(state)
        what = source.choice(("save", "save", "import", "replace", "rename", "delete")) if len(names) > 2 else "save"
        if what == "rename":
            old, new = source.choice(names), f"r{len(self.states)}"
            state[new] = state.pop(old)
            return {"do": "rename", "what": what, "name": old, "to": new}
        if what == "delete":
            old = source.choice(names)
            del state[old]
            return {"do": "delete", "what": what, "name": old}
        count = source.randrange(2, 6) if what == "import" else 1
        chosen = [source.choice(names)] if what == "replace" else [f"n{len(self.states)}.{i}" for i in range(count)]
        items = []
        for name in chosen:
            seed, size = source.randrange(256), source.randrange(largest)
            items.append({"name": name, "seed": seed, "size": size})
            state[name] = (size, zlib.crc32(content(seed, size)))
        return {"do": "save", "what": what, "items": items}


class Profile:
    """A browser on a profile of its own, started as a process that can be killed."""

    def __init__(self, playwright: Playwright, folder: Path, address: str) -> None:
        self.playwright, self.folder, self.address = playwright, folder, address
        self.began, self.working = 0, asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._browser: Any = None

    async def open(self) -> Page:
        """Start the browser and open an empty page of ours."""
        port_file = self.folder / PORT_FILE
        port_file.unlink(missing_ok=True)
        flags = [*config.flags(webgpu=False), "--remote-debugging-port=0", f"--user-data-dir={self.folder}"]
        self._process = await asyncio.create_subprocess_exec(
            str(config.chromium()), *flags, "about:blank", start_new_session=True,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(600):
            if port_file.is_file() and (words := port_file.read_text().split()):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the browser did not start")
        self._browser = await self.playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{words[0]}")
        page: Page = await self._browser.contexts[0].new_page()
        await page.expose_function("begins", self._begins)
        await page.goto(f"{self.address}__test__/blank.html")
        return page

    def _begins(self, number: int) -> None:
        self.began = number
        self.working.set()

    async def kill(self) -> None:
        """SIGKILL for the browser and every process of its own."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None

    def log(self) -> Path:
        """Where the browser's database writes each change first; others lie there only while it begins a new one."""
        return max(self.folder.glob("**/*.indexeddb.leveldb/*.log"))

    def tear(self) -> bool:
        """Leave a further entry in the log that was cut off while it was written, as rare kills do; if it has room."""
        log = self.log()
        room = BLOCK - log.stat().st_size % BLOCK - HEADER
        if room < 100:
            return False
        with log.open("ab") as file:
            file.write(bytes(4) + room.to_bytes(2, "little") + b"\x01" + b"half")  # CRC, length, "not in parts", bytes
        return True

    def damage(self, part: str) -> None:
        """Overwrite the one file of the browser's database that matches `part`."""
        (file,) = self.folder.glob(f"**/*.indexeddb.leveldb/{part}")
        file.write_bytes(b"x" * file.stat().st_size)

    def evidence(self) -> str:
        """What the browser's database wrote about its last two starts."""
        logs = sorted(self.folder.glob("**/*.leveldb/LOG*")) + sorted(self.folder.glob("**/corruption_info.json"))
        return " | ".join(f"{path.name}: {path.read_text(errors='replace')[-800:]}" for path in logs)

    async def close(self) -> None:
        """End what still runs."""
        if self._process is not None:
            await self.kill()


async def survive(profile: Profile, plan: Plan, kills: int, largest: int = 200_000) -> Counter[str]:
    """Kill the browser `kills` times while it changes the store; assert after each that nothing third is found.

    After every second kill the log is torn, too. Returns how many `kills`, logs `torn`, changes `acknowledged`, states
    found `old` and `new`, and what was cut off: "at save", "at import", "at replace", "at rename" or "at delete".
    """
    tally: Counter[str] = Counter()
    page = await profile.open()
    for number in range(kills):
        base = len(plan.states) - 1
        changes = plan.extend(400, largest)
        profile.working.clear()
        work = asyncio.create_task(page.evaluate(WORK, changes))
        await asyncio.wait_for(profile.working.wait(), 60)
        await asyncio.sleep(plan.random.uniform(0.0, 0.8))
        await profile.kill()
        await asyncio.gather(work, return_exceptions=True)
        tally["torn"] += number % 2 == 0 and profile.tear()
        page = await profile.open()
        found = await page.evaluate(LOOK)
        state = {name: (size, crc) for name, (size, crc) in found["found"].items()}
        if "emptied" in found["notice"] and not state:  # the browser's own loss, which is said
            tally += Counter({"kills": 1, "emptied by the browser, and said": 1})
            plan.forget(state)
            continue
        began = profile.began
        cut = changes[began - base - 1]["what"]
        old, new = plan.states[began - 1], plan.states[began]
        if state not in (old, new):
            about = f"persistent {found['persistent']}, {found['rows']} rows; {profile.evidence()}"
            raise AssertionError(f"neither old nor new after {cut}: {_difference(old, state)}; {about}")
        assert found["lost"] == 0, "bytes that belong to no record"
        tally += Counter({"kills": 1, "acknowledged": began - 1 - base, f"at {cut}": 1})
        tally["new" if state == new else "old"] += 1
        plan.forget(state)
    return tally


def _difference(old: State, found: State) -> str:
    lost, added = sorted(old.keys() - found.keys()), sorted(found.keys() - old.keys())
    changed = sorted(name for name in old.keys() & found.keys() if old[name] != found[name])
    return f"lost {lost}, added {added}, changed {changed} of {len(old)}"


async def survive_migration(profile: Profile, plan: Plan, records: int) -> bool:
    """Kill the browser while it migrates; every record is migrated, or none is. Returns whether it was."""
    page = await profile.open()
    await page.evaluate(WORK, plan.extend(records, 2000))
    work = asyncio.create_task(page.evaluate(MIGRATE, []))
    await asyncio.sleep(plan.random.uniform(0.0, 0.15))
    await profile.kill()
    await asyncio.gather(work, return_exceptions=True)
    found = await (await profile.open()).evaluate(LOOK)
    state = {name: (size, crc) for name, (size, crc) in found["found"].items()}
    assert state == plan.states[-1]
    assert found["migrated"] in (0, found["rows"]), "half of the records were migrated"
    return bool(found["migrated"])
