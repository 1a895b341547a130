"""Where paged weights come from: byte ranges of a file, of memory or of a web server, read as tensors of a checkpoint.

A checkpoint (EVL0) keeps the four tensors of an expert one after another, so an expert is one range. Nothing here
keeps weights: what is read is handed on.
"""

from __future__ import annotations

import os
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evermind_web import environment, strict_json
from evermind_web.checks import checked
from evermind_web.errors import FormatError, InvalidArgumentError, StorageError
from evermind_web.formats import evl0, package
from evermind_web.formats.arch import FIELDS, Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import TRAILER_BYTES, TRAILER_MAGIC, check_guarded_length
from evermind_web.formats.sniff import not_a, truncated
from evermind_web.formats.values import ITEM_BYTES, VERSION_F32, check_version
from evermind_web.params import F32, ParamSpec, ParamTable, check_arch

PIECE = 1 << 16  # bytes read at once where a whole file is checked


# ── bytes ────────────────────────────────────────────────────────────────────
@runtime_checkable
class ByteSource(Protocol):
    """`size` bytes, of which any range can be read."""

    size: int
    local: bool  # reading all of it once, for its CRC, costs little

    async def read(self, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start` on. Raises StorageError if they cannot be had."""
        ...

    def close(self) -> None:
        """Nothing is read afterwards."""
        ...


class MemoryBytes:
    """Bytes that are in memory already, such as those that a store gave; they do not count for a ceiling."""

    local = True

    @checked
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    async def read(self, start: int, count: int) -> bytes:
        """See `ByteSource`."""
        return _whole(bytes(self._data[start : start + count]), count, "the data")

    def close(self) -> None:
        """See `ByteSource`."""


class FileBytes:
    """A file, open until `close`. Raises StorageError if it cannot be opened.

    A file that takes its place is not seen; one that is written to is refused, before weights of two models mix.
    """

    local = True

    @checked
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            self._file = self._path.open("rb", buffering=0)
            self.size, self._changed = self._state()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error.strerror}") from error

    async def read(self, start: int, count: int) -> bytes:
        """See `ByteSource`."""
        try:
            self._file.seek(start)
            data = self._file.read(count) or b""
            if self._state() != (self.size, self._changed):
                raise StorageError(f"{self._path} was written to since it was opened; open it again")
            return _whole(data, count, str(self._path))
        except (OSError, ValueError) as error:
            raise StorageError(f"{self._path} cannot be read any more: {error}; open it again") from error

    def _state(self) -> tuple[int, int]:
        """Size in bytes, and when it was written to last."""
        at = os.fstat(self._file.fileno())
        return at.st_size, at.st_mtime_ns

    def close(self) -> None:
        """See `ByteSource`."""
        self._file.close()


class HttpBytes:
    """A file on a web server that answers range requests. Make one with `HttpBytes.open`.

    fetch: in a page, `js.fetch` (or a wrapper of it); CPython needs none. The file must not change while it is open:
    an answer with another ETag is refused.
    """

    local = False

    @checked
    def __init__(self, url: str, fetch: Callable[..., Any] | None = None) -> None:
        self.url, self.size, self._tag = url, 0, ""
        self._fetch: Any = fetch

    @classmethod
    @checked
    async def open(cls, url: str, fetch: Callable[..., Any] | None = None) -> HttpBytes:
        """Ask for the first byte, which tells the size. Raises StorageError: not there, or a server without ranges."""
        if fetch is None and environment.IN_BROWSER:
            raise InvalidArgumentError("in a page HttpBytes needs fetch=js.fetch")
        source = cls(url, fetch)
        _, headers = await source._range(0, 1)
        total = headers.get("content-range", "").rpartition("/")[2]
        if not total.isdigit():
            raise StorageError(f"{url}: the server does not say how long the file is; use another one, or download it")
        source.size, source._tag = int(total), headers.get("etag", "")
        return source

    async def read(self, start: int, count: int) -> bytes:
        """See `ByteSource`."""
        data, headers = await self._range(start, count)
        if headers.get("etag", "") != self._tag:
            raise StorageError(f"{self.url} has changed on the server; open it again")
        return _whole(data, count, self.url)

    async def _range(self, start: int, count: int) -> tuple[bytes, dict[str, str]]:
        wanted = {"Range": f"bytes={start}-{start + count - 1}"}
        status, data, headers = await (self._by_fetch(wanted) if self._fetch else self._by_urllib(wanted))
        if status != 206:
            why = "it ignores range requests" if status == 200 else f"HTTP {status}"
            raise StorageError(f"{self.url}: the server cannot give a part of the file ({why}); download it instead")
        return data, headers

    async def _by_fetch(self, wanted: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        try:
            response = await self._fetch(self.url, environment.to_js_object({"headers": wanted}))
            found = {name: response.headers.get(name) or "" for name in ("content-range", "etag")}
            body = b"" if response.status != 206 else (await response.arrayBuffer()).to_bytes()
        except Exception as error:  # JsException: offline, another origin
            raise StorageError(f"{self.url} cannot be fetched: {environment.js_error_message(error)}") from error
        return int(response.status), body, found

    async def _by_urllib(self, wanted: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        return _urllib_range(self.url, wanted)  # CPython only, where nobody else waits for this thread

    def close(self) -> None:
        """See `ByteSource`."""


def _urllib_range(url: str, wanted: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=wanted), timeout=60) as response:
            body = response.read() if response.status == 206 else b""
            return response.status, body, {k.lower(): v for k, v in response.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b"", {}
    except OSError as error:
        raise StorageError(f"{url} cannot be fetched: {error}") from error


def _whole(data: bytes, count: int, what: str) -> bytes:
    if len(data) != count:
        raise StorageError(
            f"{what} ended early: {len(data)} of {count} bytes came; it was cut or is still being written"
        )
    return data


# ── tensors ──────────────────────────────────────────────────────────────────
@runtime_checkable
class ExpertSource(Protocol):
    """What a paged model reads from."""

    arch: Arch
    expert_stored_bytes: int  # of one expert, as it is read

    async def read(self, layer: int, expert: int) -> F32:
        """w1 (H,D), b1 (H), w2 (D,H), b2 (D) of a routed expert, one after another, float32."""
        ...

    async def values(self, name: str, first: int, count: int) -> F32:
        """`count` values of a tensor from its element `first` on, float32."""
        ...

    def close(self) -> None:
        """Nothing is read afterwards."""
        ...


class CheckpointSource:
    """An EVL0 checkpoint, or the one inside a package (EVM1), in a `ByteSource`. Make one with `open`."""

    def __init__(self, data: ByteSource, arch: Arch, version: int, start: int) -> None:
        self._data, self.arch, self._version, self._start = data, arch, version, start
        self._table = ParamTable(evermind_tensor_spec(arch))
        self._item = ITEM_BYTES[version]
        self._expert = 2 * arch.hidden_dim * arch.d_model + arch.hidden_dim + arch.d_model
        self.expert_stored_bytes = self._item * self._expert

    @classmethod
    @checked
    async def open(cls, data: ByteSource, verify: bool | None = None) -> CheckpointSource:
        """Read and check the header.

        verify: read everything once, a piece at a time, for the CRC; default: where that is cheap, so not over HTTP.
        Raises FormatError for anything that is not a whole, undamaged checkpoint, before any weight is used.
        """
        start, end = await _checkpoint_of(data)
        header = await data.read(start, min(evl0.HEADER_BYTES, end - start))
        if header[:4] != evl0.MAGIC_BYTES[: len(header[:4])]:
            raise not_a("a checkpoint", header, "an EVL0 or EVM1 file")
        if len(header) < evl0.HEADER_BYTES:
            raise truncated("checkpoint", end - start, evl0.HEADER_BYTES + TRAILER_BYTES, at_least=True)
        version, *words = struct.unpack_from("<8I", header, 4)
        check_version("checkpoint", version)
        arch = check_arch(dict(zip(FIELDS, words, strict=True)).values())
        body = evl0.HEADER_BYTES + ITEM_BYTES[version] * param_count_of(arch)
        trailer = await data.read(max(start, end - TRAILER_BYTES), min(TRAILER_BYTES, end - start))
        has_trailer = trailer[:4] == TRAILER_MAGIC
        check_guarded_length("checkpoint", end - start, body, has_trailer)
        if has_trailer and (data.local if verify is None else verify):
            await _check_crc(data, start, body, struct.unpack("<I", trailer[4:])[0])
        return cls(data, arch, version, start + evl0.HEADER_BYTES)

    async def read(self, layer: int, expert: int) -> F32:
        """See `ExpertSource`."""
        return await self._range(self._spec(f"layers.{layer}.moe.experts.{expert}.w1").offset, self._expert)

    async def values(self, name: str, first: int, count: int) -> F32:
        """See `ExpertSource`."""
        return await self._range(self._spec(name).offset + first, count)

    def _spec(self, name: str) -> ParamSpec:
        return self._table.by_name[name]

    async def _range(self, first: int, count: int) -> F32:
        raw = await self._data.read(self._start + self._item * first, self._item * count)
        # `astype` copies: no more than the raw bytes and the values are in memory at once.
        return np.frombuffer(raw, "<f4" if self._version == VERSION_F32 else "<f2").astype(np.float32)

    def close(self) -> None:
        """See `ExpertSource`."""
        self._data.close()


async def _checkpoint_of(data: ByteSource) -> tuple[int, int]:
    """Start and end of the checkpoint: the whole file, or that part of a package."""
    head = await data.read(0, min(package.HEADER_BYTES, data.size))
    if head[:4] != package.MAGIC_BYTES:
        return 0, data.size
    if len(head) < package.HEADER_BYTES:
        raise truncated("model package", len(head), package.HEADER_BYTES, at_least=True)
    version, length = struct.unpack_from("<2I", head, 4)
    if version != package.VERSION:
        raise FormatError(f"model package version {version} is unknown: expected {package.VERSION}")
    start = package.HEADER_BYTES + length
    if start > data.size:
        raise truncated("model package", data.size, start, at_least=True)
    try:
        manifest = strict_json.loads((await data.read(package.HEADER_BYTES, length)).decode())
        size = manifest.get("checkpointBytes", data.size - start)
    except (ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"model package is damaged: its manifest is no JSON object ({error})") from None
    if type(size) is not int or not 0 <= size <= data.size - start:
        raise FormatError(f"model package is damaged: checkpointBytes {size!r}, {data.size - start} bytes are there")
    return start, start + size


async def _check_crc(data: ByteSource, start: int, count: int, stored: int) -> None:
    actual, at = 0, start
    while at < start + count:
        piece = await data.read(at, min(PIECE, start + count - at))
        actual, at = zlib.crc32(piece, actual), at + len(piece)
    if actual != stored:
        raise FormatError(
            f"checkpoint is damaged: its CRC-32 is {actual:#010x}, the trailer says {stored:#010x}; "
            "nothing was loaded, fetch or export it again"
        )
