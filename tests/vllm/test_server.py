"""vLLM's OpenAI server, twice: what one has computed the other one takes from the pool, over HTTP with streaming."""

import shutil
import sys
import time

import pytest
from processes import HERE
from servers import Server

sys.path.append(str(HERE.parent / "python"))
from prometheus_server import Prometheus  # noqa: E402


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
