"""Two SGLang engines, one pool: the second one takes the first one's pages, and says the same."""

import pytest

TOKENS = 1500


def full_pages(page_size, tokens=TOKENS):
    """Tokens of the pages that a prompt can take: SGLang computes its last token."""
    return (tokens - 1) // page_size * page_size


def from_pool(answer):
    """Tokens that came from outside of the engine."""
    details = answer["details"][0] or {}
    return details.get("host", 0) + details.get("storage", 0)


@pytest.mark.parametrize("arguments", [
    pytest.param({"page_size": 1}, id="page-1"),
    pytest.param({}, id="page-16"),
    pytest.param({"page_size": 64}, id="page-64"),
    pytest.param({"dtype": "bfloat16"}, id="bf16"),
    pytest.param({"model": "qwen3"}, id="qwen3"),
])
def test_a_second_engine_takes_every_full_page(models, engines, pools, prompt, arguments):
    model, rest = models(arguments.get("model", "llama")), {k: v for k, v in arguments.items() if k != "model"}
    page = rest.get("page_size", 16)
    pool = pools(512 << 10 if page > 1 else 16 << 10, 4096 // page)
    one = prompt(1)
    first = engines(model, {"pool": pool.path}, **rest)
    computed = first.answer([one])
    assert from_pool(computed) == 0
    assert len(set(computed["tokens"][0])) > 3  # else wrong KV stays unseen
    again = first.answer([one])
    assert again["tokens"] == computed["tokens"]
    second = engines(model, {"pool": pool.path}, **rest)
    answer = second.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert from_pool(answer) == full_pages(page), (answer["details"], second.text()[-3000:])


def test_the_pool_knows_the_order_of_a_conversation(models, engines, pools, prompt):
    """SGLang offers the pages of a prompt, and those of its answer, one after the other. Only the first page has none before it."""
    pool, talk = pools(512 << 10, 600), prompt(3, 200)
    engine = engines(models(), {"pool": pool.path})
    for turn in range(3):
        talk = talk + engine.answer([talk], max_tokens=40)["tokens"][0] + prompt(turn, 60)
    pool.wait_for_blocks((len(talk) - 61) // 16)  # the last answer's last token has no KV
    parents = {block["hash"]: block["parent"] for block in pool.blocks()}
    assert list(parents.values()).count(None) == 1
    assert len(set(parents.values())) == len(parents), "one after the other"
