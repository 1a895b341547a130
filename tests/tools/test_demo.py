"""When the demo drives the page by itself, and what it reads off the page."""

from __future__ import annotations

import pytest

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
