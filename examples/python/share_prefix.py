"""Two engine processes share a prefix: one computes and stores it, the other loads it.

    cachalot serve --pool /dev/shm/kv --create --block-bytes 32KiB --capacity 1GiB &
    python examples/python/share_prefix.py /dev/shm/kv
"""

import multiprocessing
import sys

import numpy as np

import cachalot

POOL = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/kv"
GEOMETRY = cachalot.KvGeometry(layers=4, kv_heads=2, head_dim=64, dtype="f16", block_tokens=16)
PROMPT = np.arange(8 * 16, dtype=np.uint32)


def engine(number, failed):
    # This engine's paged cache: K and V of 32 pages of 16 tokens, one tensor per layer.
    tensors = [np.zeros((2, 32, 16, 2, 64), np.float16) for _ in range(4)]
    with cachalot.Client(pool=POOL, model="example@1", geometry=GEOMETRY) as client:
        cache = client.register_cache("vllm_kbnhc", tensors, pages=32)
        hashes = client.hash_tokens(PROMPT)
        pages = np.random.default_rng(number).permutation(32)[: len(hashes)]
        hit = client.load(cache, hashes, pages)
        for layer, tensor in enumerate(tensors):
            computed = np.broadcast_to(np.arange(hit, len(hashes))[:, None, None, None] + layer, (len(hashes) - hit, 16, 2, 64))
            tensor[:, pages[hit:]] = computed
        stored = client.store(cache, hashes, pages)
        print(f"engine {number}: {hit} blocks loaded, {len(hashes) - hit} computed, {stored.written} stored")
        is_right = all((tensors[layer][:, pages[i]] == i + layer).all() for layer in range(4) for i in range(len(hashes)))
        if (number == 1 and hit != len(hashes)) or not is_right:
            failed.set()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    failed = spawn.Event()
    for number in range(2):
        process = spawn.Process(target=engine, args=(number, failed))
        process.start()
        process.join()
        if process.exitcode != 0:
            failed.set()
    sys.exit(1 if failed.is_set() else 0)
