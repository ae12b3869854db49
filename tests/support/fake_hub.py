"""A model hub on localhost, for tests: enough of the protocol for `huggingface_hub` to fetch from it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class FakeHub:
    repositories: Mapping[str, Mapping[str, bytes]]  # "owner/name" -> file -> content
    endpoint: str = ""
    commit: str = COMMIT
    requests: list[str] = field(default_factory=list)  # "GET /path", as they came


@contextmanager
def fake_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    hub = FakeHub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            status, body, headers = self._find(path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": hub.commit, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _find(self, path: str) -> tuple[int, bytes, dict[str, str]]:
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in hub.repositories:
                name = "/".join(parts[2:4])
                siblings = [{"rfilename": f, "size": len(c)} for f, c in hub.repositories[name].items()]
                info = {
                    "id": name,
                    "modelId": name,
                    "sha": hub.commit,
                    "siblings": siblings,
                    "tags": [],
                    "private": False,
                }
                return 200, json.dumps(info).encode(), {"Content-Type": "application/json"}
            files = hub.repositories.get("/".join(parts[:2]), {})
            content = files.get("/".join(parts[4:])) if parts[2:4] == ["resolve", hub.commit] else None
            if content is None:
                return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
            return 200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
