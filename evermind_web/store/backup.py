"""A backup of a whole store in one file: a stored (uncompressed) zip that any zip tool opens.

    manifest.json     {"format": "evermind_web backup", "version": 1, "records": [{…, "member": "data/0000.bin"}, …]}
    data/0000.bin …   the bytes of each record, in the manifest's order

The manifest holds the CRC-32 and size of every member. An import checks the whole file before it writes anything,
and then writes everything in one transaction. The same store gives the same bytes: members carry no dates.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from .. import strict_json
from ..checks import checked
from ..errors import EvermindError, FormatError
from ..formats import stored_zip
from .base import JsonObject, Record, SaveItem, Store, prepare

FORMAT = "evermind_web backup"
VERSION = 1
_MANIFEST = "manifest.json"


@checked
async def export_all(store: Store, names: Iterable[str] | None = None) -> bytes:
    """Backup of the records `names` (default: all of them) as the bytes of a zip file.

    Raises: RecordNotFoundError, StorageError as `Store.load`: a damaged record is not backed up.
    """
    wanted = [record.name for record in await store.list()] if names is None else list(names)
    rows: list[JsonObject] = []
    members: dict[str, bytes] = {_MANIFEST: b""}  # it comes first
    for number, name in enumerate(wanted):
        record, data = await store.load(name)
        member = f"data/{number:04d}.bin"
        rows.append({**record.to_json(), "member": member})
        members[member] = data
    manifest = {"format": FORMAT, "version": VERSION, "records": rows}
    members[_MANIFEST] = json.dumps(manifest, ensure_ascii=False, sort_keys=True, indent=1).encode()
    return stored_zip.write(members)


@checked
async def import_all(store: Store, backup: bytes, *, replace: bool = False) -> list[Record]:
    """Save every record of a backup, all or none, with its original date of creation.

    Raises: FormatError for a file that is no backup, is damaged, or is of a newer version; StorageError if a name
    is taken and `replace` is false. In every case nothing was written.
    """
    return await store.save_many(read_backup(backup), replace=replace)


@checked
def read_backup(backup: bytes) -> list[SaveItem]:
    """What a backup holds, wholly checked. Raises: FormatError saying what is wrong with the file."""
    members = stored_zip.read(backup, "the backup")
    return [_item(row, members) for row in _manifest_rows(members)]


def _manifest_rows(members: dict[str, bytes]) -> list[JsonObject]:
    if _MANIFEST not in members:
        raise FormatError(f"not a backup: it has no {_MANIFEST}; choose a file made by export")
    try:
        manifest: Any = strict_json.loads(members[_MANIFEST].decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a backup, or a damaged one: its {_MANIFEST} is no JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"not a backup: its {_MANIFEST} is of another program")
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"this backup has version {manifest.get('version')!r}, expected {VERSION}: update evermind_web"
        )
    rows = manifest.get("records")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FormatError("this backup's manifest holds no list of records")
    extra = set(members) - {_MANIFEST} - {str(row.get("member")) for row in rows}
    if extra or len({str(row.get("member")) for row in rows}) != len(rows):
        raise FormatError(
            f"this backup's members and manifest differ: {', '.join(sorted(extra)) or 'one is named twice'}"
        )
    return rows


def _item(row: JsonObject, members: dict[str, bytes]) -> SaveItem:
    try:
        record = Record.from_json(row)
        data = members.get(str(row.get("member")))
        if data is None:
            raise FormatError(f"the bytes of {record.name} are not in this backup")
        if len(data) != record.size or zlib.crc32(data) != record.crc32:
            raise FormatError(f"the bytes of {record.name} are damaged: length or CRC-32 differs from the manifest")
        item = SaveItem(record.name, data, record.kind, record.base_fingerprint, record.metadata, record.created)
        prepare(item)  # names and metadata must be ones that a store takes
        return item
    except FormatError:
        raise
    except EvermindError as error:
        raise FormatError(f"this backup holds a record that no store takes: {error}") from error
