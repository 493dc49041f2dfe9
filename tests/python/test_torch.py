"""Tensors of torch, by DLPack."""

import numpy as np
import pytest

import cachalot
from conftest import GEOMETRY, attach, tokens_of

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_torch_and_numpy_share_blocks(stored, pool):
    engine, hashes = stored
    tensors = [torch.zeros(2, 16, 4, 2, 32, dtype=torch.float16) for _ in range(3)]
    with attach(pool) as client:
        cache = client.register_cache("vllm_kbnhc", tensors, pages=16)
        assert client.load(cache, hashes, torch.arange(8)) == 8
        for tensor, expected in zip(tensors, engine.tensors):
            assert np.array_equal(tensor.numpy()[:, :8], expected[:, :8])
        tokens = torch.from_numpy(tokens_of(1, 32).astype(np.int64))
        assert client.hash_tokens(tokens) == hashes


def test_bfloat16(pool):
    fields = {**GEOMETRY.__getstate__(), "dtype": "bf16"}
    with attach(pool, geometry=cachalot.KvGeometry(**fields)) as client:
        tensors = [torch.rand(2, 16, 4, 2, 32).to(torch.bfloat16) for _ in range(3)]
        before = [tensor.clone() for tensor in tensors]
        cache = client.register_cache("vllm_kbnhc", tensors, pages=16)
        hashes = client.hash_tokens(tokens_of(2, 8))
        assert client.store(cache, hashes, [3, 4]).written == 2
        assert client.load(cache, hashes, [8, 9]) == 2
        assert all(torch.equal(t[:, 8:10], b[:, 3:5]) for t, b in zip(tensors, before))


def test_tensors_that_do_not_fit(engine):
    def register(**options):
        tensors = [torch.zeros(2, 16, 4, 2, 32, **options) for _ in range(3)]
        engine.client.register_cache("vllm_kbnhc", tensors, pages=16)

    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: has numbers of 4 bytes"):
        register(dtype=torch.float32)
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: is not contiguous"):
        tensors = [torch.zeros(16, 2, 4, 2, 32, dtype=torch.float16).transpose(0, 1) for _ in range(3)]
        engine.client.register_cache("vllm_kbnhc", tensors, pages=16)
    if torch.cuda.is_available():
        with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: lies on cuda"):
            register(dtype=torch.float16, device="cuda")
