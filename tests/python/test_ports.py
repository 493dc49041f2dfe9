"""Ports of the servers of tests: drawn below those of outgoing connections, and drawn again where another has them."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_server import Prometheus, status  # which adds the folder of ports.py

from ports import free_port, start_at_free_port


def test_ports_that_others_have_are_not_drawn():
    taken = [socket.socket() for _ in range(600)]
    for i, one in enumerate(taken):
        try:
            one.bind(("127.0.0.1", 10000 + 7 * i))
        except OSError:
            pass  # then another has it
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(300):
        port = free_port()
        socket.create_server(("127.0.0.1", port)).close()
        assert port < end or end < 11000


def test_no_two_draws_of_live_processes_are_one_port():
    draw = "import ports, sys; print(*[ports.free_port() for _ in range(200)], flush=True); sys.stdin.read()"
    others = [subprocess.Popen([sys.executable, "-c", draw], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               cwd=Path(sys.modules["ports"].__file__).parent) for _ in range(2)]
    drawn = [str(free_port()) for _ in range(200)] + [port for one in others for port in one.stdout.readline().split()]
    for one in others:
        one.communicate()
    assert len(set(drawn)) == len(drawn) == 600


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: tools/setup --for test")
def test_a_server_whose_port_is_taken_starts_at_another(tmp_path, monkeypatch):
    thief = socket.create_server(("127.0.0.1", 0))
    drawn = [thief.getsockname()[1], free_port()]
    monkeypatch.setattr("ports.free_port", lambda: drawn.pop(0))
    server = Prometheus(tmp_path, [])
    try:
        assert server.address != f"127.0.0.1:{thief.getsockname()[1]}"
        assert status(server.address, "/-/ready") == 200
    finally:
        server.process.kill()
        server.process.wait()


def test_it_fails_after_some_tries_with_what_the_server_said():
    calls = []

    def start(port, said="bind: Address already in use"):
        calls.append(port)
        raise RuntimeError(said)

    with pytest.raises(RuntimeError, match="Address already in use"):
        start_at_free_port(start)
    assert len(calls) == len(set(calls)) == 5
    with pytest.raises(RuntimeError, match="no licence"):
        start_at_free_port(lambda port: start(port, "no licence"))
    assert len(calls) == 6
