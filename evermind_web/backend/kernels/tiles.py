"""How products and sums are spread over threads; see wgsl/common/matmul_tile.wgsl and row_reduce.wgsl.

A GPU wants operands in workgroup memory and many threads per sum. A CPU that plays GPU (SwiftShader, llvmpipe) pays for
every barrier with a switch of contexts, and wants neither. Both run the same kernels, with other constants.
"""

from __future__ import annotations

from typing import Final

from evermind_web.backend.kernels import Grid, ceil_div, grid_of

ENOUGH = 160  # workgroups that keep a large GPU busy; with fewer, smaller tiles give more of them
SOFTWARE: Final = ("swiftshader", "llvmpipe", "software", "basic render")
LONG_LOOP: Final = 16_384  # llvmpipe leaves a kernel's loops after 65,535 rounds in all, without a word
COLUMN_ROWS: Final = 512  # rows that a workgroup of column_reduce takes
software = False  # whether plans are made for a CPU; set by `choose`


def choose(adapter_name: str) -> None:
    """Make the plans that follow fit the adapter of that name."""
    global software
    software = any(word in adapter_name.lower() for word in SOFTWARE)


def tile_width(rows: int, columns: int, products: int = 1) -> int:
    """W of a tile of 4W x 4W: 16 where `products` results of that shape fill the device, else 8."""
    return 16 if products * ceil_div(rows, 64) * ceil_div(columns, 64) >= ENOUGH else 8


def tile_constants(width: int) -> dict[str, float]:
    """Constants of a kernel that includes matmul_tile."""
    return {"W": width, "SLICES": 4 if width == 8 and not software else 1, "SHARED": 0 if software else 1}


def lanes(length: int) -> int:
    """Threads that share one row of `length` values: a power of two."""
    if software and length <= LONG_LOOP:
        return 1
    return 256 if length >= 1024 else 64 if length >= 256 else 32


def product_lanes(length: int) -> int:
    """Threads that share one product of two rows of that length, at most 64: about two loads of four values each."""
    if software:
        return 1
    return max(8, min(64, 1 << (length // 8).bit_length() - 1 if length >= 8 else 1))


def column_constants() -> dict[str, int]:
    """Constants of a kernel that includes column_reduce: 8 neighbouring columns, of a 32-byte sector, a workgroup."""
    return {"WG": 64, "SHARES": 1} if software else {"WG": 256, "SHARES": 32}


def row_lanes() -> int:
    """Threads that share a row where each has columns of its own."""
    return 1 if software else 64


def row_constants(threads: int) -> dict[str, float]:
    """Constants of a kernel that includes row_reduce, with `threads` per row."""
    return {"WG": max(64, threads), "LANES": threads}


def row_grid(rows: int, threads: int) -> Grid:
    """Workgroups for that many rows with `threads` each."""
    return grid_of(ceil_div(rows, max(64, threads) // threads))
