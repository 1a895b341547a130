"""Broken files of every kind that the page imports, through its own way in."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from playwright.async_api import Page

from tests.browser.conftest import PageLog
from tests.browser.faults.imports import KINDS, attack

FILES = 12  # `make soak`: 5,000


async def test_ck8_broken_files_are_refused_by_the_page_and_change_no_record(page: Page, page_log: PageLog) -> None:
    await page.goto("/__test__/blank.html")
    for kind in KINDS:
        found = await attack(page, kind, FILES, seed=1)
        print(kind.name, found)
        assert not found["broken"], found["broken"][0]
        assert found["refused"] > 1
        assert kind.name == "another format" or found["accepted"] >= found["valid"]
    assert not page_log.problems


def far(data: bytes) -> bytes:
    """A zip whose end says that its directory lies 4 GiB further on: no 32-bit Python can go there."""
    end = data.rindex(b"PK\x05\x06")
    return data[: end + 16] + struct.pack("<I", 2**32 - 1 - 2**20) + data[end + 20 :]


@pytest.mark.parametrize("name", ["export file", "backup"])
async def test_ck8_a_zip_that_points_out_of_reach_of_32_bits_is_refused(page: Page, name: str) -> None:
    await page.goto("/__test__/blank.html")
    kind = next(kind for kind in KINDS if kind.name == name)
    found = await attack(page, replace(kind, mutators=(lambda data, random: far(data),)), 1, seed=1)
    assert not found["broken"], found["broken"][0]
    assert found["refused"] == 1
