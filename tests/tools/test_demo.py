"""When the demo drives the page by itself, and what it reads off the page."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from tools import demo
from tools.common import ToolError
from tools.demo import LOSSES, headless


@pytest.mark.parametrize(
    ("variables", "driven"),
    [
        ({}, True),
        ({"DISPLAY": ":0"}, False),
        ({"WAYLAND_DISPLAY": "wayland-0"}, False),
        ({"DISPLAY": ":0", "HEADLESS": "1"}, True),
        ({"HEADLESS": "0"}, False),
    ],
)
def test_headless_without_a_display_or_when_asked(
    variables: dict[str, str], driven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "HEADLESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert headless() is driven


def test_losses_are_read_off_the_summary() -> None:
    text = (
        "Stopped and kept: 41 steps in 40 s. Loss on text it has not seen: 6.30 → 4.67 (guessing by frequency: 5.28)."
    )
    found = LOSSES.search(text)
    assert found is not None
    assert found.groups() == ("6.30", "4.67", "5.28")


@pytest.mark.parametrize(("broken", "taken_after"), [("", [3]), ("train", [2])])
async def test_the_picture_is_taken_where_the_result_is_seen(
    broken: str, taken_after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    pictures: list[int] = []  # how much had been told by then
    page = MagicMock(evaluate=AsyncMock(return_value=1.0))
    page.screenshot = AsyncMock(side_effect=lambda **_: pictures.append(len(told)))
    page.get_by_test_id.return_value.is_visible = AsyncMock(return_value=False)
    context = MagicMock(new_page=AsyncMock(return_value=page), close=AsyncMock())
    browser = MagicMock(new_context=AsyncMock(return_value=context))

    def stage(name: str) -> Any:
        async def tell(_: demo.Story) -> str:
            told.append(name)
            if name == broken:
                raise ToolError("broken")
            return ""

        return name, tell

    monkeypatch.setattr(demo, "STAGES", tuple(stage(name) for name in ("open", "train", "compare", "save", "files")))
    assert await demo.tell(browser, "") == bool(broken)
    assert pictures == taken_after
