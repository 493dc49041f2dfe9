"""What does Python cost on top of C++? lookup + load of 128 small blocks, the same calls from both.

usage: bench/python_overhead.py LOOKUP_LOAD     (the program built from bench/lookup_load.cpp)

Blocks of 16 tokens, 3 KiB. Both sides take turns in one pool, whose keeper is a third process; each
turn gives the median of its rounds and what Python takes above the C++ turn right before it. Printed
are the medians of the turns. Target: at most 20 us above C++.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import cachalot

BLOCKS, ROUNDS, TURNS = 128, 300, 15
POOL = f"/dev/shm/cachalot_python_overhead.{os.getpid()}"
GEOMETRY = cachalot.KvGeometry(layers=3, kv_heads=1, head_dim=16, dtype="f16", block_tokens=16)
assert GEOMETRY.block_bytes == 3072


def rounds_of(call):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def rounds_in_cpp(program):
    ran = subprocess.run([program, POOL, str(BLOCKS), str(ROUNDS)], capture_output=True, text=True, check=True)
    return statistics.median(int(line) for line in ran.stdout.split())


def keep(pool, domain, started, stop):
    with cachalot.EmbeddedKeeper(pool=pool, block_bytes=3072, capacity_blocks=1024, domain=domain):
        started.set()
        stop.wait()


def measure(program, domain):
    with cachalot.Client(pool=POOL, model="overhead@1", geometry=GEOMETRY) as client:
        tensors = [np.ones((2, BLOCKS, 16, 1, 16), np.float16) for _ in range(3)]
        cache = client.register_cache("vllm_kbnhc", tensors, pages=BLOCKS)
        hashes = client.hash_tokens(np.arange(BLOCKS * 16, dtype=np.uint32))
        pages = np.arange(BLOCKS, dtype=np.uint32)
        client.store(cache, hashes, pages)
        array, page_list, hash_list = np.asarray(hashes), pages.tolist(), list(hashes)

        def both(names, to):
            assert client.lookup(names) == BLOCKS
            assert client.load(cache, names, to) == BLOCKS

        ways = {
            "BlockHashes, pages as array": lambda: both(hashes, pages),
            "NumPy (n, 2), pages as array": lambda: both(array, pages),
            "BlockHashes, pages as list": lambda: both(hashes, page_list),
            "lists of both": lambda: both(hash_list, page_list),
        }
        cpp, python, above = [], {way: [] for way in ways}, {way: [] for way in ways}
        for _ in range(TURNS):
            for way, call in ways.items():
                cpp.append(rounds_in_cpp(program))
                python[way].append(rounds_of(call))
                above[way].append(python[way][-1] - cpp[-1])
        print(f"{domain}: C++ {statistics.median(cpp) / 1000:.1f} us ({min(cpp) / 1000:.1f} to {max(cpp) / 1000:.1f})")
        for way in ways:
            median = statistics.median(above[way]) / 1000
            verdict = "met" if median <= 20 else "missed"
            print(f"  {way:30} {statistics.median(python[way]) / 1000:7.1f} us, {median:+6.1f} us: {verdict}")


def main(program):
    spawn = multiprocessing.get_context("spawn")
    for domain in ("coherent", "noncoherent"):
        started, stop = spawn.Event(), spawn.Event()
        keeper = spawn.Process(target=keep, args=(POOL, domain, started, stop))
        keeper.start()
        if not started.wait(60):
            sys.exit("the keeper did not start")
        measure(program, domain)
        stop.set()
        keeper.join()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
