"""How matrix products are cut into tiles: see wgsl/common/matmul_tile.wgsl."""

from __future__ import annotations

from evermind_web.backend.kernels import ceil_div

ENOUGH = 160  # workgroups that keep a large GPU busy; with fewer, smaller tiles give more of them


def tile_width(rows: int, columns: int, products: int = 1) -> int:
    """W of a tile of 4W x 4W: 16 where `products` results of that shape fill the device, else 8."""
    return 16 if products * ceil_div(rows, 64) * ceil_div(columns, 64) >= ENOUGH else 8
