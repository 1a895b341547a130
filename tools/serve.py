"""`make serve`: serve dist/ on loopback with the page's Content-Security-Policy.

Any static web server can host dist/; this one is for trying it and for the tests. It serves files of its
folders and nothing else: no listing, no path or link that leads outside, no address but loopback.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.common import DIST, ToolError, fail, say
from tools.csp import policy

HOST = "127.0.0.1"
DEFAULT_PORT = 8000
PORTS_TRIED = 50
MIME = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".wgsl": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".py": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".whl": "application/zip",
    ".zip": "application/zip",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


class Server(ThreadingHTTPServer):
    """A static server: URL prefixes (each starts and ends with "/") → folders; the longest prefix wins.

    An empty policy sends none: a test stands for other people's pages so.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # a port in TIME_WAIT is free; one that is listened on stays busy

    def __init__(self, port: int, mounts: Mapping[str, Path], content_security_policy: str):
        self.mounts = {prefix: folder.resolve() for prefix, folder in mounts.items()}
        self.content_security_policy = content_security_policy
        super().__init__((HOST, port), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that went away in the middle of a reply."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """The address of "/", ending in a slash."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def locate(self, target: str) -> Path | None:
        """Return the file that a request target names, or None if there is none to be served."""
        path = unquote(urlsplit(target).path)
        if "\0" in path or "\\" in path:
            return None
        if path.endswith("/"):
            path += "index.html"
        for prefix in sorted(self.mounts, key=len, reverse=True):
            if path.startswith(prefix):
                root = self.mounts[prefix]
                try:
                    file = (root / path[len(prefix) :].lstrip("/")).resolve()  # follows ".." and links
                    return file if file.is_relative_to(root) and file.is_file() else None
                except OSError:  # a name too long, a loop of links
                    return None
        return None


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of one file, revalidated by its ETag on each use."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "evermind"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the file, 304 if the client has it, or 404."""
        file = self.server.locate(self.path)
        if file is None:
            self.answer(HTTPStatus.NOT_FOUND, f"no such file: {self.path}\n".encode(), {"Content-Type": MIME[".txt"]})
            return
        status = file.stat()
        headers = {
            "Content-Type": MIME.get(file.suffix, "application/octet-stream"),
            "ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        }
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self.answer(HTTPStatus.NOT_MODIFIED, b"", headers)
        else:
            self.answer(HTTPStatus.OK, file.read_bytes(), headers)

    do_HEAD = do_GET

    def answer(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        """Send one reply; each carries the policy, and is kept by the browser but asked about each time."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        if self.server.content_security_policy:
            self.send_header("Content-Security-Policy", self.server.content_security_policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the page's own console tells more."""


def dist_policy(dist: Path) -> str:
    """Return the policy that fits a dist folder: its manifest names the runtime's origin.

    Raises:
        ToolError: the folder was not made by `make dist`.
    """
    manifest = dist / "evermind.json"
    if not manifest.is_file():
        raise ToolError(f"{manifest} is missing: run `make dist` first")
    return policy(json.loads(manifest.read_text())["runtime_origin"])


def open_server(dist: Path, port: int, extra: Mapping[str, Path] | None = None) -> Server:
    """Listen on `port` (0: any), or on the next free one after it, and say so.

    Raises:
        ToolError: no port among the next fifty is free.
    """
    mounts = {"/": dist, **(extra or {})}
    content_security_policy = dist_policy(dist)
    for candidate in [0] if port == 0 else range(port, min(port + PORTS_TRIED, 65536)):
        try:
            server = Server(candidate, mounts, content_security_policy)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ToolError(f"cannot listen on {HOST}:{candidate}: {error}") from error
            continue
        if candidate != port:
            say("serve", f"port {port} is busy; taking {candidate}")
        return server
    raise ToolError(f"ports {port} to {port + PORTS_TRIED - 1} are all busy: set PORT to another one")


def in_background(server: Server) -> threading.Thread:
    """Serve from a thread; end it with `server.shutdown()` and `server.server_close()`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="serve", daemon=True)
    thread.start()
    return thread


def port_from_environment() -> int:
    """Return `$PORT`, or 8000.

    Raises:
        ToolError: it is no port number.
    """
    text = os.environ.get("PORT") or str(DEFAULT_PORT)
    if not text.isdecimal() or int(text) > 65535:
        raise ToolError(f"PORT={text} is no port number (0 to 65535)")
    return int(text)


def main() -> int:
    """Serve until interrupted."""
    try:
        server = open_server(DIST, port_from_environment())
    except ToolError as error:
        return fail(error)
    say("serve", f"the page is at {server.url} (Ctrl+C stops)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("serve", "stopped")
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
