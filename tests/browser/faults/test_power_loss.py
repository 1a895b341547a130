"""The browser is killed while it saves, replaces, renames, deletes, imports and migrates; and many tabs at once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Playwright

from tests.browser.faults.power import LOOK, WORK, Plan, Profile, survive, survive_migration

KILLS = 4  # `make soak`: 300


async def test_a_killed_browser_leaves_each_record_old_or_new(
    playwright: Playwright, server: str, tmp_path: Path
) -> None:
    profile = Profile(playwright, tmp_path, server)
    try:
        tally = await survive(profile, Plan(random.Random(3)), KILLS)
    finally:
        await profile.close()
    assert tally["kills"] == KILLS
    assert tally["acknowledged"] > 10, "it must have been at work"
    assert not tally["emptied by the browser, and said"]
    assert tally["torn"], "no log was torn"


async def test_a_log_that_a_kill_has_torn_costs_nothing_later(
    playwright: Playwright, server: str, tmp_path: Path
) -> None:
    """Chromium writes on behind the tear, and took that for damage at the start after it: everything was lost."""
    profile, plan = Profile(playwright, tmp_path, server), Plan(random.Random(5))
    try:
        await (await profile.open()).evaluate(WORK, plan.extend(5, 2000))
        await profile.kill()
        torn = profile.log()
        assert profile.tear()
        page = await profile.open()
        assert len((await page.evaluate(LOOK))["found"]) == len(plan.states[-1])
        await page.evaluate(WORK, plan.extend(5, 2000))
        async with asyncio.timeout(10):
            while torn.exists():  # noqa: ASYNC110 - the browser does not say when
                await asyncio.sleep(0.05)
        await profile.kill()
        found = await (await profile.open()).evaluate(LOOK)
        assert (found["notice"], sorted(found["found"])) == ("", sorted(plan.states[-1]))
    finally:
        await profile.close()


# The names of what there is are noted after a change is acknowledged.
NOTED = """async (names) => {
    const notes = await caches.open("evermind_web notes");
    const noted = async () => (await (await notes.matchAll()).at(-1)?.json())?.sort().join();
    while ((await noted()) !== names.join()) await null;
}"""


@pytest.mark.parametrize("part", ["MANIFEST-*", "CURRENT"])
async def test_a_database_that_the_browser_empties_is_said_to_be_lost(
    playwright: Playwright, server: str, tmp_path: Path, part: str
) -> None:
    """Chromium throws a damaged database away and begins a new one, without an error."""
    profile = Profile(playwright, tmp_path, server)
    try:
        plan = Plan(random.Random(5))
        plan.extend(5, 2000)
        page, names = await profile.open(), sorted(plan.states[-1])
        await page.evaluate(WORK, plan.changes)
        await page.evaluate(NOTED, names)
        await profile.kill()
        profile.damage(part)
        found = await (await profile.open()).evaluate(LOOK)
        await profile.kill()
        assert found["found"] == {}
        assert "emptied it (IndexedDB (database was corrupt)" in found["notice"]
        assert found["notice"].endswith(f"Gone: {', '.join(names)}; restore a backup")
        assert (await (await profile.open()).evaluate(LOOK))["notice"] == "", "it is said once"
    finally:
        await profile.close()


async def test_a_migration_that_is_killed_is_done_or_not_begun(
    playwright: Playwright, server: str, tmp_path: Path
) -> None:
    profile = Profile(playwright, tmp_path, server)
    try:
        await survive_migration(profile, Plan(random.Random(4)), 60)
    finally:
        await profile.close()


TAB = """async ([tab, count]) => {
    const { openStore } = await import("/store.mjs");
    const store = await openStore({ name: "tabs" });
    const said = [];
    const attempt = async (what, promise) => said.push([what, await promise.then(() => "done", (e) => e.message)]);
    for (let i = 0; i < count; i++) {
        const data = new Uint8Array(1000).fill(tab * 16 + i);
        await attempt(`own ${tab}.${i}`, store.save(`own ${tab}.${i}`, data, { kind: "base" }));
        await attempt(`shared ${i}`, store.save(`shared ${i}`, data, { kind: "base" }));
        if (i % 3 === 2) await attempt(`delete ${tab}.${i}`, store.delete(`own ${tab}.${i}`));
        if (i % 3 === 1) await attempt(`rename ${tab}.${i}`, store.rename(`own ${tab}.${i}`, `new ${tab}.${i}`));
    }
    return said;
}"""
ALL = """async () => {
    const { openStore } = await import("/store.mjs");
    const store = await openStore({ name: "tabs" });
    const found = {};
    for (const { name } of await store.list()) found[name] = (await store.load(name)).data[0];
    return found;
}"""


async def test_five_tabs_at_once_lose_no_update_without_a_word(context: BrowserContext) -> None:
    tabs = [await context.new_page() for _ in range(5)]
    for tab in tabs:
        await tab.goto("/__test__/blank.html")
    count = 9
    said = await asyncio.wait_for(
        asyncio.gather(*(tab.evaluate(TAB, [number, count]) for number, tab in enumerate(tabs))), timeout=60
    )
    found = await tabs[0].evaluate(ALL)
    for number, answers in enumerate(said):
        for what, answer in answers:
            if what.startswith("shared"):
                assert answer == "done" or "is taken" in answer
            else:
                assert answer == "done", (number, what, answer)
        for i in range(count):
            name = f"new {number}.{i}" if i % 3 == 1 else f"own {number}.{i}"
            assert found.get(name) == (None if i % 3 == 2 else number * 16 + i)
    for i in range(count):
        winners = [number for number, answers in enumerate(said) if [f"shared {i}", "done"] in answers]
        assert len(winners) == 1, f"shared {i} was acknowledged to {winners}"
        assert found[f"shared {i}"] == winners[0] * 16 + i


UPGRADE = """async (versions) => {
    const { openStore } = await import("/store.mjs");
    const { MIGRATIONS } = await import("/store_engines.mjs");
    const more = Array.from({ length: versions }, (_, i) => (db) => db.createObjectStore(`v${i}`));
    const store = await openStore({ name: "upgrade", migrations: [...MIGRATIONS, ...more] });
    await store.save(`by ${versions}`, new Uint8Array(10), { kind: "base", replace: true });
    return (await store.list()).length;
}"""


async def test_tabs_of_five_versions_never_block_each_other_for_ever(context: BrowserContext) -> None:
    tabs = [await context.new_page() for _ in range(5)]
    for tab in tabs:
        await tab.goto("/__test__/blank.html")
    answers = await asyncio.wait_for(
        asyncio.gather(*(tab.evaluate(UPGRADE, n) for n, tab in enumerate(tabs)), return_exceptions=True), timeout=60
    )
    assert answers[-1] in range(1, 6), "the newest version opens"
    for answer in answers[:-1]:
        assert isinstance(answer, int) or "newer version" in str(answer) or "close other tabs" in str(answer), answer
