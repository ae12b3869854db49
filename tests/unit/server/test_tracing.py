"""Spans of requests: their parents, their events and times; and nothing of OpenTelemetry where nobody asks for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.outputs import RequestTimings
from octavo.server import tracing
from octavo.server.config import ServerConfig
from octavo.server.state import Phase
from octavo.server.tracing import Tracer, make_provider
from octavo.server.visit import Visit
from support.http_site import CHAT, run, watched

pytest.importorskip("opentelemetry.sdk", reason="the extra octavo[otel] is not installed")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Spans:
    """Keeps what a tracer made."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self.tracer = Tracer(make_provider(SimpleSpanProcessor(self._exporter)))

    def all(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())


def test_a_call_is_one_span_with_events_where_it_left_the_queue_and_gave_its_first_token() -> None:
    spans = Spans()

    async def go() -> None:
        async with watched(tell=spans.tracer.record) as (here, _):
            answer = await here.chat(n=2, temperature=0.5, max_tokens=6, ignore_eos=True)
            [span] = spans.all()
            assert span.name == "llm_request"
            assert span.kind.name == "SERVER"
            assert [event.name for event in span.events] == ["queue", "prefill", "decode", "end"]
            moments = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
            assert moments == sorted(moments)
            found = dict(span.attributes)
            assert found["gen_ai.request.id"] == answer.json()["id"]
            assert found["gen_ai.usage.completion_tokens"] == 12
            assert found["gen_ai.usage.prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
            assert (found["gen_ai.request.n"], found["gen_ai.request.temperature"]) == (2, 0.5)
            assert found["http.response.status_code"] == 200
            assert found["gen_ai.latency.e2e"] >= found["gen_ai.latency.time_to_first_token"] > 0
            assert span.parent is None
            assert span.status.status_code.name == "UNSET"
            assert span.resource.attributes["service.name"] == "octavo"
            assert "hello" not in str(found)

    run(go())


def test_times_are_the_engines_own_on_the_worlds_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_attributes", lambda visit: {})  # only the times are looked at
    spans = Spans()
    visit = Visit("POST", CHAT, "", (), began=5.0, ended=25.0, status=200, is_whole=True)
    timed = RequestTimings(10.0, 11.0, 14.0, 20.0, 5, 0, 3, 3, 1, 4)
    visit.generations.append(SimpleNamespace(timings={0: timed}, is_complete=True))  # type: ignore[arg-type]
    spans.tracer.record(visit)
    [span] = spans.all()
    seconds = [(event.timestamp - span.start_time) / 1e9 for event in span.events]
    assert seconds == pytest.approx([5.0, 6.0, 9.0, 15.0])
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(20.0)


@pytest.mark.parametrize(("flags", "num_spans"), [("01", 1), ("00", 0)])
def test_a_clients_traceparent_is_the_parent_and_its_sampling_holds(flags: str, num_spans: int) -> None:
    spans = Spans()

    async def go() -> None:
        async with watched(tell=spans.tracer.record) as (here, _):
            here.client.headers["traceparent"] = f"00-{TRACE}-{PARENT}-{flags}"
            await here.complete()
            assert len(spans.all()) == num_spans
            for span in spans.all():
                assert f"{span.context.trace_id:032x}" == TRACE
                assert f"{span.parent.span_id:016x}" == PARENT

    run(go())


@pytest.mark.parametrize("bad", ["", "nonsense", "00-0-0-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 5000, "00-é"])
def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(bad: str) -> None:
    spans = Spans()

    async def go() -> None:
        async with watched(tell=spans.tracer.record) as (here, _):
            answer = await here.client.get("/v1/models", headers=[(b"traceparent", bad.encode("latin-1"))])
            assert answer.status_code == 200
            [span] = spans.all()
            assert span.parent is None
            assert span.name == "GET"

    run(go())


def test_faults_are_marked_and_refusals_are_not() -> None:
    spans = Spans()

    async def go() -> None:
        async with watched(tell=spans.tracer.record) as (here, _):
            await here.complete(prompt="")
            here.engine.hold()
            task = asyncio.create_task(here.complete(stream=True))
            await here.engine.submitted.wait()
            [found], _ = await here.engine.list_requests(5)
            await here.engine.cancel(found.call_id)
            here.engine.running.set()
            await task
            await here.client.get("/health")
            refused, broken = spans.all()  # and none of the probe
            assert (refused.attributes["http.response.status_code"], refused.status.status_code.name) == (400, "UNSET")
            assert broken.attributes["http.response.status_code"] == 403, "it was ended before its first token"
            assert broken.status.status_code.name == "UNSET"
            here.engine.died.set()
            here.state.phase = Phase.DEAD
            await here.complete()
            assert spans.all()[-1].status.status_code.name == "ERROR"

    run(go())


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_collector_before_the_tracer_has_closed(collector: tuple[str, list[bytes]]) -> None:
    url, bodies = collector
    tracer = Tracer.start(url)
    tracer.record(Visit("GET", "/v1/models", "", (), began=1.0, ended=2.0, status=200, is_whole=True))
    tracer.close()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    [span] = ExportTraceServiceRequest.FromString(b"".join(bodies)).resource_spans[0].scope_spans[0].spans
    assert span.name == "GET"


def test_an_endpoint_must_be_a_url() -> None:
    ServerConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces")
    for bad in ("", "localhost:4317", "ftp://x", "http://", "http://[", "x" * 9999):
        with pytest.raises(ConfigError, match="must be a URL"):
            ServerConfig(otlp_traces_endpoint=bad)


def test_nothing_of_it_is_imported_before_it_is_asked_for_and_its_absence_is_said() -> None:
    program = (
        "import sys\n"
        "import octavo.server.app, octavo.server.run, octavo.server.tracing\n"
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"  # fastapi itself looks for the API
        "assert not [name for name in sys.modules if name.startswith(heavy)], 'imported too early'\n"
        "sys.modules['opentelemetry.exporter'] = None\n"
        "try:\n"
        "    octavo.server.tracing.Tracer.start('http://x')\n"
        "except octavo.server.tracing.ConfigError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install opentelemetry-sdk" in done.stdout
