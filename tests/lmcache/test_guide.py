"""Runs the blocks of docs/guide/lmcache.md as they are printed: two servers attach to a pool, and LMCache's benchmark verifies bytes.

Another pool, free ports and smaller sizes; the line that installs is left to `make build-lmcache`.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import HERE
from engine_process import PROGRAM
from ports import free_port
from servers import kill_group

ROOT = HERE.parents[1]
PAGE = "docs/guide/lmcache.md"
sys.path.append(str(ROOT / "tests/guide"))
from page import blocks_of  # noqa: E402

WAIT_S = 180
SMALLER = {"pip install --no-deps .": "true", "--capacity 16GiB": "--capacity 64MiB", "--block-bytes 32MiB": "--block-bytes 1MiB",
           "--l1-size-gb 4": "--l1-size-gb 1", "--capacity 2GiB": "--capacity 64MiB", "--block-bytes 16MiB": "--block-bytes 64KiB",
           "--data-size-kb 16384": "--data-size-kb 64"}


@pytest.fixture
def page(tmp_path):
    """Starts blocks of the page in a shell, each after the ones before."""
    pool, log = f"/dev/shm/cachalot_lmcache_page_{os.getpid()}", tmp_path / "log"
    started = []

    def start(number, replaced=()):
        blocks = [block for block in blocks_of((ROOT / PAGE).read_text()) if block.mark == "tests/lmcache/test_guide.py"]
        text = blocks[number].text.replace("/dev/shm/kv", pool).replace("/dev/shm/fs", str(tmp_path / "fs"))
        for printed, here in {**SMALLER, **dict(replaced)}.items():
            text = text.replace(printed, here)
        path = f"{PROGRAM.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        with log.open("w") as out:
            started.append(subprocess.Popen(["bash", "-c", text + "\nwait"], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                            start_new_session=True, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}))
        return started[-1], log

    yield start
    for shell in started:
        try:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        kill_group(shell)
    for file in Path("/dev/shm").glob(Path(pool).name + "*"):
        file.unlink()


def adapter_of(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return json.load(answer)["storage_manager"]["l2_adapters"][0]
    except (OSError, KeyError):
        return {}


def test_both_servers_attach(page):
    ports = [free_port(), free_port()]
    http = [free_port(), free_port()]
    shell, log = page(0, {"5555 5556": f"{ports[0]}:{http[0]} {ports[1]}:{http[1]}", "--port $port": "--port ${port%:*}",
                          "$((port + 3000))": "${port#*:}"})
    until = time.monotonic() + WAIT_S
    while not all(adapter_of(port).get("is_attached") for port in http):
        assert shell.poll() is None and time.monotonic() < until, log.read_text()[-5000:]
        time.sleep(0.5)
    assert all(adapter_of(port)["type"] == "CachalotL2Adapter" for port in http)


def test_the_benchmark_verifies_the_bytes(page):
    shell, log = page(1)
    until = time.monotonic() + WAIT_S
    while log.read_text().count("keys data verified OK") < 2:  # of the pool, and of files
        assert shell.poll() is None and time.monotonic() < until, log.read_text()[-5000:]
        time.sleep(0.5)
    assert "MISMATCH" not in log.read_text()
    # Of 10 rounds, with 4 objects each, half of them looked for in vain.
    assert log.read_text().replace(" ", "").count("Totalsuccess:40\n") == 4
    assert log.read_text().replace(" ", "").count("Totalsuccess:20\n") == 2
