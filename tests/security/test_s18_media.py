"""S18: nothing that a request names is ever fetched. Parts that are no text are refused on every route."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.attack import Attacker, check_refusal, taking, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S18"), pytest.mark.long]


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """Where nobody may come."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(0.0)
        yield sock
        with pytest.raises(BlockingIOError):
            sock.accept()


def urls(trap: socket.socket) -> list[str]:
    port = trap.getsockname()[1]
    return [
        f"http://127.0.0.1:{port}/x.png", f"http://localhost:{port}/", f"http://[::ffff:127.0.0.1]:{port}/", f"http://a@127.0.0.1:{port}/",
        f"http://a\\@127.0.0.1:{port}/b", f"ftp://127.0.0.1:{port}/", f"//127.0.0.1:{port}/", "file:///etc/passwd", "http://169.254.169.254/latest",
        "data:image/png;base64," + base64.b64encode(bytes(100)).decode(), "data:image/png;base64,%%%", "gopher://x", "",
    ]  # fmt: skip


def parts(url: str) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "input_image", "image_url": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "file", "file": {"file_id": url}},
        {"type": "document", "source": {"type": "url", "url": url}},
        {"type": "x" * 64},
    ]


def test_parts_that_are_no_text_are_refused_on_every_route(
    server: ServerProcess, attacker: Attacker, trap: socket.socket
) -> None:
    with unharmed(server):
        for target, place in taking("messages", "system", "input"):
            if place not in ("messages", "system", "input"):
                continue
            for url in urls(trap):
                for part in parts(url):
                    value: Any = [part] if place == "system" else [{"role": "user", "content": [part]}]
                    check_refusal(attacker.send(target, target.body() | {place: value}), 400)


def test_fields_that_could_name_a_file_or_an_address_fetch_nothing(
    server: ServerProcess, attacker: Attacker, trap: socket.socket
) -> None:
    names = (
        "images",
        "audio",
        "files",
        "documents",
        "web_search_options",
        "mcp_servers",
        "template",
        "suffix",
        "context",
    )
    with unharmed(server):
        for target in with_bodies():
            for name in names:
                for url in urls(trap):
                    for value in (url, [url], [{"url": url}], {"url": url}):
                        response = attacker.send(target, target.body() | {name: value})
                        assert response.status_code in (200, 400, 404)
            if target.path.startswith("/api/chat"):
                images = target.body() | {"messages": [{"role": "user", "content": "x", "images": [urls(trap)[0]]}]}
                check_refusal(attacker.send(target, images), 400)
