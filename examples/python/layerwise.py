"""Layer by layer: copies the next layer while the engine computes with a layer."""

import concurrent.futures
import sys

import numpy as np

import cachalot

POOL = sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/cachalot_example_layerwise_python"
LAYERS, PAGES = 8, 32
GEOMETRY = cachalot.KvGeometry(layers=LAYERS, kv_heads=2, head_dim=64, dtype="f16", block_tokens=16)


def attention(tensor, pages):
    """Stands for the engine's work on one layer."""
    return float(tensor[:, pages].astype(np.float32).sum())


def main():
    tensors = [np.zeros((2, PAGES, 16, 2, 64), np.float16) for _ in range(LAYERS)]
    with cachalot.EmbeddedKeeper(pool=POOL, block_bytes=GEOMETRY.block_bytes, capacity_blocks=256), \
         cachalot.Client(pool=POOL, model="example@1", geometry=GEOMETRY) as client:
        cache = client.register_cache("vllm_kbnhc", tensors, pages=PAGES)
        hashes = client.hash_tokens(range(8 * 16))

        # Prefill: stores each layer as soon as it is computed.
        first = np.arange(8)
        storing = client.begin_store(cache, hashes, first)
        computed = []
        for layer, tensor in enumerate(tensors):
            tensor[:, first] = layer + 1
            computed.append(attention(tensor, first))
            storing.store_layer(layer)
        print(storing.finish())

        # Loads from the pool into other pages. Copies release the GIL, so they overlap with computation.
        second = np.arange(8, 16)
        loading = client.begin_load(cache, hashes, second)
        right, again = [], []
        with concurrent.futures.ThreadPoolExecutor(1) as copier:
            copies = [copier.submit(loading.load_layer, layer) for layer in range(LAYERS)]
            for copy, tensor in zip(copies, tensors):
                right.append(copy.result())  # waits for this layer; raises what its copy raised
                again.append(attention(tensor, second))
        print(f"{min(right)} blocks were right in every layer")
        return 0 if min(right) == len(hashes) and again == computed else 1


if __name__ == "__main__":
    sys.exit(main())
