"""Mooncake Store and NIXL behind a pool, through the plug-in for Python classes. `make test-python-storage` installs both."""

import importlib.util
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples/vllm"))
from ports import free_port  # noqa: E402

SITE = Path(importlib.util.find_spec("pytest").origin).parents[1]
BLOCK, CAPACITY, BLOCKS, WAIT_S = 65536, 8, 24, 120


def wait_for(what, condition):
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"not within {WAIT_S} s: {what}"
        time.sleep(0.1)


@pytest.fixture
def start(tmp_path):
    """Starts processes, which end with the test."""
    running = []

    def run(*command, **how):
        running.append(subprocess.Popen([str(word) for word in command], **how))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


class Pool:
    def __init__(self, programs, start, storage):
        self._program = f"{programs}/apps/cachalot/cachalot"
        self._start, self._path = start, f"/dev/shm/cachalot_python_storage.{os.getpid()}"
        plugin = Path(programs).resolve() / "bindings/python_storage/libcachalot_python_storage.so"
        self._storage = f"plugin:{plugin}?path={ROOT}/examples/python_storage:{SITE}&{storage}"
        try:
            self.serve()
        except BaseException:
            self.lose()
            raise

    def serve(self):
        self.keeper = self._start(
            self._program, "serve", "--pool", self._path, "--create", "--block-bytes", BLOCK, "--capacity-blocks", CAPACITY,
            "--metrics", "127.0.0.1:0", "--storage", self._storage, stdout=subprocess.PIPE, text=True)
        ready = self.keeper.stdout.readline()
        self._metrics = re.search(r"metrics=(\S+)", ready).group(1)
        wait_for("storage in use", lambda: self.metric("up") == 1)

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self._metrics}/metrics") as answer:
            found = re.search(rf"^cachalot_storage_{name}(?:_total)?(?:\{{.*?\}})? (\S+)$", answer.read().decode(), re.M)
        return float(found.group(1)) if found else None

    def call(self, *words, data=None):
        return subprocess.run([self._program, *words, "--pool", self._path], input=data, capture_output=True, timeout=WAIT_S)

    def put(self, key, data):
        done = self.call("put", key, data=data)
        assert done.returncode == 0, done.stderr

    def get(self, key):
        done = self.call("get", key, "--storage-wait", "30")
        return done.stdout if done.returncode == 0 else None

    def lose(self):
        self.keeper.send_signal(signal.SIGKILL)
        self.keeper.wait()
        Path(self._path).unlink(missing_ok=True)

    def stop(self):
        assert self.call("stop").returncode == 0
        return self.keeper.wait(WAIT_S)


def data_of(block):
    return random.Random(block).randbytes(BLOCK)


def check_that_blocks_come_back(pool):
    """Three times what the pool holds goes out and comes back, from this keeper and from one with a new pool."""
    for block in range(BLOCKS):
        pool.put(f"block-{block}", data_of(block))
        wait_for(f"block {block} is written", lambda: pool.metric("written_blocks") == block + 1)
    assert pool.call("lookup", "block-0").returncode == 1  # it was evicted
    for block in range(BLOCKS):
        assert pool.get(f"block-{block}") == data_of(block), block
    assert pool.metric("fetched_blocks") >= BLOCKS - CAPACITY
    pool.lose()
    pool.serve()
    pool.put("makes-the-namespace", b"0" * 64)  # get makes none
    for block in range(BLOCKS):
        assert pool.get(f"block-{block}") == data_of(block), block
    assert pool.metric("fetched_blocks") == BLOCKS
    assert pool.metric("damaged_blocks") == 0 and pool.metric("outages") == 0


def needs(*modules):
    """Modules of which one has to be installed."""
    if not any(importlib.util.find_spec(module) for module in modules):
        pytest.skip(f"not installed: {' or '.join(modules)}; make test-python-storage installs it")


@pytest.fixture
def programs(request):
    return request.config.getoption("programs")


def test_nixl_keeps_blocks_in_files(programs, start, tmp_path):
    needs("nixl", "nixl_cu12", "nixl_cu13")
    values = tmp_path / "values"
    values.mkdir()
    (values / "new.0").write_bytes(b"half a value of another keeper")
    (values / "new.1").write_bytes(b"half a value of a keeper that was killed")
    os.utime(values / "new.1", (0, 0))
    pool = Pool(programs, start, f"module=nixl_storage&class=NixlStorage&folder={values}")
    try:
        check_that_blocks_come_back(pool)
        wait_for("a file for each block", lambda: len(list(values.iterdir())) == BLOCKS + 2)
        assert (values / "new.0").read_bytes() == b"half a value of another keeper"
        assert not (values / "new.1").exists()
        assert pool.stop() == 0
    finally:
        pool.lose()


def test_mooncake_keeps_blocks_and_its_end_costs_misses_alone(programs, start, tmp_path):
    needs("mooncake")
    master_port, admin_port, client_port = free_port(), free_port(), free_port()
    log = open(tmp_path / "log", "w")
    programs_of_venv = Path(sys.executable).parent
    master = start(programs_of_venv / "mooncake_master", f"--rpc_port={master_port}", f"--metrics_port={admin_port}",
                   stdout=log, stderr=log)
    wait_for("the master listens", lambda: not socket.socket().connect_ex(("127.0.0.1", master_port)))
    start(programs_of_venv / "mooncake_client", f"--master_server_address=127.0.0.1:{master_port}", f"--port={client_port}",
          "--metadata_server=P2PHANDSHAKE", "--host=127.0.0.1", "--global_segment_size=256MB", "--local_buffer_size=64MB",
          stdout=log, stderr=log)
    wait_for("its memory is mounted", lambda: "mount_segment" in (tmp_path / "log").read_text())
    pool = Pool(programs, start, "module=mooncake_storage&class=MooncakeStorage"
                f"&master=127.0.0.1:{master_port}&admin=127.0.0.1:{admin_port}")
    try:
        check_that_blocks_come_back(pool)
        master.kill()
        last = BLOCKS - 1  # got last: the pool has it
        assert pool.get(f"block-{last}") == data_of(last)
        pool.put("new", b"n" * 64)
        assert pool.get("new") == b"n" * 64
        assert pool.call("get", "block-0", "--storage-wait", "1").returncode == 1
        assert pool.stop() == 0
    finally:
        pool.lose()
