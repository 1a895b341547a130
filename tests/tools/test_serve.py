"""The loopback server: policy, types, revalidation, and no way out of its folder."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.common import ToolError
from tools.csp import policy
from tools.serve import Server, in_background, open_server, port_from_environment


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "sub").mkdir(parents=True)
    (folder / "evermind.json").write_text(json.dumps({"runtime_origin": ""}))
    (folder / "index.html").write_text("<p>page")
    (folder / "worker.mjs").write_text("export {};")
    (folder / "sub" / "k.wgsl").write_text("fn main() {}")
    (folder / "module.wasm").write_bytes(b"\0asm")
    (folder / "a b.txt").write_text("spaced")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.fixture
def server(dist: Path) -> Iterator[Server]:
    opened = open_server(dist, port=0)
    in_background(opened)
    yield opened
    opened.shutdown()
    opened.server_close()


def ask(server: Server, target: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Send one request with the target exactly as written: a client library would tidy up `..`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    connection.putrequest(method, target, skip_host=False)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body, {name.lower(): value for name, value in reply.getheaders()}


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/sub/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/..%5csecret.txt",
        "//../secret.txt",
        "/link.txt",
        "/sub",
        "/sub/",
        "/missing.txt",
        "/%00",
        "/" + "x" * 5000,
    ],
)
def test_nothing_outside_and_no_listing(server: Server, target: str) -> None:
    status, body, headers = ask(server, target)
    assert status == 404
    assert body != b"secret"
    assert headers["content-security-policy"] == policy()


@pytest.mark.parametrize(
    ("target", "body", "kind"),
    [
        ("/", b"<p>page", "text/html; charset=utf-8"),
        ("/index.html?x=1#y", b"<p>page", "text/html; charset=utf-8"),
        ("/worker.mjs", b"export {};", "text/javascript; charset=utf-8"),
        ("/sub/k.wgsl", b"fn main() {}", "text/plain; charset=utf-8"),
        ("/module.wasm", b"\0asm", "application/wasm"),
        ("/a%20b.txt", b"spaced", "text/plain; charset=utf-8"),
    ],
)
def test_files_with_type_and_policy(server: Server, target: str, body: bytes, kind: str) -> None:
    status, got, headers = ask(server, target)
    assert (status, got) == (200, body)
    assert headers["content-type"] == kind
    assert headers["content-security-policy"] == policy()
    assert headers["x-content-type-options"] == "nosniff"


def test_policy_is_the_strict_one() -> None:
    words = policy()
    assert "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'" in words
    assert "unsafe-inline" not in words
    assert "'unsafe-eval'" not in words
    assert "script-src 'self' 'wasm-unsafe-eval' https://cdn.example;" in policy("https://cdn.example")
    assert "connect-src 'self' https://cdn.example;" in policy("https://cdn.example")


def test_revalidation(server: Server, dist: Path) -> None:
    _, _, headers = ask(server, "/worker.mjs")
    assert headers["cache-control"] == "no-cache"
    assert ask(server, "/worker.mjs", If_None_Match=headers["etag"])[:2] == (304, b"")
    (dist / "worker.mjs").write_text("export { };")
    assert ask(server, "/worker.mjs", If_None_Match=headers["etag"])[:2] == (200, b"export { };")


def test_head_and_other_methods(server: Server) -> None:
    status, body, headers = ask(server, "/worker.mjs", "HEAD")
    assert (status, body, headers["content-length"]) == (200, b"", "10")
    assert ask(server, "/worker.mjs", "DELETE")[0] == 501


def test_many_at_once(server: Server) -> None:
    """A connection that stays silent does not hold up another."""
    silent = socket.create_connection(("127.0.0.1", server.server_address[1]))
    started = time.monotonic()
    assert ask(server, "/worker.mjs")[0] == 200
    assert time.monotonic() - started < 2
    silent.close()


def test_a_client_that_goes_away_is_no_news(server: Server, dist: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (dist / "large.wasm").write_bytes(bytes(20_000_000))
    leaving = socket.create_connection(("127.0.0.1", server.server_address[1]))
    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    leaving.sendall(b"GET /large.wasm HTTP/1.1\r\nHost: x\r\n\r\n")
    leaving.recv(1000)
    leaving.close()
    time.sleep(0.2)
    assert ask(server, "/worker.mjs")[0] == 200
    assert capfd.readouterr().err == ""


def test_extra_folders(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.json").write_text("{}")
    server = open_server(dist, port=0, extra={"/more/": tmp_path / "more"})
    assert server.locate("/more/x.json") == (tmp_path / "more" / "x.json").resolve()
    assert server.locate("/more/../dist/index.html") is None
    server.server_close()


def test_busy_port_takes_the_next_free_one(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = open_server(dist, port=0)
    port = first.server_address[1]
    second = open_server(dist, port=port)
    assert second.server_address[1] > port
    assert f"port {port} is busy; taking {second.server_address[1]}" in capsys.readouterr().out
    first.server_close()
    second.server_close()


def test_only_loopback(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="run `make dist` first"):
        open_server(tmp_path, port=0)


@pytest.mark.parametrize("text", ["x", "-1", "70000", "80.5"])
def test_bad_port(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", text)
    with pytest.raises(ToolError, match="no port number"):
        port_from_environment()
