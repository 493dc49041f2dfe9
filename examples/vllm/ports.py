"""Ports for servers that a test or a demonstration starts. Needs nothing but the standard library, and Linux."""

import random
import socket
from pathlib import Path
from typing import Callable, List, TypeVar

Server = TypeVar("Server")
_FIRST, _FEWEST, _TRIES = 10000, 1000, 5
_reserved: List[socket.socket] = []


def free_port() -> int:
    """A port that nothing has now. No outgoing connection takes it, for it is below their ports; and no other call gets it
    until this process ends, for an abstract socket has that name, also in tests in C++ (src/testing/storage/server.cpp)."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(_FIRST, 65536 if end < _FIRST + _FEWEST else end), _FEWEST):
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with socket.socket() as probe:
                probe.bind(("", port))
            name.bind(f"\0cachalot_test_port.{port}")
        except OSError:
            name.close()
            continue
        _reserved.append(name)
        return port
    raise RuntimeError("no port is free")


def start_at_free_port(start: Callable[[int], Server]) -> Server:
    """What start(port) returns. It raises RuntimeError with what its server said, when that has ended; where another
    process took the port, it is called again with another one."""
    for _ in range(_TRIES - 1):
        try:
            return start(free_port())
        except RuntimeError as error:
            if "address already in use" not in str(error).lower():
                raise
    return start(free_port())
