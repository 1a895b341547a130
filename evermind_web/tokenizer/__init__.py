"""Byte-level BPE: text to token ids and back."""

from evermind_web.tokenizer.bpe import BPETokenizer as BPETokenizer
from evermind_web.tokenizer.stream import StreamDecoder as StreamDecoder
