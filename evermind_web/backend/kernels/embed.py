"""Plans of the embedding: one invocation per element forward, one workgroup per row backward."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans


@plans("embed_fwd")
def embed_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """tokens, emb -> x."""
    (n,), (v, d) = shapes[:2]
    return Plan((Dispatch("embed_fwd", (0, 1, 2), grid_of(ceil_div(n * d, 256)), (n, d, v)),))


@plans("embed_bwd")
def embed_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """tokens, dx -> demb."""
    (n, d), (v, _) = shapes[1:]
    return Plan((Dispatch("embed_bwd", (0, 1, 2), grid_of(n), (n, d, v)),))
