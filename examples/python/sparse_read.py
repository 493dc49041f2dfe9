"""Sparse attention: loads only the needed tokens from the pool, directly into their places."""

import sys

import numpy as np

import cachalot

POOL = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/cachalot_example_sparse_read_python"
GEOMETRY = cachalot.KvGeometry(
    layers=4, attention="latent", kv_lora_rank=512, qk_rope_head_dim=64, dtype="bf16", block_tokens=64
)
BLOCKS = 4


def main():
    # Latents of 16 pages of 64 tokens, one tensor per layer. NumPy has no bfloat16; any type of two bytes works.
    source = [np.random.default_rng(layer).integers(1, 2**16, (16, 64, 576), np.uint16) for layer in range(4)]
    target = [np.zeros((16, 64, 576), np.uint16) for _ in range(4)]
    with cachalot.EmbeddedKeeper(pool=POOL, block_bytes=GEOMETRY.block_bytes, capacity_blocks=64), \
         cachalot.Client(pool=POOL, model="example@1", geometry=GEOMETRY) as client:
        written = client.register_cache("mla_joint", source, pages=16)
        read = client.register_cache("mla_joint", target, pages=16)
        hashes = client.hash_tokens(range(BLOCKS * 64))
        pages = np.arange(BLOCKS)
        client.store(written, hashes, pages)

        # The tokens of each block that an indexer chose: ascending ranges [first, last).
        chosen = [[(0, 2), (17, 18)], [(5, 6)], None, [(60, 64)]]  # None: the whole block
        hit = client.load_tokens(read, hashes, pages, chosen)

        tokens = np.zeros((16, 64), bool)
        for page, ranges in zip(pages, chosen):
            for first, last in ranges or [(0, 64)]:
                tokens[page, first:last] = True
        print(f"{hit} blocks, {tokens.sum()} of {BLOCKS * 64} tokens read")
        is_right = all((t == np.where(tokens[..., None], s, 0)).all() for s, t in zip(source, target))
        return 0 if hit == BLOCKS and is_right else 1


if __name__ == "__main__":
    sys.exit(main())
