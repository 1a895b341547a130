"""What can be measured of how a page fits its window: targets, cut and overlapping things, scrolling, jumps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from playwright.async_api import Page

# A folder for pictures of every screen that the tests look at, to be looked at by people; none are taken without it.
PICTURES = os.environ.get("PICTURES")
MAX_SHIFT = 0.1  # "good" by web.dev's measure of layout shifts, here summed over a whole story

# WCAG 2.5.8 asks for 24 px; the buttons that each step is about are larger. What lies in a label is as large as that.
PROBLEMS = """() => {
    const found = [];
    const root = document.querySelector("dialog[open]") ?? document.body;
    if (document.documentElement.scrollWidth > innerWidth)
        found.push(`scrolls sideways: ${document.documentElement.scrollWidth} > ${innerWidth}`);
    const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true })
        && !element.matches(".skip, .visually-hidden");
    const name = (element) => `${element.tagName} ${element.dataset.testid ?? element.id} "${
        (element.getAttribute("aria-label") ?? element.textContent).slice(0, 40)}"`;
    const targets = [...root.querySelectorAll("button, .button, a, input, select, textarea, summary")].filter(shown);
    const boxes = targets.map((element) => [element, (element.closest("label") ?? element).getBoundingClientRect()]);
    for (const [element, box] of boxes) {
        const least = element.matches(".primary") ? 40 : 24;
        if (box.height < least - 0.5 || box.width < least - 0.5)
            found.push(`${name(element)} is only ${box.width.toFixed(0)} × ${box.height.toFixed(0)}`);
        if (box.left < -0.5 || box.right > innerWidth + 0.5) found.push(`${name(element)} leaves the window`);
        if (element.scrollWidth > element.clientWidth + 1 && element.matches("button, .button, summary"))
            found.push(`${name(element)} is cut`);
    }
    for (const element of root.querySelectorAll("h1, h2, p, dt, dd, label, legend, li, .hint, span"))
        if (shown(element) && element.clientWidth && element.scrollWidth > element.clientWidth + 1)
            found.push(`${name(element)} is cut: ${element.scrollWidth} > ${element.clientWidth}`);
    const still = boxes.filter(([element]) => !element.closest(".toasts"));
    still.forEach(([one, a], i) => still.slice(i + 1).forEach(([other, b]) => {
        if (one.closest("label")?.contains(other) || one.contains(other) || other.contains(one)) return;
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 1) found.push(`${name(one)} and ${name(other)} overlap`);
    }));
    return found;
}"""

# Buffered: from the first paint on, also what moved before this ran. What a click has moved does not count: the browser
# gives it half a second, which is too little for an answer of the worker while the machine is busy.
WATCH_SHIFTS = """() => {
    globalThis.shifts = [];
    let acted = -Infinity;
    for (const kind of ["pointerdown", "keydown", "change"])
        addEventListener(kind, ({ timeStamp }) => (acted = timeStamp), { capture: true });
    new PerformanceObserver((list) => {
        for (const { hadRecentInput, startTime, value, sources } of list.getEntries())
            if (!hadRecentInput && startTime - acted > 2000) shifts.push([value, sources.map(({ node }) =>
                node?.id || node?.dataset?.testid || node?.className || node?.nodeName).join(", ")]);
    }).observe({ type: "layout-shift", buffered: true });
}"""


async def look(page: Page, name: str) -> None:
    """Assert that what is shown fits the window; with `PICTURES=folder` also keep a picture of it.

    Raises:
        AssertionError: each thing that is too small, cut, covered or outside.
    """
    if PICTURES:
        whole = not await page.locator("dialog[open]").count()
        await page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=whole)
    problems = await page.evaluate(PROBLEMS)
    assert problems == [], f"{name}: " + "\n".join(problems)


async def shifts(page: Page) -> list[Any]:
    """What moved without being asked to, since the page was opened: [how much, what]. Needs WATCH_SHIFTS before."""
    found: list[Any] = await page.evaluate("shifts")
    return found
