"""vLLM's OpenAI server, twice: what one has computed the other one takes from the pool, over HTTP with streaming."""

import time

import pytest
from servers import Server


@pytest.mark.parametrize("roles", [("kv_producer", "kv_consumer")])
def test_two_servers(models, pools, prompt, tmp_path, roles):
    pool = pools()
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
        assert servers[0].metrics()["vllm:cachalot_stored_blocks_total"] == 11
        consumer = servers[1].metrics()
        assert consumer["vllm:cachalot_loaded_blocks_total"] == 11
        assert consumer["vllm:cachalot_loaded_bytes_total"] == 11 * 262144
        assert consumer["vllm:external_prefix_cache_hits_total"] == 1408
        assert consumer["vllm:cachalot_stores_total"] == 0  # it only loads
    finally:
        for server in servers:
            server.close()
