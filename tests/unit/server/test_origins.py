"""CORS: off unless asked for, and then no way around the door."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from support.attack import all_targets
from support.http_site import check_error, run, site

pytestmark = pytest.mark.security("S5")

PAGE = "https://chat.example"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_without_the_option_no_answer_has_a_word_of_it() -> None:
    async def go() -> None:
        async with site() as here:
            for target in all_targets():
                for method in (target.method, "OPTIONS"):
                    response = await here.client.request(method, target.url, headers=PREFLIGHT)
                    assert not [name for name in response.headers if name.startswith("access-control")]
                    assert method != "OPTIONS" or response.status_code == 405

    run(go())


def test_a_named_page_may_ask_and_read_and_another_may_not() -> None:
    config = ServerConfig(allowed_origins=(PAGE,), api_keys=("k",))

    async def go() -> None:
        async with site(config) as here:
            asked = await here.client.options("/v1/completions", headers=PREFLIGHT)
            assert asked.status_code == 200
            assert asked.headers["access-control-allow-origin"] == PAGE
            assert "authorization" in asked.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in asked.headers
            other = await here.client.options("/v1/completions", headers=PREFLIGHT | {"Origin": "https://evil.example"})
            assert other.status_code == 400
            assert "access-control-allow-origin" not in other.headers
            body = {"prompt": "x", "max_tokens": 1}
            for origin, allowed in ((PAGE, PAGE), ("https://evil.example", None)):
                headers = {"Origin": origin}
                refused = await here.client.post("/v1/completions", json=body, headers=headers)
                assert check_error(refused, 401), "an origin is no key"
                assert refused.headers.get("access-control-allow-origin") == allowed
                fine = await here.client.post(
                    "/v1/completions", json=body, headers=headers | {"Authorization": "Bearer k"}
                )
                assert fine.status_code == 200
                assert fine.headers.get("access-control-allow-origin") == allowed
                assert allowed is None or "x-request-id" in fine.headers["access-control-expose-headers"].lower()

    run(go())


def test_on_an_open_server_a_page_from_elsewhere_is_no_administrator() -> None:
    async def go() -> None:
        async with site(ServerConfig(allowed_origins=("*",))) as here:
            assert (await here.client.post("/reset_prefix_cache")).status_code == 200
            response = await here.client.post("/reset_prefix_cache", headers={"Origin": PAGE})
            assert check_error(response, 403)

    run(go())


@pytest.mark.parametrize(
    "fields",
    [{"allowed_origins": ("example.org",)}, {"allowed_origins": ("https://a/b",)}, {"allowed_origins": ("null",)},
     {"allowed_origins": ("*",), "allow_credentials": True}, {"allow_credentials": True},
     {"allowed_methods": ("GET",)}, {"allowed_headers": ("x-a",)}, {"allowed_methods": ("GET POST",)}, {"allowed_headers": ("a\nb",)}],
)  # fmt: skip
def test_what_is_no_origin_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**fields)
