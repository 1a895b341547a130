"""Several files as one zip: the same bytes for the same content, and nothing that could be a trap is unpacked."""

from __future__ import annotations

import io
import warnings
import zipfile

import pytest

from evermind_web.errors import FormatError
from evermind_web.formats import stored_zip

FILES = {"manifest.json": b"{}", "data/ä.bin": bytes(range(256)), "empty": b""}


def test_files_come_back_in_their_order_and_any_zip_tool_opens_them() -> None:
    data = stored_zip.write(FILES)
    assert list(stored_zip.read(data, "the file").items()) == list(FILES.items())
    assert data == stored_zip.write(dict(FILES))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None


def test_a_compressed_one_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", bytes(10**6))
    with pytest.raises(FormatError, match="the file was packed again by another program"):
        stored_zip.read(out.getvalue(), "the file")


def test_a_name_that_comes_twice_is_refused() -> None:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("a", b"")
    with pytest.raises(FormatError, match="names a file twice"):
        stored_zip.read(out.getvalue(), "the file")


def test_every_cut_and_every_changed_byte_of_a_member_is_found() -> None:
    data = stored_zip.write({"a": b"0123456789"})
    for length in range(len(data)):
        with pytest.raises(FormatError, match="damaged or cut off"):
            stored_zip.read(data[:length], "the file")
    at = data.index(b"0123456789")
    for place in range(at, at + 10):
        with pytest.raises(FormatError, match="CRC-32"):
            stored_zip.read(data[:place] + b"x" + data[place + 1 :], "the file")
