"""The options of who may come in and how: keys, TLS, pages of other sites. Names are vLLM's where vLLM has one."""

from __future__ import annotations

from octavo.cli.option import Option

ACCESS_OPTIONS = (
    Option(
        "api-key",
        "server",
        "texts",
        "Key clients must send; give it again for more keys. Rather set OCTAVO_API_KEY, or give --api-key-file.",
        field="api_keys",
        metavar="KEY",
    ),
    Option(
        "api-key-file",
        "server",
        "path",
        "TOML file with keys, each with a name, a weight, requests and tokens a minute and a share of the KV cache; "
        "read again on SIGHUP. See docs/security.md.",
        metavar="FILE",
    ),
    Option(
        "admin-api-key",
        "server",
        "text",
        "Key of the administrator, who may reset the prefix cache and see every request's record. Rather set "
        "OCTAVO_ADMIN_API_KEY.",
        metavar="KEY",
    ),
    Option(
        "ssl-certfile",
        "server",
        "path",
        "Certificate chain in PEM: the server speaks TLS 1.2 and newer, and nothing else.",
        metavar="FILE",
    ),
    Option(
        "ssl-keyfile",
        "server",
        "path",
        "Its private key in PEM, without a passphrase. Default: in the same file.",
        metavar="FILE",
    ),
    Option(
        "ssl-ca-certs",
        "server",
        "path",
        "Certificates in PEM of who must have signed the clients' own.",
        metavar="FILE",
    ),
    Option(
        "ssl-cert-reqs",
        "server",
        "whole",
        "Clients need 0 no certificate, 1 a good one where they send one, 2 a good one. Default: 2 with "
        "--ssl-ca-certs, else 0.",
    ),
    Option(
        "allowed-origins",
        "server",
        "texts",
        "Origin of pages elsewhere that may call this server (CORS), such as https://example.org, or * for all; give "
        "it again for more. Default: none.",
        metavar="ORIGIN",
    ),
    Option(
        "allowed-methods",
        "server",
        "texts",
        "Methods that such pages may use; give it again for more. Default: GET and POST.",
        metavar="METHOD",
    ),
    Option(
        "allowed-headers",
        "server",
        "texts",
        "Headers that such pages may send; give it again for more. Default: all.",
        metavar="HEADER",
    ),
    Option(
        "allow-credentials",
        "server",
        "switch",
        "Browsers may send cookies for such pages; nothing here reads any. Needs named origins.",
    ),
)
