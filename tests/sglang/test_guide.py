"""Runs the first block of docs/guide/sglang.md as it is printed: two servers share what one has computed.

Another model, another pool, free ports, and the flags of a machine without a GPU; the line that installs is left to
`make build-sglang`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from conftest import HERE
from engine_process import PROGRAM
from ports import free_port
from servers import kill_group
from test_share import full_pages

ROOT = HERE.parents[1]
PAGE = "docs/guide/sglang.md"
sys.path.append(str(ROOT / "tests/guide"))
from page import blocks_of  # noqa: E402

TOKENS = 1000
START_S = 300
WITHOUT_GPU = ("--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph --dtype float32 "
               "--skip-tokenizer-init --max-total-tokens 8192 --mem-fraction-static 0.3 --context-length 4096 "
               "--skip-server-warmup ")


def generate(port, prompt):
    asked = json.dumps({"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", asked.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def live_blocks(pool):
    done = subprocess.run([str(PROGRAM), "pool", "info", pool, "--json", "-"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["accounting"]["live_blocks"]


def wait_ready(port, shell, log):
    until = time.monotonic() + START_S
    while True:
        assert shell.poll() is None and time.monotonic() < until, log.read_text()[-5000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)


def test_the_block_of_the_page(models, prompt, tmp_path):
    block = next(block for block in blocks_of((ROOT / PAGE).read_text()) if block.mark == "tests/sglang/test_guide.py")
    pool, ports = f"/dev/shm/cachalot_sglang_page_{os.getpid()}", [free_port(), free_port()]
    text = re.sub(r"^pip install .*$", "", block.text, flags=re.MULTILINE).replace("/dev/shm/kv", pool)
    text = re.sub(r"^MODEL=.*$", f"MODEL={models()}", text, flags=re.MULTILINE)
    for printed, here in {"4GiB": "256MiB", "30000 30001": f"{ports[0]} {ports[1]}",
                          "--page-size": WITHOUT_GPU + "--page-size", "python -m": f"{sys.executable} -m"}.items():
        assert printed in text, printed
        text = text.replace(printed, here)
    log = tmp_path / "log"
    variables = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        shell = subprocess.Popen(["bash", "-c", text + "\nwait"], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                 start_new_session=True, env=variables)
    try:
        for port in ports:
            wait_ready(port, shell, log)
        computed = generate(ports[0], prompt(1, TOKENS))
        until = time.monotonic() + 30
        while live_blocks(pool) < TOKENS // 64:  # it stores in the background
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)
        loaded = generate(ports[1], prompt(1, TOKENS))
        assert loaded["meta_info"]["cached_tokens_details"]["host"] == full_pages(64, TOKENS), loaded["meta_info"]
        assert loaded["output_ids"] == computed["output_ids"]
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        try:
            shell.wait(60)
        except subprocess.TimeoutExpired:
            pass
        kill_group(shell)
        Path(pool).unlink(missing_ok=True)
