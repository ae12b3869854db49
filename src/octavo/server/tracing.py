"""OpenTelemetry: one span a request, with events where its prompts left the queue, began and gave their first token.

Needs the extra `octavo[otel]`; nothing of it is imported before `Tracer.start`, which is called only where
--otlp-traces-endpoint is given. A client's `traceparent` (W3C) makes the span a child of the client's own, and its
sampling decision holds. Refuses to say what was said: counts, times and parameters only. What the collector does not
take is dropped after a bounded buffer; no request waits for it.

Attributes have vLLM's names where it has one (gen_ai.*); the SDK's own environment variables (OTEL_SERVICE_NAME,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, ...) hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.engine.engine_request import call_of
from octavo.errors import ConfigError
from octavo.server.visit import CLIENT_CLOSED_REQUEST, Visit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanProcessor

    from octavo.outputs import RequestTimings

EXPORT_TIMEOUT_SECONDS = 3.0
CLOSE_TIMEOUT_SECONDS = 3.0
_QUIET_PATHS = frozenset({"/health", "/ping", "/metrics", "/load"})
_CARRIED = ("traceparent", "tracestate")


class Tracer:
    """`record` from the event loop; sends from a thread of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._failed: Callable[[str], Status] = lambda text: Status(StatusCode.ERROR, text)

    @classmethod
    def start(cls, endpoint: str) -> Tracer:
        """Raises ConfigError where the extra is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(
                "--otlp-traces-endpoint needs OpenTelemetry, which is not installed; pip install opentelemetry-sdk "
                "opentelemetry-exporter-otlp-proto-http",
                param="otlp_traces_endpoint",
            ) from None
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_SECONDS)
        return cls(make_provider(BatchSpanProcessor(exporter)))

    def record(self, visit: Visit) -> None:
        """A request that ended."""
        if visit.path in _QUIET_PATHS:
            return
        carried = {name: _header(visit, name) for name in _CARRIED}
        context = self._propagator.extract({name: value for name, value in carried.items() if value})
        wall = time.time_ns() - time.monotonic_ns()  # what turns a moment of the engine's clock into one of the world's

        def moment(seconds: float) -> int:
            return wall + round(seconds * 1e9)

        span = self._tracer.start_span(
            "llm_request" if visit.generations else visit.method,
            context=context,
            kind=self._kind,
            attributes=_attributes(visit),
            start_time=moment(visit.began),
        )
        for number, timings in enumerate(visit.timings):
            for name, seconds in _events(timings):
                span.add_event(name, {"prompt": number}, timestamp=moment(seconds))
        if visit.status >= 500:
            span.set_status(self._failed(f"answered {visit.status}"))
        elif visit.status != CLIENT_CLOSED_REQUEST and visit.status < 400 and not visit.is_complete:
            span.set_status(self._failed("the answer was not completed"))
        span.end(end_time=moment(visit.ended))

    def close(self) -> None:
        """Sends what is left, as far as the collector takes it in time."""
        closing = threading.Thread(target=self._provider.shutdown, name="octavo-traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_SECONDS)


def make_provider(processor: SpanProcessor) -> TracerProvider:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    named = Resource({"service.name": "octavo", "service.version": __version__})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def _header(visit: Visit, name: str) -> str:
    """Of the one header with this name; several are none."""
    values = [value for key, value in visit.headers if key == name.encode("ascii")]
    return values[0].decode("latin-1") if len(values) == 1 else ""


def _events(timings: RequestTimings) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = [("queue", timings.arrival_time)]
    if timings.first_scheduled_time is not None:
        found.append(("prefill", timings.first_scheduled_time))
    if timings.first_token_time is not None:
        found.append(("decode", timings.first_token_time))
    found.append(("end", timings.finished_time))
    return found


def _attributes(visit: Visit) -> dict[str, Any]:
    found: dict[str, Any] = {
        "http.request.method": visit.method,
        "url.path": visit.path[:256],
        "http.response.status_code": visit.status,
        "octavo.request_id": visit.request_id,
        "octavo.client": visit.client,
    }
    if not visit.generations:
        return found
    first, sampling = visit.generations[0], visit.generations[0].requests[0].sampling
    found |= {
        "gen_ai.request.id": call_of(first.requests[0].request_id),
        "gen_ai.response.model": first.model,
        "gen_ai.request.n": sampling.n,
        "gen_ai.request.temperature": float(sampling.temperature),
        "gen_ai.request.top_p": float(sampling.top_p),
        "gen_ai.usage.prompt_tokens": sum(each.usage.prompt_tokens for each in visit.generations),
        "gen_ai.usage.completion_tokens": sum(each.usage.completion_tokens for each in visit.generations),
        "octavo.cached_tokens": sum(each.usage.cached_tokens for each in visit.generations),
    }
    if sampling.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = sampling.max_tokens
    for timings in visit.timings[:1]:
        found |= _latencies(timings)
    return found


def _latencies(timings: RequestTimings) -> dict[str, Any]:
    """Of the call's first prompt, in seconds."""
    arrival, scheduled, first = timings.arrival_time, timings.first_scheduled_time, timings.first_token_time
    found: dict[str, Any] = {
        "gen_ai.latency.e2e": timings.finished_time - arrival,
        "octavo.preemptions": timings.num_preemptions,
        "octavo.latency.preempted": timings.preempted_seconds,
    }
    if scheduled is not None:
        found["gen_ai.latency.time_in_queue"] = scheduled - arrival
        found["gen_ai.latency.time_in_model_inference"] = timings.finished_time - scheduled
    if first is not None:
        found["gen_ai.latency.time_to_first_token"] = first - arrival
        found["gen_ai.latency.time_in_model_decode"] = timings.finished_time - first
    if scheduled is not None and first is not None:
        found["gen_ai.latency.time_in_model_prefill"] = first - scheduled
    return found
