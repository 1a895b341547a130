"""Runs a TokenizerDefinition: text to ids, ids to bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evermind_web.errors import FormatError
from evermind_web.tokenizer.added_tokens import AddedTokenFinder
from evermind_web.tokenizer.byte_alphabet import BYTE_ORDER, BYTE_TO_SYMBOL, SYMBOL_TO_BYTE, to_bytes
from evermind_web.tokenizer.definition import TokenizerDefinition
from evermind_web.tokenizer.merge_table import MergeTable
from evermind_web.tokenizer.normalize import build_normalizer
from evermind_web.tokenizer.pretokenize import build_splitter, repair_surrogates


class TokenizerEngine:
    """Everything looked up and compiled once per vocabulary."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        """Raises FormatError if a byte has no token, or the text preparation is of an unsupported kind."""
        vocab = definition.vocab
        fallback_ids = _fallback_ids(vocab) if definition.byte_fallback else {}
        outputs = _symbol_outputs(definition, fallback_ids)
        added = {token.content for token in definition.added}
        whole_words: dict[bytes, int] = {}
        self._token_bytes: dict[int, bytes] = {}
        for token, i in vocab.items():
            data = None if token in added else to_bytes(token)
            self._token_bytes[i] = token.encode("utf-8", "replace") if data is None else data
            if data is not None and definition.ignore_merges:
                whole_words[data] = i
        self._fallback_bytes = {i: byte for byte, i in fallback_ids.items()}
        self.special_ids = frozenset(token.id for token in definition.added if token.special)
        self._added = AddedTokenFinder(definition.added, build_normalizer(definition.normalizer))
        self.split: Callable[[str], list[str]] = build_splitter(definition.pre_tokenizer)
        self._merges = MergeTable(outputs, definition.merges, whole_words)

    def encode(self, text: str, allow_special: bool) -> list[int]:
        ids: list[int] = []
        for segment in self._added.segments(repair_surrogates(text), allow_special):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                ids.extend(self._merges.encode_words(self.split(segment)))
        return ids

    def byte_decoder(self) -> ByteDecoder:
        return ByteDecoder(self._token_bytes, self._fallback_bytes)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Bytes of all ids; an id without token gives none."""
        if self._fallback_bytes:
            decoder = self.byte_decoder()
            return b"".join([decoder.push(i) for i in ids]) + decoder.finish()
        token_bytes = self._token_bytes
        return b"".join([token_bytes.get(i, b"") for i in ids])


class ByteDecoder:
    """Ids to bytes, one at a time.

    Only byte fallback needs a state: such tokens spell the UTF-8 bytes of a byte symbol ('Ã', which stands for the
    byte C3, is <0xC3><0x83>), so a lead byte waits for its continuation.
    """

    def __init__(self, token_bytes: Mapping[int, bytes], fallback_bytes: Mapping[int, int]) -> None:
        self._token_bytes, self._fallback_bytes = token_bytes, fallback_bytes
        self._waiting = b""

    def push(self, i: int) -> bytes:
        byte = self._fallback_bytes.get(i)
        if byte is None:
            return self.finish() + self._token_bytes.get(i, b"")
        if not self._waiting and 0xC2 <= byte <= 0xC5:  # the alphabet ends at U+0143
            self._waiting = bytes([byte])
            return b""
        spelled = self.finish() + bytes([byte])
        symbol = spelled.decode("utf-8", "replace")
        return bytes([SYMBOL_TO_BYTE[symbol]]) if symbol in SYMBOL_TO_BYTE else spelled

    def finish(self) -> bytes:
        """What still waits, as it is."""
        waiting, self._waiting = self._waiting, b""
        return waiting


def _fallback_ids(vocab: Mapping[str, int]) -> dict[int, int]:
    names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    return {byte: vocab[name] for byte, name in names.items() if name in vocab}


def _symbol_outputs(definition: TokenizerDefinition, fallback_ids: Mapping[int, int]) -> dict[str, tuple[int, ...]]:
    """Symbol -> ids, for byte symbols and all that merges name or make.

    A merged symbol may lack an id of its own (vocabularies cut to size); it is then written as its bytes.
    """
    vocab = definition.vocab
    outputs: dict[str, tuple[int, ...]] = {}
    missing: list[int] = []
    for byte in BYTE_ORDER:
        symbol = BYTE_TO_SYMBOL[byte]
        spelled = symbol.encode("utf-8")
        if symbol in vocab:
            outputs[symbol] = (vocab[symbol],)
        elif all(part in fallback_ids for part in spelled):
            outputs[symbol] = tuple([fallback_ids[part] for part in spelled])
        else:
            missing.append(byte)
    if missing:
        raise FormatError(
            f"vocab: {len(missing)} of the 256 bytes have no token, so text with them could not be encoded: "
            f"{_ranges(missing)}; add the missing byte symbols to the vocabulary, "
            "or train a tokenizer with BPETokenizer.train"
        )
    for left, right in definition.merges:
        for symbol in (left, right, left + right):
            if symbol not in outputs:
                own = vocab.get(symbol)
                outputs[symbol] = (own,) if own is not None else tuple([i for s in symbol for i in outputs.get(s, ())])
    return outputs


def _ranges(values: Sequence[int]) -> str:
    """Byte values as hexadecimal ranges: '00-20, 7F, C3'."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ", ".join(f"{low:02X}" if low == high else f"{low:02X}-{high:02X}" for low, high in parts)
