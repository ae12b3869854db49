"""The lines that requests leave in the log, where it is JSON: one each, when the answer ended.

Refuses prompts, answers, keys and what stands behind a path's question mark; a path is the client's own text, so it is
escaped and bounded like all else. Probes that find the server well leave no line.
"""

from __future__ import annotations

import logging

from octavo.log_lines import one_line
from octavo.server.visit import Visit

_QUIET_PATHS = frozenset({"/health", "/ping", "/metrics", "/load"})
_MAX_PATH_CHARS = 256
_log = logging.getLogger("octavo.access")


def log_visit(visit: Visit) -> None:
    if visit.path in _QUIET_PATHS and visit.status == 200:
        return
    path = one_line(visit.path, _MAX_PATH_CHARS)
    fields = {
        "method": visit.method,
        "path": path,
        "status": visit.status,
        "duration_ms": round(visit.seconds * 1000, 3),
        "bytes": visit.num_bytes,
        "request_id": visit.request_id,
        "address": visit.address,
        "client": visit.client,
        **visit.work(),
    }
    _log.info("%s %s %d", visit.method, path, visit.status, extra={"fields": fields})
