"""Two engines share a prompt through a pool: the second takes every full block, and says the same."""

import os
import time

import pytest
import torch
from processes import HERE
from tiny_models import make_adapter

TOKENS = 1500


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


def full_blocks(block):
    """Tokens in full blocks; one token at least is computed."""
    return (TOKENS - 1) // block * block


CASES = {
    "async": ({}, {}),
    "sync": ({}, {"load": "sync"}),
    "f32": ({"dtype": "float32"}, {}),
    "fp8": ({"kv_cache_dtype": "fp8"}, {}),
    "blocks of 32": ({"block_size": 32}, {}),
    "blocks of 64": ({"block_size": 64}, {"load": "sync"}),
    "chunked prefill": ({"max_num_batched_tokens": 512}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_second_engine_takes_every_full_block(models, engines, pools, prompt, case):
    arguments, options = CASES[case]
    pool = pools()
    one = prompt(1, TOKENS)
    options = {"pool": pool.path, **options}
    first = engines(models(), options, **arguments)
    computed = first.answer([one])
    assert external_hits(computed) == 0
    assert len(set(computed["tokens"][0])) > 3  # else wrong KV stays unseen
    if case == "async":
        assert engines(models()).answer([one])["tokens"] == computed["tokens"]
    second = engines(models(), options, **arguments)
    answer = second.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(arguments.get("block_size", 128)), second.text()[-3000:]
    assert answer["cached"] == [external_hits(answer)]


def test_a_request_limits_what_it_takes_and_what_it_stores(models, engines, pools, prompt):
    """In tokens, of which whole blocks count: 3 of 11 are stored, then 2 of 3 are taken; the rest is computed."""
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    first, second = engines(models(), options), engines(models(), options)
    computed = first.answer([one], params={"max_offload_tokens": 3 * 128 + 100})
    pool.wait_for_blocks(3)
    answer = second.answer([one], params={"max_load_tokens": 2 * 128 + 100, "max_offload_tokens": 0})
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == 2 * 128, second.text()[-3000:]
    assert second.answer([prompt(2, TOKENS)], params={"max_load_tokens": 0})["reasons"] == ["length"]
    pool.wait_for_blocks(3 + 11)
    answer = first.answer([one, prompt(2, TOKENS)])  # has the first one itself
    assert external_hits(answer) == full_blocks(128)
    assert pool.live_blocks() == 2 * 11


@pytest.mark.parametrize("load", ["async", "sync"])
def test_each_prompt_counts_once(models, engines, pools, prompt, load):
    """By hand: the first engine asks for the 11 full blocks of a prompt and finds none. The second one asks for those of
    this prompt and uses them, asks for those of another one and finds none, and has this other one itself when it comes
    again: 11 of 33."""
    pool = pools()
    options = {"pool": pool.path, "load": load}
    blocks = full_blocks(128) // 128
    first, second = engines(models(), options), engines(models(), options)
    first.answer([prompt(1, TOKENS)])
    second.answer([prompt(1, TOKENS)])
    for _ in range(2):
        answer = second.answer([prompt(2, TOKENS)])
    names = "prompts", "prompt_blocks", "used_pool_blocks", "used_peer_blocks", "used_storage_blocks"
    of_second = [answer["metrics"].get(f"vllm:cachalot_{name}", 0) for name in names]
    assert of_second == [2, 2 * blocks, blocks, 0, 0], second.text()[-3000:]
    until = time.monotonic() + 30  # clients publish every 200 ms
    while (totals := pool.info()["totals"])["prompts"] != 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert [totals[name] for name in names] == [3, 3 * blocks, blocks, 0, 0]
    assert totals["hit_rate"] == 1 / 3


@pytest.mark.parametrize("backend", ["CPU_MLA", None])
def test_a_latent_cache(models, engines, pools, prompt, backend):
    """With CPU_MLA vLLM has no prefix cache of its own: the first engine loads its own blocks, too. The pages are byte for
    byte what was computed, but attention over a loaded context rounds otherwise, so far tokens may differ from cold ones.
    Without a choice vLLM takes AMX_MLA where the processor has AMX tiles: larger blocks, and a prefix cache."""
    has_own_cache = backend is None and torch.cpu._is_amx_tile_supported()
    block = 128 if has_own_cache else 16
    pool = pools(1 << 19, 256)
    options, arguments = {"pool": pool.path}, {"attention_backend": backend} if backend else {}
    one = prompt(1, TOKENS)
    first = engines(models("deepseek"), options, **arguments)
    cold, warm = first.answer([one]), first.answer([one])
    assert len(set(cold["tokens"][0])) > 3
    assert warm["cached"] == [full_blocks(block)]
    assert external_hits(warm) == (0 if has_own_cache else full_blocks(block))
    if not has_own_cache:  # else both are vLLM's own, and AMX rounds more
        assert warm["tokens"][0][:8] == cold["tokens"][0][:8]
    answer = engines(models("deepseek"), options, **arguments).answer([one])
    assert external_hits(answer) == full_blocks(block)
    assert answer["tokens"] == warm["tokens"]


@pytest.mark.parametrize("model,block", [("mistral", 128), ("gemma3", 128)])
def test_models_with_windows(models, engines, pools, prompt, model, block):
    pool = pools(blocks=1024)
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    reference = engines(models(model)).answer([one])
    assert len(set(reference["tokens"][0])) > 3
    assert engines(models(model), options).answer([one])["tokens"] == reference["tokens"]
    answer = engines(models(model), options).answer([one])
    assert answer["tokens"] == reference["tokens"]
    assert external_hits(answer) == full_blocks(block)


def test_two_ranks(models, engines, pools, prompt):
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    computed = engines(models(), options, tensor_parallel_size=2).answer([one])
    answer = engines(models(), options, tensor_parallel_size=2).answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(128)
    # An engine of one rank holds other bytes.
    assert external_hits(engines(models(), options).answer([one])) == 0


def expect_stored(engine, blocks):
    """An engine may count the blocks of an answer after it: asks for little more until it has."""
    until = time.monotonic() + 60
    while (stored := engine.answer([[5, 6]])["metrics"]["vllm:cachalot_stored_blocks"]) < blocks:
        assert time.monotonic() < until, f"{stored} blocks are stored, expected {blocks}"
    assert stored == blocks


def test_engines_of_other_tensor_parallel_sizes(models, engines, pools, prompt):
    """The model has two KV heads: each of four ranks has one that another rank has, too. In float32: engines of other
    tensor parallel sizes add in another order, which bfloat16 makes visible."""
    pool = pools(1 << 20, 512)
    options, exact = {"pool": pool.path, "share_tp": "auto"}, {"dtype": "float32"}
    one, two, three = prompt(1, TOKENS), prompt(2, TOKENS), prompt(3, TOKENS)
    single = engines(models(), options, **exact)
    pair = engines(models(), options, tensor_parallel_size=2, **exact)
    computed = pair.answer([one])
    assert external_hits(computed) == 0 and len(set(computed["tokens"][0])) > 3
    answer = single.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(128), single.text()[-3000:]
    other = single.answer([two])
    answer = pair.answer([two])
    assert answer["tokens"] == other["tokens"]
    assert external_hits(answer) == full_blocks(128), pair.text()[-3000:]
    expect_stored(pair, 2 * 11)
    pair.close()
    four = engines(models(), options, tensor_parallel_size=4, **exact)
    answer = four.answer([one])
    assert external_hits(answer) == full_blocks(128), four.text()[-3000:]
    assert answer["tokens"] == computed["tokens"]
    last = four.answer([three])
    answer = single.answer([three])
    assert answer["tokens"] == last["tokens"]
    assert external_hits(answer) == 2 * full_blocks(128)  # of all its requests
    # Each block is in the pool once for each head: no rank has written what another one has.
    expect_stored(single, 11)
    expect_stored(four, 2 * 11)
    assert external_hits(engines(models(), {"pool": pool.path}, **exact).answer([one])) == 0


def test_two_pipeline_stages(models, engines, pools, prompt):
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    stages = {"pipeline_parallel_size": 2, "worker_cls": "pipeline_worker.PipelineWorker",
              "environment": {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}}
    computed = engines(models(), options, **stages).answer([one])
    assert computed["tokens"] == engines(models()).answer([one])["tokens"]
    engine = engines(models(), options, **stages)
    answer = engine.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(128)
    assert answer["metrics"]["vllm:cachalot_loaded_blocks"] == 2 * 11
    assert external_hits(engines(models(), options).answer([one])) == 0  # one stage holds other layers


def test_three_processes_an_engine(models, engines, pools, prompt):
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    computed = engines(models(), options, in_process=False).answer([one])
    answer = engines(models(), options, in_process=False).answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(128)


def test_a_conversation_goes_on_in_another_engine(models, engines, pools, prompt):
    """The answer's blocks are shared, too."""
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, 700)
    first, second = engines(models(), options), engines(models(), options)
    said = first.answer([one], max_tokens=400)["tokens"][0]
    answer = second.answer([one + said + prompt(2, 50)])
    assert external_hits(answer) == (700 + 400 - 1) // 128 * 128


def test_speculative_decoding(models, engines, pools, prompt):
    """Tokens that were guessed wrong lie in pages of blocks that are not complete yet; such a block is stored when it is."""
    pool = pools(1 << 19, 256)
    options = {"pool": pool.path}
    guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    same = {"speculative_config": guesses, "dtype": "float32"}
    one = prompt(1, 300) * 3
    plain = engines(models(), dtype="float32").answer([one], max_tokens=300)
    first, second = engines(models(), options, **same), engines(models(), options, **same)
    computed = first.answer([one], max_tokens=300)
    assert computed["tokens"] == plain["tokens"] and len(set(plain["tokens"][0])) > 3
    drafted, accepted = (computed["metrics"][f"vllm:spec_decode_num_{name}_tokens"] for name in ("draft", "accepted"))
    assert drafted > accepted and drafted > 100
    pool.wait_for_blocks((900 + 299) // 128)
    longer = one + plain["tokens"][0] + prompt(2, 50)
    answer = second.answer([longer], max_tokens=100)
    assert external_hits(answer) == (900 + 299) // 128 * 128, second.text()[-3000:]
    assert answer["tokens"] == engines(models(), dtype="float32").answer([longer], max_tokens=100)["tokens"]


def test_a_prompt_shorter_than_a_block_says_so_once(models, engines, pools, prompt):
    pool = pools()
    engine = engines(models(), {"pool": pool.path})
    for seed in range(2):
        assert external_hits(engine.answer([prompt(seed, 128)])) == 0
    said = "no hits for a prompt of 128 tokens: the pool shares whole blocks of 128 tokens, and at least one token is computed"
    assert engine.text().count(said) == 1


def test_other_weights_are_another_namespace(models, engines, pools, prompt):
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    engines(models(), options).answer([one])
    retrained = engines(models("llama-retrained"), options)
    other = retrained.answer([one])
    assert external_hits(other) == 0
    assert "no hits for the first prompt: other engines of this pool have other weights" in retrained.text()
    assert other["tokens"] == engines(models("llama-retrained")).answer([one])["tokens"]


OTHER_BYTES = {
    "KV dtype": {"kv_cache_dtype": "fp8"},
    "dtype": {"dtype": "float32"},
    "block size": {"block_size": 64},
}


@pytest.mark.parametrize("what", OTHER_BYTES)
def test_other_bytes_are_another_namespace(models, engines, pools, prompt, what):
    pool = pools()
    options = {"pool": pool.path}
    one = prompt(1, TOKENS)
    engines(models(), options).answer([one])
    other = engines(models(), options, **OTHER_BYTES[what])
    assert external_hits(other.answer([one])) == 0
    assert f"other engines of this pool have the same weights with other {what}" in other.text()


def test_two_adapters_at_one_path_never_meet(models, engines, pools, prompt, tmp_path):
    pool = pools()
    options, lora = {"pool": pool.path}, {"enable_lora": True, "max_lora_rank": 8}
    one, path = prompt(1, TOKENS), str(tmp_path / "adapter")

    def answer(seed, connector):
        make_adapter(tmp_path / "adapter", seed)
        engine = engines(models(), connector, **lora)
        return engine.answer([one], adapter=path), engine

    first, _ = answer(1, options)
    other, engine = answer(2, options)
    assert external_hits(other) == 0
    assert other["tokens"] == answer(2, None)[0]["tokens"] != first["tokens"]
    assert "only engines with the same files share its blocks" in engine.text()
    again, _ = answer(1, options)
    assert external_hits(again) == full_blocks(128)
    assert again["tokens"] == first["tokens"]
    without = engine.answer([one])
    assert external_hits(without) == 0 and without["tokens"] == engines(models()).answer([one])["tokens"]


def test_the_first_engine_makes_the_pool(models, engines, prompt, tmp_path):
    options = {"pool": f"/dev/shm/cachalot_vllm_made_{tmp_path.name}", "create": {"size": "64MiB"}}
    one = prompt(1, TOKENS)
    first = engines(models(), options)
    computed = first.answer([one])
    second = engines(models(), options)
    answer = second.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == full_blocks(128)
    assert "this engine keeps the pool" in first.text()
    assert "another process keeps the pool" in second.text()
    # The size is what the pool takes in all.
    assert 0.9 * (64 << 20) < os.path.getsize(options["pool"]) <= 64 << 20
    first.close()
    second.close()
    os.unlink(options["pool"])
