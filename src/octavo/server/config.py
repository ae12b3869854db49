"""What the HTTP side is to be: one frozen object, beside `EngineConfig`. Reads no environment, opens nothing.

Invariant: a configuration that constructs is one the server can start with, ports and files aside.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from octavo.errors import ConfigError
from octavo.log_lines import LOG_FORMATS, LogFormat
from octavo.pooling_params import POOLINGS, Pooling
from octavo.server.limits import MAX_MODEL_NAME_CHARS, Limits
from octavo.server.tools.speech import check_parsers

MAX_STORE = 2**40  # entries or bytes: a larger number is a mistake
MAX_TIMEOUT_SECONDS = 1e9  # thirty years: a larger number is a mistake
_OF_ORIGINS = ("allowed_methods", "allowed_headers", "allow_credentials")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Raises ConfigError on construction, naming the option."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one, printed at the start
    served_model_names: tuple[str, ...] = ()  # the first is the one in answers; none: the engine's model name
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # none: no key is asked for
    admin_api_key: str | None = field(default=None, repr=False)  # for the administrator's routes; None: see door.py
    api_key_file: Path | None = None  # more keys, with names, weights, rates and quotas: key_file.py
    allowed_origins: tuple[str, ...] = ()  # of pages elsewhere that may call this server; none: no CORS at all
    allowed_methods: tuple[str, ...] = ("GET", "POST")  # for those pages
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False  # browsers may send cookies along; none are read here
    ssl_certfile: Path | None = None  # certificate chain, PEM; given: the server speaks TLS, and nothing else
    ssl_keyfile: Path | None = None  # its private key; None: it stands in the same file
    ssl_ca_certs: Path | None = None  # who must have signed the clients' certificates
    ssl_cert_reqs: int | None = None  # 0: clients need none, 1: theirs is checked, 2: they need one; None: 2 with a CA
    explain_cache: bool = False  # answers say why their prompts hit or missed the prefix cache
    chat_template: Path | None = None  # a file that replaces the model's own template
    tool_call_parser: str | None = None  # the dialect of the model's tool calls; None: as its template says
    reasoning_parser: str | None = None  # how its reasoning is marked, "none": not split; None: as its template says
    response_store_path: Path | None = None  # a file that keeps /v1/responses over a restart; None: memory
    response_store_entries: int = 4096  # responses kept, the oldest go first; 0: none is, and store is refused
    response_store_bytes: int = 64 * 2**20  # of what they hold, answers and input together
    shutdown_timeout_seconds: float = 30.0  # how long requests in flight may go on after SIGTERM; 0: not at all
    log_format: LogFormat = "text"
    otlp_traces_endpoint: str | None = None  # URL of an OTLP receiver; None: no traces
    embedding_pooling: Pooling = "mean"  # of /v1/embeddings: over all tokens, or the last one's state
    queue_timeout_seconds: float = 60.0  # a request that waited so long without being started is ended; 0: never
    request_timeout_seconds: float = 0.0  # one that is not done after so long is ended; 0: never
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host is empty; give an address such as 127.0.0.1", param="host")
        if isinstance(self.port, bool) or not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535", param="port")
        for name in self.served_model_names:
            if not name or len(name) > MAX_MODEL_NAME_CHARS or not name.isprintable():
                raise ConfigError(
                    f"served_model_name must have 1 to {MAX_MODEL_NAME_CHARS} printable characters",
                    param="served_model_name",
                )
        for key in self.api_keys:
            check_key("api_key", key)
        if self.admin_api_key is not None:
            check_key("admin_api_key", self.admin_api_key)
            if self.admin_api_key in self.api_keys:
                raise ConfigError(
                    "admin_api_key is one of the api_keys, so every client that has it would be the administrator; "
                    "choose another",
                    param="admin_api_key",
                )
        self._check_origins()
        self._check_tls()
        if self.embedding_pooling not in POOLINGS:
            raise ConfigError(
                f"embedding_pooling is {self.embedding_pooling!r}; it must be {' or '.join(POOLINGS)}",
                param="embedding_pooling",
            )
        check_parsers(self.tool_call_parser, self.reasoning_parser)
        if not isinstance(self.explain_cache, bool):
            raise ConfigError(
                f"explain_cache is {self.explain_cache!r}; it must be true or false", param="explain_cache"
            )
        for name, least in (("response_store_entries", 0), ("response_store_bytes", 1)):
            number = getattr(self, name)
            if isinstance(number, bool) or not least <= number <= MAX_STORE:
                raise ConfigError(f"{name} is {number!r}; it must be from {least} to {MAX_STORE}", param=name)
        for name in ("queue_timeout_seconds", "request_timeout_seconds"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
                raise ConfigError(
                    f"{name} is {seconds!r}; it must be from 0, which means never, to {MAX_TIMEOUT_SECONDS:.0f}",
                    param=name,
                )
        seconds = self.shutdown_timeout_seconds
        if isinstance(seconds, bool) or not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
            raise ConfigError(
                f"shutdown_timeout is {seconds!r}; it must be from 0 to {MAX_TIMEOUT_SECONDS:.0f} seconds",
                param="shutdown_timeout",
            )
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"log_format is {self.log_format!r}; it must be text or json", param="log_format")
        if self.otlp_traces_endpoint is not None:
            _check_endpoint(self.otlp_traces_endpoint)

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins holds {origin[:128]!r}; write * or an origin such as https://example.org",
                    param="allowed_origins",
                )
        if "*" in self.allowed_origins and self.allow_credentials:
            raise ConfigError("allow_credentials needs named origins, not *; name them", param="allow_credentials")
        for each in fields(self):
            if each.name in _OF_ORIGINS and not self.allowed_origins and getattr(self, each.name) != each.default:
                text = f"{each.name} is about pages of allowed_origins, and there are none; name them, or leave it out"
                raise ConfigError(text, param=each.name)
        for name in ("allowed_methods", "allowed_headers"):
            for value in getattr(self, name):
                if value != "*" and not _TOKEN.fullmatch(value):
                    raise ConfigError(f"{name} holds {value[:64]!r}, which is no name", param=name)

    def _check_tls(self) -> None:
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} needs ssl_certfile, the server's certificate; give both", param=name)
        if self.ssl_cert_reqs not in (None, 0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs is {self.ssl_cert_reqs!r}; it may be 0, 1 or 2", param="ssl_cert_reqs")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError(
                "ssl_cert_reqs needs ssl_ca_certs, who signs clients' certificates", param="ssl_cert_reqs"
            )

    @property
    def client_certificates(self) -> int:
        """0: none is asked for, 1: one that is sent must be good, 2: everybody needs one."""
        if self.ssl_cert_reqs is not None:
            return self.ssl_cert_reqs
        return 2 if self.ssl_ca_certs is not None else 0

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def _check_endpoint(endpoint: str) -> None:
    """Raises ConfigError unless it is a URL."""
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(
            f"otlp_traces_endpoint is {endpoint[:128]!r}; it must be a URL such as http://localhost:4318/v1/traces",
            param="otlp_traces_endpoint",
        )


def check_key(name: str, key: str) -> None:
    """Raises ConfigError. The key itself is not said."""
    if not key or not key.isprintable() or key != key.strip():
        raise ConfigError(f"{name} is empty or holds blanks or control characters", param=name)
