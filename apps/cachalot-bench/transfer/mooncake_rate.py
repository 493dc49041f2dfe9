"""How fast Mooncake's transfer engine writes into another process over TCP.

cachalot-bench runs it with a Python that has a mooncake-transfer-engine wheel: python -c SCRIPT RECEIVER_CORE SENDER_CORE,
-1 for any core. It prints "ready", then answers each line "BYTES TRANSFERS" by the bytes per second. What the wheel prints
goes to the error output.
"""

import ctypes
import importlib.util
import mmap
import os
import sys
import time

# Before the wheel is loaded. Without a pool each transfer makes a connection.
os.environ.setdefault("MC_TCP_ENABLE_CONNECTION_POOL", "1")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
NO_WHEEL = 3  # the exit code
MOST_BYTES, OUTSTANDING, BATCHES = 64 << 20, 32, 2


def run_on(core):
    if core >= 0:
        os.sched_setaffinity(0, [core])


def memory(fill):
    pages = mmap.mmap(-1, MOST_BYTES)
    pages.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.memset(address, fill, MOST_BYTES)
    return pages, address


def open_engine(address):
    from mooncake.engine import TransferEngine  # not before fork(): it starts threads

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0 or engine.register_memory(address, MOST_BYTES) != 0:
        raise RuntimeError("Mooncake's engine does not start")
    return engine


def receive(core, to_sender, until):
    run_on(core)
    pages, address = memory(0)
    engine = open_engine(address)
    os.write(to_sender, f"127.0.0.1:{engine.get_rpc_port()} {address}\n".encode())
    os.read(until, 1)  # the sender ends
    os._exit(0)


def write_all(engine, peer, source, target, length, transfers):
    """Batches that are as many transfers as ucx_perftest and the pushes have outstanding; one is sent while the other ends."""
    waiting = []
    for begin in range(0, transfers, OUTSTANDING // BATCHES):
        count = min(OUTSTANDING // BATCHES, transfers - begin)
        batch = engine.batch_transfer_async_write(peer, [source] * count, [target] * count, [length] * count)
        if batch == 0:
            raise RuntimeError("a batch was refused")
        waiting.append(batch)
        if len(waiting) == BATCHES and engine.get_batch_transfer_status([waiting.pop(0)]) != 0:
            raise RuntimeError("a batch has failed")
    if waiting and engine.get_batch_transfer_status(waiting) != 0:
        raise RuntimeError("a batch has failed")


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if importlib.util.find_spec("mooncake") is None:
        sys.exit(NO_WHEEL)
    receiver_core, sender_core = int(sys.argv[1]), int(sys.argv[2])
    from_receiver, to_sender = os.pipe()
    until, ends = os.pipe()
    if os.fork() == 0:
        os.close(ends)
        receive(receiver_core, to_sender, until)
    os.close(to_sender)
    run_on(sender_core)
    peer, target = os.fdopen(from_receiver).readline().split()
    pages, source = memory(1)
    engine = open_engine(source)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        length, transfers = map(int, line.split())
        write_all(engine, peer, source, int(target), length, min(transfers, 20))
        begin = time.monotonic()
        write_all(engine, peer, source, int(target), length, transfers)
        print(length * transfers / (time.monotonic() - begin), file=answers, flush=True)
    os._exit(0)


main()
