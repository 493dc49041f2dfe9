"""How long a get of Mooncake's store takes whose objects lie in another process, over TCP.

cachalot-bench runs it with a Python that has a mooncake-transfer-engine wheel: python -c SCRIPT. It prints "ready", then answers
each line "BYTES OBJECTS" by the microseconds of a get of so many objects into memory that is registered. What the wheel
prints goes to the error output.
"""

import ctypes
import importlib.util
import mmap
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

# Before the wheel is loaded. Without a pool each transfer makes a connection.
os.environ.setdefault("MC_TCP_ENABLE_CONNECTION_POOL", "1")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
NO_WHEEL = 3  # the exit code
MOST_BYTES, ROUNDS = 256 << 20, 9


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def memory(fill):
    pages = mmap.mmap(-1, MOST_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.memset(address, fill, MOST_BYTES)
    return pages, address


def open_store(master, segment_bytes):
    from mooncake.store import MooncakeDistributedStore  # not before fork(): it starts threads

    store = MooncakeDistributedStore()
    until = time.monotonic() + 30
    while store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp", "", master) != 0:
        if time.monotonic() > until:
            raise RuntimeError("Mooncake's store does not start")
        time.sleep(0.5)
    return store


def own(master, wanted, done):
    """Puts objects into its own segment: the only one."""
    store = open_store(master, 2 << 30)
    pages, address = memory(1)
    store.register_buffer(address, MOST_BYTES)
    done.write("ready\n")
    done.flush()
    for line in wanted:
        length, objects, first = map(int, line.split())
        for number in range(objects):
            if store.put_from(f"{first + number}", address, length) != 0:
                raise RuntimeError("a put was refused")
        done.write("done\n")
        done.flush()
    os._exit(0)


def end_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if importlib.util.find_spec("mooncake") is None:
        sys.exit(NO_WHEEL)
    port = free_port()
    program = shutil.which("mooncake_master", path=os.path.dirname(sys.executable)) or "mooncake_master"
    master = subprocess.Popen([program, f"--rpc_port={port}", f"--metrics_port={free_port()}", "--default_kv_lease_ttl=2000"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
    to_owner, from_owner = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_owner[1])
        os.close(from_owner[0])
        own(f"127.0.0.1:{port}", os.fdopen(to_owner[0]), os.fdopen(from_owner[1], "w"))
    os.close(to_owner[0])
    os.close(from_owner[1])
    wanted, done = os.fdopen(to_owner[1], "w"), os.fdopen(from_owner[0])
    try:
        if not done.readline():
            raise RuntimeError("the owner does not start")
        store = open_store(f"127.0.0.1:{port}", 0)
        pages, address = memory(0)
        store.register_buffer(address, MOST_BYTES)
        print("ready", file=answers, flush=True)
        first = 0
        for line in sys.stdin:
            length, objects = map(int, line.split())
            print(length, objects, first, file=wanted, flush=True)
            if not done.readline():
                raise RuntimeError("the owner has ended")
            keys = [f"{first + number}" for number in range(objects)]
            places = [address + number * length for number in range(objects)]
            first += objects
            times = []
            for _ in range(ROUNDS if objects > 1 else 10 * ROUNDS):
                begin = time.perf_counter()
                got = store.batch_get_into(keys, places, [length] * objects)
                times.append(time.perf_counter() - begin)
                if any(count != length for count in got):
                    raise RuntimeError(f"a get failed: {got[:3]}")
            print(statistics.median(times[1:]) * 1e6, file=answers, flush=True)
    finally:
        master.kill()
    os._exit(0)


main()
