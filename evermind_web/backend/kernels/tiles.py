"""How products and sums are spread over threads; see wgsl/common/matmul_tile.wgsl and row_reduce.wgsl.

A GPU wants operands in workgroup memory and many threads per sum. A CPU that plays GPU (SwiftShader, llvmpipe) pays for
every barrier with a switch of contexts, and wants neither. Both run the same kernels, with other constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evermind_web.backend.kernels import Grid, ceil_div, grid_of

ENOUGH = 160  # workgroups that keep a large GPU busy; with fewer, smaller tiles give more of them
ENOUGH_TALL = 120  # the same for tiles with twice the rows, whose workgroups are busier,
TALL_ROWS = 65  # and results of fewer rows would leave most of such a tile empty
SOFTWARE: Final = ("swiftshader", "llvmpipe", "software", "basic render")
LONG_LOOP: Final = 16_384  # llvmpipe leaves a kernel's loops after 65,535 rounds in all, without a word
COLUMN_ROWS: Final = 512  # rows that a workgroup of column_reduce takes
software = False  # whether plans are made for a CPU; set by `choose`


def choose(adapter_name: str) -> None:
    """Make the plans that follow fit the adapter of that name."""
    global software
    software = any(word in adapter_name.lower() for word in SOFTWARE)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one workgroup makes of a matrix product: W and ROWS of matmul_tile."""

    width: int
    rows_held: int

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return self.rows_held * self.width

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return 4 * self.width

    @property
    def constants(self) -> dict[str, float]:
        """Constants of a kernel that includes matmul_tile."""
        slices = 4 if self.width == 8 and not software else 1
        return {"W": self.width, "ROWS": self.rows_held, "SLICES": slices, "SHARED": 0 if software else 1}

    def down(self, rows: int) -> int:
        """Tiles that cover so many rows."""
        return ceil_div(rows, self.rows)

    def across(self, columns: int) -> int:
        """Tiles that cover so many columns."""
        return ceil_div(columns, self.columns)


def tile_for(rows: int, columns: int, products: int = 1) -> Tile:
    """The largest tile with which `products` results of that shape fill the device."""
    tall = Tile(16, 8)
    if not software and rows >= TALL_ROWS and products * tall.down(rows) * tall.across(columns) >= ENOUGH_TALL:
        return tall
    return Tile(16 if products * ceil_div(rows, 64) * ceil_div(columns, 64) >= ENOUGH else 8, 4)


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
