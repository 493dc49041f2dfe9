"""An engine whose KV cache has three tiers: small device memory, host memory, and a pool that outlives the engine."""

import sys

import numpy as np

import cachalot
import cachalot.tier

POOL = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/cachalot_example_tiers_python"
GEOMETRY = cachalot.KvGeometry(layers=4, kv_heads=2, head_dim=64, dtype="f16", block_tokens=16)
PAGES = 16


def serve(tiers, tensors, prompt):
    """Serves one prompt; returns where its tokens were, and whether all bytes are right."""
    with tiers.request(prompt) as request:
        request.wait_ready()
        start = request.start()
        first, last = start.cached_tokens // 16, len(prompt) // 16
        for layer, tensor in enumerate(tensors):
            request.wait_layer(layer)
            for block in range(first, last):  # the forward pass: K and V of a block follow from its tokens
                tensor[:, start.pages[block]] = prompt[block * 16] % 1000 + layer
        request.commit(prompt)
        is_right = all((tensor[:, start.pages[block]] == prompt[block * 16] % 1000 + layer).all()
                       for layer, tensor in enumerate(tensors) for block in range(last))
    print(f"{start.device_tokens} tokens from device, {start.host_tokens} from host memory, of these {start.shared_tokens} "
          f"from the pool; {len(prompt) - start.cached_tokens} computed")
    return start, is_right


def engine(prompts):
    tensors = [np.zeros((2, PAGES, 16, 2, 64), np.float16) for _ in range(4)]
    with cachalot.tier.open("vllm_kbnhc", tensors, pages=PAGES, model="example@1", geometry=GEOMETRY, pool=POOL,
                            host_ratio=4, prefetch_threshold=16, prefetch_policy="wait_complete") as tiers:
        found = []
        for prompt in prompts:
            found.append(serve(tiers, tensors, prompt))
            tiers.flush()
    return found


if __name__ == "__main__":
    first = np.arange(1, 8 * 16 + 2, dtype=np.uint32)
    second = first + 10_000
    with cachalot.EmbeddedKeeper(pool=POOL, block_bytes=GEOMETRY.block_bytes, capacity_blocks=256):
        one = engine([first, second, first])  # device memory has room for one prompt: the other comes from host memory
        other = engine([first])               # a restarted engine: from the pool
    is_right = all(right for _, right in one + other)
    is_right &= one[2][0].host_tokens == 128 and other[0][0].shared_tokens == 128
    sys.exit(0 if is_right else 1)
