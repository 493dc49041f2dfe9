"""Sparse attention: each KV head of each layer reads tokens of its own, packed one after the other."""

import sys

import numpy as np

import cachalot

POOL = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/cachalot_example_head_tokens_python"
LAYERS, HEADS, DIM, BLOCK, BLOCKS, CHOSEN = 4, 8, 64, 16, 8, 12
GEOMETRY = cachalot.KvGeometry(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="f16", block_tokens=BLOCK)


def main():
    random = np.random.default_rng(1)
    # An engine's pages: of each layer K and V, (2, pages, tokens, heads, dim).
    pages = [random.random((2, BLOCKS, BLOCK, HEADS, DIM)).astype(np.float16) for _ in range(LAYERS)]
    # What a sparse attention kernel reads: for each layer and head the K and V of the chosen tokens.
    rows = np.zeros((LAYERS, HEADS, CHOSEN, 2, DIM), np.float16)
    with cachalot.EmbeddedKeeper(pool=POOL, block_bytes=GEOMETRY.block_bytes, capacity_blocks=64), \
         cachalot.Client(pool=POOL, model="example@1", geometry=GEOMETRY) as client:
        engine = client.register_cache("vllm_kbnhc", pages, pages=BLOCKS)
        packed = client.register_cache("vllm_lhbnc", [rows], pages=CHOSEN, page_tokens=1)
        hashes = client.hash_tokens(range(BLOCKS * BLOCK))
        client.store(engine, hashes, range(BLOCKS))

        # The tokens with the highest scores, in ascending order: (layers, heads, k).
        scores = random.random((LAYERS, HEADS, BLOCKS * BLOCK))
        tokens = np.sort(np.argpartition(scores, -CHOSEN)[..., -CHOSEN:])
        hit = client.load_head_tokens(packed, hashes, range(CHOSEN), tokens, packed=True)

        print(f"{hit} blocks, {CHOSEN} of {BLOCKS * BLOCK} tokens for each of {LAYERS} x {HEADS} heads")
        is_right = hit == BLOCKS
        for layer, head in np.ndindex(LAYERS, HEADS):
            of_head = pages[layer].reshape(2, BLOCKS * BLOCK, HEADS, DIM)[:, :, head]
            is_right &= np.array_equal(rows[layer, head], of_head[:, tokens[layer, head]].swapaxes(0, 1))
        return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
