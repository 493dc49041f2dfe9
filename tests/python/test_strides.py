"""Caches whose strides the caller gives: numpy's own strides say where everything has to be."""

import numpy as np
import pytest

import cachalot
from conftest import GEOMETRY, attach, tokens_of

PAGES = 16
# (page, head, layer, token, [values, keys, other data], content), and one layer more than there is: a gap.
SHAPE = (PAGES, 2, 4, 4, 3, 32)


def strides_of(array):
    page, head, layer, token, part, _ = array.strides
    common = {"layer": layer, "page": page, "head": head, "token": token}
    return [cachalot.PartStrides(offset=part, **common), cachalot.PartStrides(**common)]


def test_what_a_named_layout_stores_a_strided_cache_loads_and_back(pool):
    named = [np.random.default_rng(7 + i).random((2, PAGES, 4, 2, 32)).astype(np.float16) for i in range(3)]
    strided = np.full(SHAPE, 7, np.float16)
    out, into, back = [4, 1, 9], [7, 0, 15], [2, 3, 11]
    with attach(pool) as a, attach(pool) as b:
        first = a.register_cache("vllm_kbnhc", named, pages=PAGES)
        second = b.register_cache(None, strided, pages=PAGES, strides=strides_of(strided))
        hashes = a.hash_tokens(tokens_of(1, 12))
        assert a.store(first, hashes, out).written == 3
        assert b.load(second, hashes, into) == 3
        wanted = np.full(SHAPE, 7, np.float16)
        for layer, tensor in enumerate(named):
            wanted[into, :, layer, :, 1] = tensor[0][out].transpose(0, 2, 1, 3)
            wanted[into, :, layer, :, 0] = tensor[1][out].transpose(0, 2, 1, 3)
        assert np.array_equal(strided, wanted)

        others = a.hash_tokens(tokens_of(2, 12))
        assert b.store(second, others, into).written == 3
        stored = [tensor[:, out].copy() for tensor in named]
        assert a.load(first, others, back) == 3
        for tensor, before in zip(named, stored):
            assert np.array_equal(tensor[:, back], before)


def test_of_a_tensor_that_is_not_contiguous_the_extent_counts(pool):
    whole = np.random.default_rng(3).random(SHAPE).astype(np.float16)
    permuted = whole.transpose(1, 0, 4, 2, 3, 5)[:, :, :2, :3]  # heads first, without the gaps
    assert not permuted.flags.c_contiguous
    out, into = [4, 1, 9], [7, 0, 15]
    with attach(pool) as a, attach(pool) as b:
        first = a.register_cache(None, permuted, pages=PAGES, strides=strides_of(whole))
        target = np.zeros(SHAPE, np.float16)
        second = b.register_cache(None, target, pages=PAGES, strides=strides_of(target))
        hashes = a.hash_tokens(tokens_of(1, 12))
        assert a.store(first, hashes, out).written == 3
        assert b.load(second, hashes, into) == 3
        assert np.array_equal(target[into][:, :, :3, :, :2], whole[out][:, :, :3, :, :2])
        assert not target[into][:, :, 3:].any() and not target[into][..., 2:, :].any()
        with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: has negative strides"):
            a.register_cache(None, whole[::-1], pages=PAGES, strides=strides_of(whole))
        with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0 has [0-9]+ bytes, expected at least"):
            a.register_cache(None, permuted[:, :-1], pages=PAGES, strides=strides_of(whole))


def test_each_layer_may_have_a_tensor_for_keys_and_one_for_values(pool):
    tensors = [np.zeros((PAGES, 4, 2, 32), np.float16) for _ in range(6)]
    page, token, head, _ = tensors[0].strides
    parts = [cachalot.PartStrides(tensor=k, layer_tensors=2, page=page, token=token, head=head) for k in range(2)]
    with attach(pool) as a, attach(pool) as b:
        named = [np.random.default_rng(i).random(tensors[0].shape).astype(np.float16) for i in range(6)]
        first = a.register_cache("split_bnhc", named, pages=PAGES)
        second = b.register_cache(None, tensors, pages=PAGES, strides=tuple(parts))
        hashes = a.hash_tokens(tokens_of(1, 8))
        assert a.store(first, hashes, [5, 6]).written == 2
        assert b.load(second, hashes, [1, 0]) == 2
    for tensor, source in zip(tensors, named):
        assert np.array_equal(tensor[[1, 0]], source[[5, 6]])


def test_refusals_name_the_field_and_its_value(pool):
    buffer = np.zeros(SHAPE, np.float16)
    good = strides_of(buffer)

    def changed(**fields):
        names = ("tensor", "layer_tensors", "offset", "layer", "page", "head", "token")
        return cachalot.PartStrides(**{**{name: getattr(good[0], name) for name in names}, **fields})

    with attach(pool) as client:
        for words, strides in {
            "part 0: token is 60, expected a stride that keeps apart": [changed(token=60), good[1]],
            "part 0: page is 4611686018427387904, expected that page 15 ends within 2": [changed(page=2**62), good[1]],
            "part 0: offset is 1, expected a multiple of 2": [changed(offset=1), good[1]],
            "tensor 0 has 98304 bytes, expected at least": [changed(page=good[0].page + 64), good[1]],
            "part 1: offset is 0, expected one that keeps apart part": [changed(offset=0), good[1]],
            "strides: 1 parts, expected 2": good[:1],
        }.items():
            with pytest.raises(cachalot.InvalidArgumentError, match=words):
                client.register_cache(None, buffer, pages=PAGES, strides=strides)
        with pytest.raises(cachalot.InvalidArgumentError, match="layout is vllm_kbnhc and strides are given"):
            client.register_cache("vllm_kbnhc", buffer, pages=PAGES, strides=good)
        with pytest.raises(TypeError, match=r"^strides: part 1: 3 \(int\), expected a PartStrides"):
            client.register_cache(None, buffer, pages=PAGES, strides=[good[0], 3])
        with pytest.raises(TypeError, match=r"^strides: 5 \(int\), expected two PartStrides"):
            client.register_cache(None, buffer, pages=PAGES, strides=5)
        with pytest.raises(TypeError, match="^layout: None"):
            client.register_cache(None, buffer, pages=PAGES)


def test_part_strides_are_values():
    one = cachalot.PartStrides(page=4096, token=2**63)
    assert one == cachalot.PartStrides(token=2**63, page=4096) and one != cachalot.PartStrides(page=4096)
    assert hash(one) == hash(cachalot.PartStrides(token=2**63, page=4096))
    assert repr(one) == "PartStrides(page=4096, token=9223372036854775808)"
    assert GEOMETRY != one
    with pytest.raises(TypeError, match="PartStrides has no row"):
        cachalot.PartStrides(row=1)
    with pytest.raises(cachalot.InvalidArgumentError, match="page: -1, expected 0 to 18446744073709551615"):
        cachalot.PartStrides(page=-1)
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor: 4294967296, expected 0 to 4294967295"):
        cachalot.PartStrides(tensor=2**32)
