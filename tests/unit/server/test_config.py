from __future__ import annotations

import socket
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.run import bind
from octavo.server.screen import config_warnings, size


@pytest.mark.parametrize(
    "options",
    [
        {"host": ""},
        {"port": -1},
        {"port": 65536},
        {"port": True},
        {"served_model_names": ("",)},
        {"served_model_names": ("a\nb",)},
        {"served_model_names": ("x" * 513,)},
        {"api_keys": ("",)},
        {"api_keys": (" k",)},
        {"api_keys": ("k\n",)},
        {"admin_api_key": ""},
        {"admin_api_key": "k\n"},
        {"api_keys": ("a", "both"), "admin_api_key": "both"},
        {"explain_cache": 1},
        {"shutdown_timeout_seconds": -1},
        {"response_store_entries": -1},
        {"response_store_entries": True},
        {"response_store_bytes": 0},
        {"response_store_bytes": 2**41},
    ],
)
def test_what_cannot_be_is_refused_naming_the_option(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**options)
    assert caught.value.param
    assert "k\n" not in caught.value.message
    assert "both" not in caught.value.message


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(ConfigError, match="max_body_bytes"):
        Limits(max_body_bytes=0)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_a_host_that_others_reach_is_warned_about_without_a_key(host: str, loopback: bool) -> None:
    assert ServerConfig(host=host).is_loopback == loopback
    assert bool(config_warnings(ServerConfig(host=host))) != loopback
    assert not config_warnings(ServerConfig(host=host, api_keys=("k",)))


def test_a_taken_port_and_an_unknown_host_are_clear_errors() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1"):
            bind("127.0.0.1", port)
    with bind("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port
        assert again.family == socket.AF_INET
    with pytest.raises(ConfigError, match="invalid"):
        bind("no.such.host.invalid", 0)


@pytest.mark.parametrize("host", ["a" * 70, "\udcff", "a..b", "192.0.2.1"])
def test_a_host_that_is_no_name_at_all_is_an_error_of_ours(host: str) -> None:
    with pytest.raises(ConfigError, match="no address of this machine"):
        bind(host, 0)


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 999, 98_362_432, 1_610_612_736)] == ["0 bytes", "999 bytes", "98.4 MB", "1.6 GB"]
