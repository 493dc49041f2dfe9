"""vLLM's OpenAI server, twice: what one has computed the other one takes from the pool, over HTTP with streaming."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

START_S = 400


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, model, pool, role, log):
        self.port, self.log = free_port(), log
        transfer = {"kv_connector": "CachalotConnector", "kv_role": role, "kv_connector_extra_config": {"pool": pool}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name",
             "tiny", "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--max-model-len", "4096",
             "--kv-cache-memory-bytes", "67108864", "--max-num-seqs", "4", "--enable-prompt-tokens-details",
             "--kv-transfer-config", json.dumps(transfer)],
            stdout=open(log, "w"), stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                 "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})

    def wait_ready(self):
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(1)
        raise AssertionError(open(self.log).read()[-5000:])

    def complete(self, prompt, **options):
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True,
                           **options}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.mark.parametrize("roles", [("kv_producer", "kv_consumer")])
def test_two_servers(models, pools, prompt, tmp_path, roles):
    pool = pools()
    servers = [Server(models(), pool.path, role, tmp_path / f"{role}.log") for role in roles]
    try:
        for server in servers:
            server.wait_ready()
        one = prompt(1)
        computed = json.loads(servers[0].complete(one))
        time.sleep(1)
        lines = servers[1].complete(one, stream=True, stream_options={"include_usage": True}).splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
        assert text == computed["choices"][0]["text"]
        assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1408
        assert servers[0].metrics()["vllm:cachalot_stored_blocks_total"] == 11
        consumer = servers[1].metrics()
        assert consumer["vllm:cachalot_loaded_blocks_total"] == 11
        assert consumer["vllm:cachalot_loaded_bytes_total"] == 11 * 262144
        assert consumer["vllm:external_prefix_cache_hits_total"] == 1408
        assert consumer["vllm:cachalot_stores_total"] == 0  # it only loads
    finally:
        for server in servers:
            server.close()
