"""schemathesis over /openapi.json against a real `octavo serve`: whatever the document allows, and what it forbids, is
answered as the document says, and never with a fault of the server's own.

A few examples an operation; 200 with ARGS='-m "clients and long"'.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks as checks_of
from schemathesis.specs.openapi import checks as openapi_checks

from support.server_process import PYTHON, SOURCE, ServerProcess, serving

pytestmark = pytest.mark.clients
# The operations must be known before there is a server, and in an environment without octavo's packages.
DOCUMENT = (
    "import json; from octavo.server import app, config, metrics, state; "
    "print(json.dumps(app.build_app(state.ServerState(config.ServerConfig(), metrics.ServerMetrics())).openapi()))"
)
SCHEMA = schemathesis.openapi.from_dict(
    json.loads(
        subprocess.run(
            [PYTHON, "-c", DOCUMENT], env=dict(os.environ, PYTHONPATH=str(SOURCE)), capture_output=True, check=True
        ).stdout
    )
)
CHECKS: Any = [
    checks_of.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The model is small in every way, so that no request takes long."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving("fake", log, ("--max-model-len", "64", "--max-num-seqs", "64")) as started:
        yield started
        assert "Traceback" not in started.output
        assert started.is_idle()


@SCHEMA.parametrize()
@examples(3)
def test_a_few_examples_of_each_operation(case: schemathesis.Case, tiny_server: ServerProcess) -> None:
    case.call_and_validate(base_url=tiny_server.url, checks=CHECKS)


@pytest.mark.long
@SCHEMA.parametrize()
@examples(200)
def test_two_hundred_examples_of_each_operation(case: schemathesis.Case, tiny_server: ServerProcess) -> None:
    case.call_and_validate(base_url=tiny_server.url, checks=CHECKS)
