"""Loads of the tokens that each KV head of each layer has chosen for itself."""

import builtins
import re

import numpy as np
import pytest

import cachalot
from conftest import Engine, tokens_of


def prompt_rows(tensor):
    """Of a tensor whose pages 0 to 7 hold a prompt: [head, token, keys or values, number]."""
    return tensor[:, :8].reshape(2, 32, 2, 32).transpose(2, 1, 0, 3)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.int32])
def test_tokens_that_each_layer_and_head_has_chosen(stored, pool, dtype):
    engine, hashes = stored
    random = np.random.default_rng(5)
    chosen = np.array([[np.sort(random.choice(32, 6, replace=False)) for _ in range(2)] for _ in range(3)], dtype)
    reader = Engine(pool, seed=2)
    with reader.client as client:
        wanted = [tensor.copy() for tensor in reader.tensors]
        for layer, head in np.ndindex(3, 2):
            for token in chosen[layer, head]:
                page, inside = divmod(int(token), 4)
                wanted[layer][:, 8 + page, inside, head] = engine.tensors[layer][:, page, inside, head]
        assert client.load_head_tokens(reader.cache, hashes, range(8, 16), chosen) == 8
        assert all(np.array_equal(*pair) for pair in zip(reader.tensors, wanted))

        # Packed, into pages of one token: an array of rows for each head.
        rows = np.zeros((3, 2, 6, 2, 32), np.float16)
        packed = client.register_cache("vllm_lhbnc", [rows], pages=6, page_tokens=1)
        assert client.load_head_tokens(packed, hashes, range(6), chosen, packed=True) == 8
        for layer, head in np.ndindex(3, 2):
            assert np.array_equal(rows[layer, head], prompt_rows(engine.tensors[layer])[head, chosen[layer, head]])

        # Lists of any lengths, of one layer.
        rows[:] = 0
        lists = [[np.array([1, 30]), (7,)]]
        assert client.load_head_tokens(packed, hashes, [0, 1], lists, packed=True, first_layer=2, layers=1) == 8
        assert np.array_equal(rows[2, 0, :2], prompt_rows(engine.tensors[2])[0, [1, 30]])
        assert np.array_equal(rows[2, 1, 0], prompt_rows(engine.tensors[2])[1, 7])
        assert not rows[:2].any() and not rows[2, :, 2:].any() and not rows[2, 1, 1].any()

        # A block that is not in the pool ends the prefix.
        longer = [*hashes[:5], client.hash_tokens(tokens_of(77, 4))[0], *hashes[6:]]
        assert client.load_head_tokens(reader.cache, longer, range(8, 16), chosen) == 5


@pytest.mark.parametrize(
    "tokens, options, error, words",
    [
        (np.zeros((2, 2, 1), int), {}, "InvalidArgumentError", "tokens: 4 lists, expected 6: one for each of 3 layer(s)"),
        (np.zeros((2, 3, 1), int), {}, "InvalidArgumentError", "tokens: layer 0 has lists of 3 heads, expected 2"),
        ([[[]] * 2, [[]] * 3, [[]] * 2], {}, "InvalidArgumentError", "tokens: layer 1 has lists of 3 heads, expected 2"),
        (np.zeros((3, 2), int), {}, "InvalidArgumentError", "tokens: an array (3, 2) of int64, expected integers in three"),
        (np.zeros((3, 2, 1)), {}, "InvalidArgumentError", "tokens: an array (3, 2, 1) of float64, expected integers"),
        (np.zeros((3, 2, 4), int)[..., ::2], {}, "InvalidArgumentError", "not contiguous, expected integers in three"),
        (np.full((3, 2, 1), -1), {}, "InvalidArgumentError", "tokens: number 0 is -1, expected 0 to 4294967295"),
        (np.full((3, 2, 1), 32), {}, "InvalidArgumentError", "tokens: layer 0, head 0: number 0 is token 32, expected below the 32"),
        ([[[3, 3]] * 2] * 3, {}, "InvalidArgumentError", "token 3 comes after token 3, expected ascending"),
        ([[range(5)] * 2] * 3, {"packed": True}, "InvalidArgumentError", "pages: 1 of 4 token(s), expected 2: layer 0, head 0 has 5"),
        ([[range(5)] * 2] * 3, {"layers": 4}, "InvalidArgumentError", "layers: 4 from 0 on, of a rank that has 3"),
        (None, {}, "TypeError", "tokens: None (NoneType), expected a sequence for each layer"),
        ([None] * 3, {}, "TypeError", "tokens: layer 0: None (NoneType), expected a sequence for each head"),
        ([[None, None]] * 3, {}, "TypeError", "tokens: None (NoneType), expected a sequence of integers"),
    ],
)
def test_tokens_of_heads_that_cannot_be(stored, tokens, options, error, words):
    engine, hashes = stored
    pages = [0] if "packed" in options else range(8)
    with pytest.raises(getattr(cachalot, error, getattr(builtins, error, None)), match=re.escape(words)):
        engine.client.load_head_tokens(engine.cache, hashes, pages, tokens, **options)
