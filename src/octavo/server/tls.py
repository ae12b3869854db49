"""The server's certificate, and whose certificates clients must have.

Refuses (ConfigError naming the option) files that cannot be read, a key that does not fit its certificate, and a key
with a passphrase: nobody could type it when the server starts by itself. TLS 1.2 and newer.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig

_REQUIREMENTS = (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """None where no certificate was given: then the server speaks plain HTTP. Raises ConfigError."""
    if config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config.ssl_certfile, config.ssl_keyfile)
    context.verify_mode = _REQUIREMENTS[config.client_certificates]
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(f"ssl_ca_certs {config.ssl_ca_certs}: {_why(error)}", param="ssl_ca_certs") from None
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    def no_passphrase() -> str:
        raise ConfigError(
            f"ssl_keyfile {key or certificate} has a passphrase, which nobody could type at a start; remove it from "
            "the file and guard the file instead",
            param="ssl_keyfile",
        )

    for path, param in ((certificate, "ssl_certfile"), (key, "ssl_keyfile")):
        if path is not None:
            try:
                path.open("rb").close()
            except (OSError, ValueError) as error:
                raise ConfigError(f"{param} {path}: {_why(error)}", param=param) from None
    try:
        context.load_cert_chain(certificate, key, no_passphrase)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl_certfile {certificate} and its key cannot be used together: {_why(error)}", param="ssl_certfile"
        ) from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file").lower().replace("_", " ")
    return (getattr(error, "strerror", None) or "it cannot be read").lower()
