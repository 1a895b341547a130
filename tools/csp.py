"""The Content-Security-Policy of the page: sent by `make serve`, written into dist/index.html."""

from __future__ import annotations


def policy(runtime_origin: str = "") -> str:
    """Return the policy; `runtime_origin` is the CDN's origin where Pyodide is loaded from there."""
    extra = f" {runtime_origin}" if runtime_origin else ""
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'wasm-unsafe-eval'{extra}",
            f"connect-src 'self'{extra}",
            "worker-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob: data:",
        )
    )
