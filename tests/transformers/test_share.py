"""Two transformers engines, one pool: the second one takes every whole block of a prompt, and says the same."""

import subprocess
import sys

import pytest
from conftest import BLOCK_BYTES, HERE, whole_blocks

EXAMPLE = HERE.parents[1] / "examples/transformers/shared_prefix.py"


@pytest.mark.parametrize(("name", "block_tokens", "options"), [
    pytest.param("llama", 16, {}, id="llama-16"),
    pytest.param("llama", 64, {}, id="llama-64"),
    pytest.param("llama", 16, {"dtype": "bfloat16"}, id="llama-bf16"),
    pytest.param("qwen3", 16, {}, id="qwen3"),
])
def test_a_second_engine_takes_every_whole_block(models, engines, pools, prompt, name, block_tokens, options):
    lengths = [5, block_tokens - 1, block_tokens, block_tokens + 1, 4 * block_tokens, 4 * block_tokens + 1, 1500]
    prompts = [prompt(seed, tokens) for seed, tokens in enumerate(lengths)]
    pool = pools(BLOCK_BYTES * block_tokens // 16, 512)
    options = {"config": {"page_size": block_tokens}, **options}
    alone, first, second = (engines(models(name), path, **options) for path in (None, pool.path, pool.path))
    for one, tokens in zip(prompts, lengths):
        asked, computed = whole_blocks(tokens, block_tokens), alone.answer([one])["tokens"]
        assert len(set(computed[0])) > 3  # else wrong KV stays unseen
        answer = first.answer([one])
        assert answer["tokens"] == computed
        assert (answer["prompts"], answer["asked"], answer["used"]) == (int(asked > 0), asked, 0)
        again = first.answer([one])  # computes the rest of the prompt with the blocks that it has itself
        assert again["prompts"] == 0
        answer = second.answer([one])
        assert answer["tokens"] == again["tokens"]  # bit for bit the same computation
        assert answer["tokens"] == computed or "dtype" in options  # in 16 bits the order of sums can change a token
        assert (answer["prompts"], answer["asked"], answer["used"]) == (int(asked > 0), asked, asked)


def test_what_the_engine_has_itself_is_not_asked_of_the_pool(models, engines, pools, prompt, alone):
    pool = pools()
    first, second = engines(models(), pool.path), engines(models(), pool.path)
    whole = prompt(1, 16 * 20 + 3)
    first.answer([whole])
    second.answer([whole[:16 * 8 + 1]])
    answer = second.answer([whole])
    assert (answer["asked"], answer["used"]) == (12, 12)
    assert answer["tokens"] == alone.answer([whole])["tokens"]


def test_answers_are_stored_too(models, engines, pools, prompt, alone):
    pool = pools()
    first, second = engines(models(), pool.path), engines(models(), pool.path)
    talk = prompt(1, 100)
    talk += first.answer([talk], max_tokens=60)["tokens"][0]
    answer = second.answer([talk])  # the KV of the answer's last token was not computed
    assert (answer["asked"], answer["used"]) == (whole_blocks(160), whole_blocks(160))
    assert answer["tokens"] == alone.answer([talk])["tokens"]


def test_a_prompt_whose_answer_is_one_token_is_stored(models, engines, pools, prompt):
    pool = pools()
    first, second = engines(models(), pool.path), engines(models(), pool.path)
    asked = prompt(1, 16 * 50)
    one = first.answer([asked], max_tokens=1)
    answer = second.answer([asked], max_tokens=1)
    assert (answer["used"], answer["tokens"]) == (49, one["tokens"])
    answer = second.answer([asked + [1]])  # transformers itself does not keep a block that the last step of a request completed
    assert (answer["asked"], answer["used"]) == (1, 1)


def test_prompts_of_one_batch_load_their_beginning_once(models, engines, pools, prompt, alone):
    pool = pools()
    first, second = engines(models(), pool.path), engines(models(), pool.path)
    beginning = prompt(1, 16 * 10)
    prompts = [beginning + prompt(seed, 40) for seed in range(2, 8)]
    first.answer([beginning + [1]])
    answer = second.answer(prompts)
    assert answer["used"] == 10
    assert answer["tokens"] == alone.answer(prompts)["tokens"]


def test_other_weights_find_nothing(models, engines, pools, prompt):
    pool, one = pools(), prompt(1, 300)
    computed = engines(models(), pool.path).answer([one])
    other = engines(models("llama-retrained"), pool.path).answer([one])
    assert (other["asked"], other["used"]) == (18, 0)
    assert other["tokens"] != computed["tokens"]


def test_an_engine_whose_cache_is_full_takes_what_fits(models, engines, pools, prompt, alone):
    pool = pools()
    first = engines(models(), pool.path)
    small = engines(models(), pool.path, config={"num_blocks": 48})
    prompts = [prompt(seed, 500) for seed in range(6)]
    expected = alone.answer(prompts)["tokens"]
    assert first.answer(prompts)["tokens"] == expected
    for _ in range(2):
        assert small.answer(prompts)["tokens"] == expected
    assert small.counts["used_pool_blocks"] > 4 * whole_blocks(500)


def test_the_example(models):
    ran = subprocess.run([sys.executable, EXAMPLE, models()], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "second engine: 1472 of 1500 tokens from the pool" in ran.stdout


@pytest.mark.parametrize(("name", "says"), [("mistral", "layers sliding_attention"), ("deepseek", "layers full_attention")])
def test_other_caches_are_refused_by_name(models, engines, pools, name, says):
    engine = engines(models(name), pools().path)
    with pytest.raises(AssertionError, match="the engine has ended"):
        engine.answer([[1, 2, 3]])
    assert f"{name}" in engine.text() and says in engine.text()


@pytest.mark.parametrize(("config", "says"), [
    ({"allow_block_sharing": False}, "allow_block_sharing: False; expected True"),
    ({"page_size": 32}, f"room for {BLOCK_BYTES}"),
])
def test_a_wrong_setting_is_an_error_before_the_engine_serves(models, engines, pools, config, says):
    engine = engines(models(), pools().path, config=config)
    with pytest.raises(AssertionError, match="the engine has ended"):
        engine.answer([[1, 2, 3]])
    assert says in engine.text()


def test_another_version_is_refused_by_name():
    code = "import transformers; transformers.__version__ = '5.17.0'; import shared_prefix"
    ran = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLE.parent, capture_output=True, text=True, check=False)
    assert "ImportError: transformers 5.17.0: expected 5.19.x" in ran.stderr
