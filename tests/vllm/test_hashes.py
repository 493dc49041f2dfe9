"""The block hashes that the client computes are those of vLLM's own functions: it needs no engine for that."""

import random
from types import SimpleNamespace

import pytest
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

import cachalot
from cachalot.connectors.vllm.messages import hashes_of, keys_of

BLOCK = 16
WORDS = ("", "lora-x", "/adapters/x", "тенант-é", "a" * 300, "img\n\"1\"", "\U0001f40b")


@pytest.fixture
def pool(tmp_path):
    geometry = cachalot.KvGeometry(layers=1, kv_heads=1, head_dim=32, dtype="f16", block_tokens=BLOCK)
    with cachalot.EmbeddedKeeper(pool=f"/dev/shm/cachalot_{tmp_path.name}_{random.getrandbits(60):x}",
                                 block_bytes=geometry.block_bytes, capacity_blocks=16) as keeper:
        yield lambda seed, algorithm="sha256_cbor": cachalot.Client(
            pool=keeper.pool, model="test@1", geometry=geometry, hash=algorithm, python_hash_seed=seed)


def a_request(draw, tokens):
    """What vLLM's functions read of a request with some of adapter, images, salt and embeddings."""
    images = []
    at = draw.randrange(0, 20)
    while draw.random() < 0.6 and at < tokens:
        length = draw.randrange(1, 40)
        position = SimpleNamespace(offset=at, length=length)
        images.append(SimpleNamespace(identifier=draw.choice(WORDS[1:]), mm_position=position))
        at += length + draw.randrange(0, 20)
    lora = SimpleNamespace(lora_name=draw.choice(WORDS), lora_path=draw.choice(WORDS)) if draw.random() < 0.5 else None
    salt = draw.choice(WORDS) if draw.random() < 0.5 else None
    return SimpleNamespace(mm_features=images, lora_request=lora, cache_salt=salt, prompt_embeds=None)


def hashes_of_vllm(request, tokens):
    """Its extra keys and hashes of whole blocks, chained as its request hasher does it."""
    keys, hashes, parent, image = [], [], None, 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        extra, image = kv_cache_utils.generate_block_hash_extra_keys(request, start, start + BLOCK, image)
        parent = kv_cache_utils.hash_block_tokens(sha256_cbor, parent, tokens[start:start + BLOCK], extra)
        keys.append(extra)
        hashes.append(parent)
    return keys, hashes


def names(hashes):
    return [str(name) for name in hashes]


@pytest.mark.parametrize("seed", ["", "0", "12345"])
def test_hashes_are_vllm_s_for_any_tokens_and_extra_keys(pool, monkeypatch, seed):
    if seed:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    else:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    kv_cache_utils.init_none_hash(sha256_cbor)
    draw = random.Random(f"cachalot {seed}")
    kinds = set()
    with pool(seed) as client:
        for _ in range(300):
            tokens = [draw.randrange(draw.choice([30, 300, 2**31])) for _ in range(draw.randrange(0, 100))]
            keys, expected = hashes_of_vllm(a_request(draw, len(tokens)), tokens)
            kinds.update(key[0] for of_block in keys if of_block for key in of_block)
            assert names(client.hash_tokens(tokens, keys)) == [digest.hex()[:32] for digest in expected]
    assert kinds == {"lora", "mm", "cache_salt"}


def test_embeddings_are_part_of_the_hash(pool):
    import torch

    kv_cache_utils.init_none_hash(sha256_cbor)
    embeddings = torch.arange(2 * BLOCK * 8, dtype=torch.float32).reshape(2 * BLOCK, 8)
    request = SimpleNamespace(mm_features=[], lora_request=None, cache_salt="x", prompt_embeds=embeddings,
                              _prompt_embeds_per_block_hashes={})
    tokens = [0] * (2 * BLOCK)
    keys, expected = hashes_of_vllm(request, tokens)
    assert [key[0] for key in keys[0]] == ["cache_salt", "prompt_embeds"] and isinstance(keys[0][1][1], bytes)
    seed = kv_cache_utils.get_none_hash_seed()
    with pool("" if seed == "vllm-none-hash" else seed) as client:
        assert names(client.hash_tokens(tokens, keys)) == [digest.hex()[:32] for digest in expected]


def key_of(**given):
    """The connector's key of one block of a request with these extras, and its name in the pool."""
    request = SimpleNamespace(**{"mm_features": [], "lora_request": None, "cache_salt": None, "prompt_embeds": None, **given})
    _, digests = hashes_of_vllm(request, [1] * BLOCK)
    return keys_of(digests), hashes_of(keys_of(digests), 0).tolist()


def an_image(identifier, offset=0):
    return [SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=8))]


def test_images_whose_hashes_differ_in_any_digit_have_other_keys():
    kv_cache_utils.init_none_hash(sha256_cbor)
    digits = "".join(random.Random(1).choice("0123456789abcdef") for _ in range(64))
    seen = {str(key_of(mm_features=an_image(digits)))}
    for i, digit in enumerate(digits):
        for other in "0123456789abcdef".replace(digit, ""):
            seen.add(str(key_of(mm_features=an_image(digits[:i] + other + digits[i + 1:]))))
    assert len(seen) == 1 + 64 * 15
    assert str(key_of(mm_features=an_image(digits, offset=1))) not in seen


def test_an_adapter_an_image_and_a_salt_of_one_name_have_other_keys():
    kv_cache_utils.init_none_hash(sha256_cbor)
    given = [{}, {"cache_salt": "x"}, {"mm_features": an_image("x")},
             {"lora_request": SimpleNamespace(lora_name="x", lora_path="x")},
             {"lora_request": SimpleNamespace(lora_name="x", lora_path="")},
             {"lora_request": SimpleNamespace(lora_name="", lora_path="x")}]
    assert len({str(key_of(**one)) for one in given}) == len(given)


@pytest.mark.parametrize("keys, error, words", [
    ("lora", TypeError, "extra_keys: "),
    (["lora"], TypeError, "extra_keys: number 0: "),
    ([("lora",)], TypeError, "extra_keys: number 0: "),
    ([[("mm", 1.5)]], TypeError, "a str, bytes or int"),
    ([[("mm", True)]], TypeError, "a str, bytes or int"),
    ([[("mm", 2**63)]], cachalot.InvalidArgumentError, "is beyond 64 bits"),
    ([None, None], cachalot.InvalidArgumentError, "has 2 entries, expected at most one for each of 1 blocks"),
    ([[("lora", "\ud800")]], UnicodeEncodeError, "surrogates"),
])
def test_other_extra_keys_are_refused(pool, keys, error, words):
    with pool("0") as client, pytest.raises(error, match=words):
        client.hash_tokens([1] * BLOCK, keys)


def test_xxhash_without_a_seed_is_refused(pool):
    with pytest.raises(cachalot.InvalidArgumentError, match="python_hash_seed"):
        pool("", "xxhash_cbor")
