"""What the pool does for a request, as OpenTelemetry spans in the request's trace.

There are some if vLLM exports traces (--otlp-traces-endpoint), and for requests that came with a trace (`traceparent`):
    cachalot.lookup  from the scheduler's first question to its answer, waits for storage and for prefill engines included
    cachalot.load    of each worker: into the engine's pages
    cachalot.store   of each worker: into the pool, after the request's step; a long prompt has several

Threads: any.
"""

import time
from typing import Any, Mapping, Optional

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # an engine without it exports nothing
    trace = None


def headers_of(request: Any) -> Optional[Mapping[str, str]]:
    """request: vllm.v1.request.Request. None: it has no trace, or vLLM exports none."""
    return getattr(request, "trace_headers", None) or None


def record(headers: Optional[Mapping[str, str]], name: str, began: float, **attributes: Any) -> None:
    """A span that ends now. headers: of the request. began: of time.monotonic()."""
    if trace is None or not headers:
        return
    now = time.time_ns()
    span = trace.get_tracer("cachalot").start_span(
        f"cachalot.{name}", context=TraceContextTextMapPropagator().extract(headers),
        start_time=now - int((time.monotonic() - began) * 1e9),
        attributes={f"cachalot.{key}": value for key, value in attributes.items()})
    span.end(now)
