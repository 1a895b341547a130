"""Valid files made invalid: blind changes of bytes, and changes that know the container and repair its checksums.

A blind change is mostly caught by the first checksum; what lies behind it is reached by changing a header or a
manifest and sealing the file again. Everything is drawn from one `random.Random`, so a seed repeats a run.
"""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

WORDS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "0", "a", "é", "\ud83d", "\0", "__proto__", "../../x", "F32", "x" * 300, [], [0], [[]], [None],
    [-1, 2**40], {}, {"a": {}}, {"type": "BPE"}, {"__metadata__": {}},
)  # fmt: skip


# ── bytes ────────────────────────────────────────────────────────────────────
def blind(data: bytes, random: random.Random) -> bytes:
    """A few changes that know nothing of the file."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        _CHANGES[random.randrange(len(_CHANGES))](out, random)
    return bytes(out)


def _flip(out: bytearray, random: random.Random) -> None:
    if out:
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)


def _byte(out: bytearray, random: random.Random) -> None:
    if out:
        out[random.randrange(len(out))] = random.randrange(256)


def _word(out: bytearray, random: random.Random) -> None:
    """An interesting number in one of the first words, or anywhere."""
    if len(out) >= 4:
        at = 4 * random.randrange(min(12, len(out) // 4)) if random.random() < 0.7 else random.randrange(len(out) - 3)
        struct.pack_into("<I", out, at, random.choice(WORDS))


def _cut(out: bytearray, random: random.Random) -> None:
    del out[random.choice((0, 7, len(out) // 2, max(0, len(out) - 1), random.randrange(len(out) + 1))) :]


def _extend(out: bytearray, random: random.Random) -> None:
    out += random.randbytes(random.choice((1, 3, 4, 8, 64)))


def _remove(out: bytearray, random: random.Random) -> None:
    if out:
        start = random.randrange(len(out))
        del out[start : start + random.choice((1, 4, 8, 100))]


def _repeat(out: bytearray, random: random.Random) -> None:
    if out:
        start = random.randrange(len(out))
        out[start:start] = out[start : start + random.choice((1, 4, 8, 100))]


def _reverse(out: bytearray, random: random.Random) -> None:
    """Another byte order."""
    start = 4 * random.randrange(max(1, len(out) // 4))
    out[start : start + 4] = out[start : start + 4][::-1]


_CHANGES = (_flip, _byte, _word, _word, _cut, _extend, _remove, _repeat, _reverse)


def words(count: int, seal: Callable[[bytes], bytes] = bytes) -> Mutator:
    """Interesting numbers in the first `count` words; `seal` repairs what guards the file."""

    def mutate(data: bytes, random: random.Random) -> bytes:
        out = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 3, count))):
            at = 4 * random.randrange(1, count)
            if at + 4 <= len(out):
                value = random.choice(WORDS) if random.random() < 0.6 else random.randrange(40)
                struct.pack_into("<I", out, at, value)
        if random.random() < 0.3:
            out = out[: random.randrange(len(out) + 1)]
        return seal(bytes(out))

    return mutate


def sealed(data: bytes) -> bytes:
    """`data` with a CRC trailer that fits, in place of its own."""
    body = data[:-8] if data[-8:-4] == b"EVCR" else data
    return body + b"EVCR" + struct.pack("<I", zlib.crc32(body))


# ── JSON ─────────────────────────────────────────────────────────────────────
def change_json(value: Any, random: random.Random) -> Any:
    """A deep copy with one to three of its nodes replaced, removed or doubled."""
    copy = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 2, 3))):
        holders = [node for node in _nodes(copy, random) if node]
        if not holders:
            break
        holder = random.choice(holders)
        key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        what = random.randrange(8)
        if what == 0:
            del holder[key]
        elif what == 1:
            _set(holder, random.choice(("__proto__", "constructor", "extra", "")), holder[key])
        elif what == 2:
            other = random.choice(holders)
            chosen = random.choice(list(other.values()) if isinstance(other, dict) else other)
            holder[key] = json.loads(json.dumps(chosen))  # no node is shared
        elif what == 3 and isinstance(holder[key], int):
            holder[key] += random.choice((-1, 1, 4, 2**32))
        else:
            holder[key] = json.loads(json.dumps(random.choice(STRANGE)))
    return copy


def _set(holder: Any, key: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder.append(value)


def _nodes(value: Any, random: random.Random, limit: int = 400) -> list[Any]:
    """Objects and lists of a tree, at most `limit` of them."""
    found: list[Any] = []
    waiting = [value]
    while waiting and len(found) < limit:
        node = waiting.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            children = list(node.values()) if isinstance(node, dict) else node
            waiting += random.sample(children, min(8, len(children)))
    return found


def json_text(data: bytes, random: random.Random) -> bytes:
    """A JSON file with changed nodes."""
    return json.dumps(change_json(json.loads(data), random)).encode()


def json_blind(data: bytes, random: random.Random) -> bytes:
    """A JSON file as text: cut, nested too deep, or with odd numbers."""
    what = random.randrange(5)
    if what == 0:
        depth = random.choice((10, 1000, 20_000))
        return data.replace(b"null", b"[" * depth + b"]" * depth, 1)
    if what == 1:
        return data.replace(b"0", random.choice((b"1e400", b"-", b"9" * 5000, b"NaN", b"Infinity")), 1)
    if what == 2:
        return random.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" " * 100, b"[", b"{")) + data
    return blind(data, random)


# ── containers ───────────────────────────────────────────────────────────────
def safetensors_header(data: bytes, random: random.Random) -> bytes:
    """A safetensors file whose header was changed; its length fits."""
    (length,) = struct.unpack_from("<Q", data)
    text = json.dumps(change_json(json.loads(data[8 : 8 + length]), random)).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def state_manifest(data: bytes, random: random.Random) -> bytes:
    """A training state whose manifest, a JSON text inside the header, was changed; sometimes its vectors too."""
    (length,) = struct.unpack_from("<Q", data)
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    manifest = change_json(json.loads(header["__metadata__"]["manifest"]), random)
    if random.random() < 0.3 and isinstance(manifest, dict) and isinstance(manifest.get("crc32"), dict):
        _word(body, random)
        for name in ("weights", "exp_avg", "exp_avg_sq"):
            begin, end = header[name]["data_offsets"]
            manifest["crc32"][name] = zlib.crc32(body[begin:end])
    header["__metadata__"]["manifest"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def package_manifest(data: bytes, random: random.Random) -> bytes:
    """An EVM1 package whose manifest was changed; its length fits."""
    (length,) = struct.unpack_from("<I", data, 8)
    text = json.dumps(change_json(json.loads(data[12 : 12 + length]), random)).encode()
    return data[:8] + struct.pack("<I", len(text)) + text + data[12 + length :]


def zip_members(data: bytes, random: random.Random) -> bytes:
    """A zip with a changed manifest or member, packed again so that the zip itself is sound."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = random.randrange(len(members))
    name, content = members[at]
    what = random.randrange(6)
    if what < 3:
        at = next(i for i, (name, _) in enumerate(members) if name == "manifest.json")
        members[at] = ("manifest.json", json_text(members[at][1], random))
    elif what == 3:
        members[at] = (name, blind(content, random))
    elif what == 4:
        members.append((random.choice(("../x", "/etc/x", name, "manifest.json", "")), content))
    else:
        del members[at]
    method = zipfile.ZIP_DEFLATED if random.random() < 0.1 else zipfile.ZIP_STORED
    return zipped(members, method)


def zipped(members: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these members, in their order."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may occur twice
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name or "_", (1980, 1, 1, 0, 0, 0)), content, method)
    return out.getvalue()
