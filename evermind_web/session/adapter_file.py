"""An adapter as one value of bytes: what the store keeps, and what the members of an exported file are.

An adapter of any targets is the two files of PEFT's layout, fp16, in a stored zip; one that came as a `LORA` file,
which knows the embedding only, stays that.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from evermind_web import strict_json
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats import stored_zip
from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.lora import LoraConfig, LoraModel, peft_io
from evermind_web.lora.peft_io import CONFIG_FILE, WEIGHTS_FILE
from evermind_web.params import ParamTable

BLOB = "adapter.lora"
PEFT = (CONFIG_FILE, WEIGHTS_FILE)


# ── bytes and members ────────────────────────────────────────────────────────
def members(data: bytes) -> dict[str, bytes]:
    """The files in an adapter's bytes, by name. Raises FormatError for a damaged zip."""
    if not data.startswith(b"PK"):
        return {BLOB: data}
    files = stored_zip.read(data, "the adapter")
    if not is_peft(files):
        raise FormatError(f"an adapter is two files, {' and '.join(PEFT)}; this one has {sorted(files)}")
    return files


def of_members(files: Mapping[str, bytes]) -> bytes:
    """The bytes of an adapter from its files; others among them are left out."""
    return stored_zip.write({name: files[name] for name in PEFT}) if is_peft(files) else files[BLOB]


def is_peft(files: Mapping[str, bytes]) -> bool:
    """Whether both files of PEFT's layout are there."""
    return all(name in files for name in PEFT)


def base_of(files: Mapping[str, bytes]) -> str:
    """The fingerprint of the base that PEFT's files name; "" where they do not say."""
    try:
        found = strict_json.loads(files[CONFIG_FILE].decode("utf-8-sig"))["base_fingerprint"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


# ── in and out of a model ────────────────────────────────────────────────────
def fresh(config: LoraConfig, arch: Arch, fingerprint: str) -> bytes:
    """An adapter that changes nothing yet, float32."""
    parts = config.adapters(ParamTable(evermind_tensor_spec(arch)))
    return of_members(peft_io.write_adapter(config, parts, fingerprint))


def taken(lora: LoraModel, name: str, fingerprint: str) -> bytes:
    """A live adapter's bytes, fp16."""
    kept = lora.adapter(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the thousands of values a few are too small for fp16, and do nothing
        return of_members(peft_io.write_adapter(kept.config, kept.parts, fingerprint, fp16=True))


def put(lora: LoraModel, name: str, data: bytes) -> None:
    """Load an adapter whose base was checked. Raises FormatError, InvalidArgumentError or ConfigMismatchError."""
    files = members(data)
    # The fingerprint is no question here, and asking would wait for the device.
    lora.load_adapter(name, files if is_peft(files) else data, base_fingerprint="checked", force=True)


def check(data: bytes, arch: Arch) -> None:
    """Raise ConfigMismatchError unless the adapter fits a model of this shape."""
    files, table = members(data), ParamTable(evermind_tensor_spec(arch))
    try:
        if is_peft(files):
            peft_io.read_adapter(files, table)
        else:
            peft_io.read_blob(data, table)
    except (ConfigMismatchError, InvalidArgumentError) as error:
        raise ConfigMismatchError(f"this adapter belongs to another model ({error})") from None
