"""What a memory ceiling costs: tokens a second and hit rate of a paged model against the bytes that it may hold.

    python bench/paging.py --base base.evl0 --tokenizer tokenizer.json [--tokens 200] [--http]

Writes the same text under each ceiling and checks that it is the whole model's, id for id.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evermind_web import BPETokenizer, EvermindLM
from evermind_web.errors import InvalidArgumentError
from evermind_web.paging import FileBytes, HttpBytes, PagedEvermindLM

PROMPT = "It was a dark and stormy night; "
SHARES = (1.0, 0.75, 0.5, 0.25, 0.125, 0.0)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, a range of bytes at a time."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One range; nothing else is asked for here."""
        data = Path(self.translate_path(self.path)).read_bytes()
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def log_message(self, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of a file on a server of this process."""
    handler = functools.partial(Ranges, directory=str(path.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{path.name}"
        server.shutdown()


async def rows(path: Path, data: bytes, address: str, prompt: list[int], tokens: int) -> list[list[Any]]:
    """One row a ceiling: bytes, share of the experts, tokens/s, hit rate, bytes read a token, most bytes held."""
    options = {"max_new_tokens": tokens, "temperature": 0.8, "seed": 3}
    whole = EvermindLM.from_checkpoint(data, backend="numpy")
    await whole.generate_async(prompt, max_new_tokens=8)
    started = time.perf_counter()
    expected = await whole.generate_async(prompt, **options)
    out = [["whole model", 4 * whole.num_parameters, "", tokens / (time.perf_counter() - started), "", "", ""]]
    a = whole.config
    expert = 4 * (2 * a.d_model * a.hidden_dim + a.d_model + a.hidden_dim)
    everything = a.num_layers * a.num_experts * expert
    try:
        await PagedEvermindLM.open_async(path, 1, "numpy")
    except InvalidArgumentError as error:
        least = int(str(error).rpartition(" ")[2])
    for share in SHARES:
        source = await HttpBytes.open(address) if address else FileBytes(path)
        paged = await PagedEvermindLM.open_async(source, least + int(share * everything), "numpy")
        await paged.generate_async(prompt, max_new_tokens=8)
        paged.experts.reset()
        started = time.perf_counter()
        found = await paged.generate_async(prompt, **options)
        seconds, stats = time.perf_counter() - started, paged.stats
        assert found == expected, "paging changed the text"
        assert stats.peak_bytes <= stats.ceiling
        out.append([f"{share:.1%} of experts", stats.ceiling, share, tokens / seconds, stats.hit_rate,
                    stats.bytes_read / tokens, stats.peak_bytes])  # fmt: skip
        paged.dispose()
    return out


def main() -> None:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="EVL0 checkpoint")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.json")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--http", action="store_true", help="range requests to a server in this process")
    arguments = parser.parse_args()
    prompt = BPETokenizer.from_file(str(arguments.tokenizer)).encode(PROMPT)
    data = arguments.base.read_bytes()
    with served(arguments.base.resolve()) as address:
        found = asyncio.run(rows(arguments.base, data, address if arguments.http else "", prompt, arguments.tokens))
    print("| | Ceiling | Tokens/s | Hit rate | Read a token | Most held |\n| --- | --- | --- | --- | --- | --- |")
    for name, ceiling, _, speed, rate, read, peak in found:
        cells = ["", "", ""] if rate == "" else [f"{rate:.0%}", f"{read / 1000:.0f} KB", f"{peak / 1e6:.2f} MB"]
        print(f"| {name} | {ceiling / 1e6:.2f} MB | {speed:.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
