"""What must never be shared: KV of before an update of the weights or of an adapter, and KV of a salt named as an adapter."""

import pytest
from tiny_models import make_adapter

TOKENS = 700
FULL = TOKENS // 128 * 128


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


class Counted:
    """An engine, and what each of its answers has taken from the pool."""

    def __init__(self, engine):
        self.engine, self._hits = engine, 0

    def ask(self, prompt, **options):
        """Returns the tokens, and how many of the prompt's came from the pool."""
        answer = self.engine.answer([prompt], **options)
        before, self._hits = self._hits, external_hits(answer)
        return answer["tokens"][0], self._hits - before


@pytest.fixture(scope="module")
def old(models, lasting_engines):
    return Counted(lasting_engines(models()))


@pytest.fixture(scope="module")
def new(models, lasting_engines):
    return Counted(lasting_engines(models("llama-retrained")))


def stored(pool, engine, prompt):
    """Asks for it, until the pool has its blocks."""
    before = pool.live_blocks()
    said = engine.ask(prompt)
    pool.wait_for_blocks(before + FULL // 128)
    return said


@pytest.mark.parametrize("by", ["rpc", "function", "trainer"])
def test_after_an_update_nothing_old_is_found_and_nothing_new_is_shared(models, engines, pools, prompt, old, new, by):
    """Without a reset. What vLLM has in its own cache it finds there as ever, so the prompts are others."""
    pool = pools()
    updated, other = (Counted(engines(models(), {"pool": pool.path})) for _ in range(2))
    assert stored(pool, other, prompt(1, TOKENS))[0] == old.ask(prompt(1, TOKENS))[0] != new.ask(prompt(1, TOKENS))[0]
    updated.ask([5, 6, 7])
    assert updated.engine.answer([], update=str(models("llama-retrained")), by=by) == {}
    assert updated.ask(prompt(1, TOKENS)) == (new.ask(prompt(1, TOKENS))[0], 0)
    assert updated.ask(prompt(2, TOKENS)) == (new.ask(prompt(2, TOKENS))[0], 0)
    called = {"rpc": "reload_weights", "function": "apply_model", "trainer": "load_weights"}[by]
    assert f"the weights were updated ({called})" in updated.engine.text()
    assert other.ask(prompt(2, TOKENS)) == (old.ask(prompt(2, TOKENS))[0], 0)


def test_an_update_of_workers_in_other_processes_is_seen(models, engines, pools, prompt):
    """The scheduler, and each of two ranks, in a process of its own."""
    pool = pools(1 << 20, 512)
    apart = {"in_process": False, "tensor_parallel_size": 2}
    updated, other = (Counted(engines(models(), {"pool": pool.path}, **apart)) for _ in range(2))
    old = other.ask(prompt(1, TOKENS))[0]
    pool.wait_for_blocks(2 * (FULL // 128))
    assert updated.ask(prompt(1, TOKENS)) == (old, FULL)
    assert updated.engine.answer([], update=str(models("llama-retrained")), by="rpc") == {}
    assert updated.engine.answer([], reset=True, connector=False) == {"reset": True}
    said, hits = updated.ask(prompt(1, TOKENS))
    assert said != old and hits == 0
    pool.wait_for_blocks(4 * (FULL // 128))
    assert updated.ask(prompt(2, TOKENS))[1] == 0
    assert other.ask(prompt(2, TOKENS))[1] == 0


@pytest.mark.parametrize("connector", [False, True], ids=["its-own", "with-the-connector"])
def test_blocks_of_before_an_update_do_not_come_back_after_a_reset(models, engines, pools, prompt, old, new, connector):
    """Between update and reset vLLM uses its own old blocks. The pool must not keep them as if they were new."""
    pool = pools()
    engine = Counted(engines(models(), {"pool": pool.path}))
    one, two = prompt(1, TOKENS), prompt(2, TOKENS)
    assert stored(pool, engine, one)[0] == old.ask(one)[0]
    engine.engine.answer([], update=str(models("llama-retrained")), by="rpc")
    engine.ask(one)
    assert engine.engine.answer([], reset=True, connector=connector) == {"reset": True}
    assert engine.ask(one) == (new.ask(one)[0], 0)
    # From then on the engine has itself for company.
    stored(pool, engine, two)
    assert engine.engine.answer([], reset=True, connector=False) == {"reset": True}
    assert engine.ask(two) == (new.ask(two)[0], FULL)


@pytest.fixture(scope="module")
def adapted(models, lasting_engines):
    """Answers with an adapter, without a pool."""
    engine = lasting_engines(models(), enable_lora=True, max_lora_rank=8)

    def ask(prompt, folder):
        engine.answer([], adapter=folder, reload=True)
        engine.answer([], reset=True)
        return engine.answer([prompt], adapter=folder)["tokens"][0]

    return ask


def test_an_adapter_that_is_loaded_again_under_its_name_is_not_the_one_before(models, engines, pools, prompt, tmp_path, adapted):
    pool = pools()
    first, second = (Counted(engines(models(), {"pool": pool.path}, enable_lora=True, max_lora_rank=8)) for _ in range(2))
    one, other = (str(make_adapter(tmp_path / name, seed)) for seed, name in enumerate("ab"))
    ask = prompt(1, TOKENS)
    said = first.ask(ask, adapter=one)
    assert said == (adapted(ask, one), 0)
    # From another path: its prompts are computed, and nothing of them is shared.
    first.engine.answer([], adapter=other, reload=True)
    expected = adapted(ask, other)
    assert first.ask(ask, adapter=other) == (expected, 0) != said
    assert "is shared with no engine" in first.engine.text()
    assert second.ask(ask, adapter=one) == (said[0], FULL)
    # Other files at the path of before: vLLM's own cache would find the blocks of before, so it is reset.
    make_adapter(tmp_path / "a", 2)
    expected = adapted(ask, one)
    assert expected not in (said[0], adapted(ask, other))
    second.engine.answer([], adapter=one, reload=True)
    second.engine.answer([], reset=True, connector=False)
    assert second.ask(ask, adapter=one) == (expected, 0)


def test_an_adapter_named_as_a_salt_is_not_the_salt(models, engines, pools, prompt, tmp_path, adapted, old):
    pool = pools()
    first, second = (Counted(engines(models(), {"pool": pool.path}, enable_lora=True, max_lora_rank=8)) for _ in range(2))
    ask, folder = prompt(1, TOKENS), str(make_adapter(tmp_path / "tuned", 1))
    plain = old.ask(ask)[0]
    for salt in ("tuned", folder):  # engine.py's name of the adapter, and its path
        assert first.ask(ask, salt=salt) == (plain, 0)
    assert second.ask(ask, adapter=folder) == (adapted(ask, folder), 0)
    assert second.ask(ask, salt="tuned") == (plain, FULL)
    assert second.ask(ask, salt="tuned2") == (plain, 0)
    assert second.ask(ask) == (plain, 0)
