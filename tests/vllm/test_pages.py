"""Runs the first block of README.md and of docs/guide/vllm.md as it is printed: two servers share what one has computed.

Another model, another pool, free ports and less memory; the lines that install are left to `make build-vllm`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from servers import Api, kill_group

from cachalot.command import PROGRAM

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/guide"))
from page import blocks_of  # noqa: E402

INSTALLED = re.compile(r"^(tools/setup|pip install) .*$", re.MULTILINE)
SIZES = {"4GiB": "256MiB", " 2G ": " 128M "}
START_S = 600


class Served(Api):
    """What the block has started."""

    def __init__(self, port):
        super().__init__(f"http://127.0.0.1:{port}")

    def wait_ready(self, shell, log):
        until = time.monotonic() + START_S
        while True:
            assert shell.poll() is None and time.monotonic() < until, log.read_text()[-5000:]
            try:
                self.get("/v1/models")
                return
            except OSError:
                time.sleep(0.5)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/vllm.md"])
def test_the_block_of_the_page(page, models, prompt, tmp_path):
    block = next(block for block in blocks_of((ROOT / page).read_text()) if block.mark == "tests/vllm/test_pages.py")
    assert len(INSTALLED.findall(block.text)) == 2
    model, pool = models(), f"/dev/shm/cachalot_vllm_page_{os.getpid()}"
    ports = [free_port(), free_port()]
    text = INSTALLED.sub("", block.text).replace("/dev/shm/kv", pool)
    text = text.replace(". build/vllm/venv/bin/activate", f". {Path(sys.prefix) / 'bin/activate'}")
    text = re.sub(r"^MODEL=.*$", f"MODEL={model}", text, flags=re.MULTILINE)
    for printed, here in {**SIZES, "8000": str(ports[0]), "8001": str(ports[1])}.items():
        assert printed in text or printed == "4GiB"
        text = text.replace(printed, here)
    log = tmp_path / "log"
    with log.open("w") as out:
        shell = subprocess.Popen(["bash", "-c", text + "\nwait"], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                 start_new_session=True, env={**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"})
    try:
        servers = [Served(port) for port in ports]
        for server in servers:
            server.wait_ready(shell, log)
        name = servers[0].get("/v1/models")["data"][0]["id"]
        computed = servers[0].complete(prompt(1), model=name)
        stored = "vllm:cachalot_stored_blocks_total"
        until = time.monotonic() + 60
        while servers[0].metrics()[stored] < 11:
            assert time.monotonic() < until, servers[0].metrics()
            time.sleep(0.1)
        loaded = servers[1].complete(prompt(1), model=name)
        assert loaded["text"] == computed["text"]
        assert servers[1].metrics()["vllm:cachalot_loaded_blocks_total"] == 11
        assert "deprecated" not in "".join(line for line in log.read_text().splitlines(True) if "api_server" in line)
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        try:
            shell.wait(60)
        except subprocess.TimeoutExpired:
            pass
        kill_group(shell)
        Path(pool).unlink(missing_ok=True)
