"""What must never be shared: other weights, salts, dtypes, engines, and what was computed before an update of the weights."""

import json
import os

import pytest
from conftest import Engine, Pool
from test_share import from_pool, full_pages

TOKENS = 600


@pytest.fixture(scope="module")
def stage(models):
    """A pool that has one prompt of one engine."""

    class Stage:
        pool = Pool(f"/dev/shm/cachalot_sglang_identity_{os.getpid()}", 1 << 20, 600)
        engine = Engine(models(), {"pool": pool.path})

    yield Stage
    Stage.engine.close()
    Stage.pool.close()


@pytest.mark.parametrize(("model", "options", "arguments"), [
    pytest.param("llama-retrained", {}, {}, id="other-weights"),
    pytest.param("llama", {"salt": "tenant 2"}, {}, id="salt"),
    pytest.param("llama", {}, {"dtype": "bfloat16"}, id="dtype"),
    pytest.param("llama", {}, {"page_size": 32}, id="page-size"),
    pytest.param("llama", {}, {"json_model_override_args": json.dumps({"rope_theta": 77777.0})}, id="overrides"),
])
def test_an_engine_with_something_else_finds_nothing(stage, models, engines, prompt, model, options, arguments):
    stage.engine.answer([prompt(1, TOKENS)])
    other = engines(models(model), {"pool": stage.pool.path, **options}, **arguments)
    answer = other.answer([prompt(1, TOKENS)])
    assert from_pool(answer) == 0
    assert answer["tokens"] == engines(models(model), **arguments).answer([prompt(1, TOKENS)])["tokens"]


def test_requests_of_other_salts_find_nothing(stage, models, engines, prompt):
    stage.engine.answer([prompt(2, TOKENS)], salt="a")
    reader = engines(models(), {"pool": stage.pool.path})
    assert from_pool(reader.answer([prompt(2, TOKENS)], salt="b")) == 0
    assert from_pool(reader.answer([prompt(2, TOKENS)])) == 0
    assert from_pool(reader.answer([prompt(2, TOKENS)], salt="a")) == full_pages(16, TOKENS)


@pytest.mark.parametrize("flush", [True, False], ids=["flush", "no-flush"])
def test_after_an_update_of_the_weights_nothing_old_is_found_and_nothing_new_is_shared(models, engines, pools, prompt, flush):
    pool = pools(512 << 10, 600)
    old, new = models(), models("llama-retrained")
    updated, other = engines(old, {"pool": pool.path}), engines(old, {"pool": pool.path})
    before = other.answer([prompt(1, TOKENS)])
    assert updated.answer([], update=str(new), flush=flush)["update"], updated.text()[-3000:]
    expected = engines(new).answer([prompt(1, TOKENS), prompt(2, TOKENS)])["tokens"]
    answer = updated.answer([prompt(1, TOKENS)])
    assert from_pool(answer) == 0 and answer["tokens"][0] == expected[0] != before["tokens"][0]
    assert updated.answer([prompt(2, TOKENS)])["tokens"][0] == expected[1]
    assert "the weights were updated" in updated.text()
    # The other engine, with the old weights, finds nothing of the new ones.
    answer = other.answer([prompt(2, TOKENS)])
    assert from_pool(answer) == 0
    assert answer["tokens"] == engines(old).answer([prompt(2, TOKENS)])["tokens"]


def test_what_was_computed_on_old_pages_does_not_come_back_after_a_flush(models, engines, pools, prompt):
    pool = pools(512 << 10, 600)
    old, new = models(), models("llama-retrained")
    engine = engines(old, {"pool": pool.path})
    begin, whole = prompt(1, TOKENS), prompt(1, TOKENS) + prompt(2, TOKENS)
    engine.answer([begin])
    assert engine.answer([], update=str(new), flush=False)["update"], engine.text()[-3000:]
    engine.answer([whole])
    assert engine.answer([], flush=True)["flush"]
    engine.answer([begin])
    answer = engine.answer([whole])
    assert answer["tokens"] == engines(new).answer([whole])["tokens"], from_pool(answer)


def test_a_flush_alone_keeps_what_the_pool_has(stage, prompt):
    stage.engine.answer([prompt(3, TOKENS)])
    assert stage.engine.answer([], flush=True)["flush"]
    assert from_pool(stage.engine.answer([prompt(3, TOKENS)])) == full_pages(16, TOKENS)
