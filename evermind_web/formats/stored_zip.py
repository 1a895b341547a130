"""A stored (not compressed) zip: several files as one that any zip tool opens, the same bytes for the same content."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from evermind_web.errors import FormatError

_EPOCH = (1980, 1, 1, 0, 0, 0)


def write(files: Mapping[str, bytes]) -> bytes:
    """The files, in their order, without dates."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data)
    return out.getvalue()


def read(data: bytes, name: str) -> dict[str, bytes]:
    """The files by path, each checked against its CRC-32; `name` is for messages.

    Raises FormatError for what is damaged, compressed, encrypted or named twice.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            # Members are stored, so none can be larger than the file: a zip bomb is refused before it is read.
            stored = all(i.compress_type == zipfile.ZIP_STORED and not i.flag_bits & 1 for i in infos)
            if not stored or sum(i.file_size for i in infos) > len(data):
                how = "packed again by another program, compressed or encrypted"
                raise FormatError(f"{name} was {how}. Import the exported file itself.")
            if len({i.filename for i in infos}) != len(infos):
                raise FormatError(f"{name} is damaged: it names a file twice. Export it again.")
            return {i.filename: archive.read(i) for i in infos}
    except (zipfile.BadZipFile, EOFError, ArithmeticError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name} is damaged or cut off ({error}). Export or download it again.") from None
