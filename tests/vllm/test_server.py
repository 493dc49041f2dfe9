"""vLLM's OpenAI server: what one has computed another one takes from the pool, over HTTP with streaming; and what a
collector of OpenTelemetry gets of it."""

import json
import shutil
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import HERE
from servers import MODEL, Server

sys.path.append(str(HERE.parent / "python"))
from prometheus_server import Prometheus  # noqa: E402

TRACES = ["0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319d"]


@pytest.fixture
def prometheus(tmp_path):
    assert shutil.which("prometheus"), "no prometheus: tools/setup --for test"
    made = []

    def start(*addresses):
        made.append(Prometheus(tmp_path, addresses))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("roles", [("kv_producer", "kv_consumer")])
def test_two_servers(models, pools, prompt, prometheus, tmp_path, roles):
    pool = pools(1 << 18, 256, "--metrics", "127.0.0.1:0")
    servers = [Server(models(), tmp_path / f"{role}.log", pool.path, role) for role in roles]
    try:
        for server in servers:
            server.wait_ready()
        one = prompt(1)
        computed = servers[0].complete(one)
        time.sleep(1)
        answer = servers[1].stream(one)
        assert answer["text"] == computed["text"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 1408
        assert servers[1].metrics()["vllm:cachalot_stores_total"] == 0  # it only loads
        metrics = pool.ready["metrics"]
        prometheus(metrics, *(server.url.removeprefix("http://") for server in servers)).wait_for({
            "sum(vllm:cachalot_stored_blocks_total)": 11,
            "sum(vllm:cachalot_loaded_blocks_total)": 11,
            "sum(vllm:cachalot_loaded_bytes_total)": 11 * 262144,
            "sum(vllm:external_prefix_cache_hits_total)": 1408,
            "sum(cachalot_client_committed_blocks_total)": 11,
            "sum(cachalot_client_read_blocks_total)": 11,
            "sum(cachalot_client_read_bytes_total)": 11 * 262144,
        })
    finally:
        for server in servers:
            server.close()


class Collector:
    """All spans that were sent to it: (trace id, name, attributes, nanoseconds)."""

    def __init__(self):
        self.spans = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in of_process.scope_spans:
                        self.spans += [(span.trace_id.hex(), span.name, {
                            one.key: one.value.int_value or one.value.bool_value for one in span.attributes
                        }, span.end_time_unix_nano - span.start_time_unix_nano) for span in scope.spans]
                handler.send_response(200)
                handler.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def ours(self):
        return [span for span in self.spans if span[1].startswith("cachalot.")]


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.server.shutdown()


def ask(server, prompt, trace=None):
    headers = {"Content-Type": "application/json"}
    if trace is not None:
        headers["traceparent"] = f"00-{trace}-b7ad6b7169203331-01"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def test_spans_of_a_request_are_in_its_trace(models, pools, prompt, collector, tmp_path):
    pool = pools(1 << 18, 256)
    # Without a cache of its own: the second request loads what the first one has stored.
    with Server(models(), tmp_path / "log", pool.path, flags=["--no-enable-prefix-caching", "--otlp-traces-endpoint", collector.url],
                environment={"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}) as server:
        server.wait_ready()
        texts = [ask(server, prompt(1), TRACES[0])]
        time.sleep(1)
        texts.append(ask(server, prompt(1), TRACES[1]))
        texts.append(ask(server, prompt(1)))
        until = time.monotonic() + 20
        while len(collector.ours()) < 4 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        assert server.metrics()["vllm:cachalot_loads_total"] == 2
    assert texts[1:] == texts[:1] * 2
    assert sorted(span[:3] for span in collector.ours()) == [
        (TRACES[0], "cachalot.lookup", {"cachalot.asked_blocks": 11, "cachalot.found_blocks": 0}),
        (TRACES[0], "cachalot.store", {"cachalot.blocks": 11, "cachalot.is_complete": True}),
        (TRACES[1], "cachalot.load", {"cachalot.blocks": 11, "cachalot.right_blocks": 11}),
        (TRACES[1], "cachalot.lookup", {"cachalot.asked_blocks": 11, "cachalot.found_blocks": 11}),
    ]
    assert all(0 < span[3] < 60e9 for span in collector.ours())
    assert {span[0] for span in collector.spans if span[1] == "llm_request"} >= set(TRACES)
