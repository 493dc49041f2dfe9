"""Random conversations over several engines and one small pool, while its keeper and engines are killed.

CACHALOT_VLLM_CONVERSATIONS: how many (default 30; the full soak is 200, with 20 kills of the keeper and 5 of engines).
"""

import os
import random
import time

CONVERSATIONS = int(os.environ.get("CACHALOT_VLLM_CONVERSATIONS", "30"))
ENGINES = 3


def draw_turns(source, shared):
    """The user's parts of a conversation; the first begins with one of a few shared prompts."""
    turns = [shared[source.randrange(len(shared))] + [source.randrange(3, 250) for _ in range(source.randrange(20, 200))]]
    for _ in range(source.randrange(0, 4)):
        turns.append([source.randrange(3, 250) for _ in range(source.randrange(10, 120))])
    return turns


def test_every_answer_is_that_of_an_engine_alone(models, engines, pools):
    source = random.Random(7)
    shared = [[source.randrange(3, 250) for _ in range(source.randrange(300, 900))] for _ in range(6)]
    pool = pools(blocks=60)
    options = {"pool": pool.path, "keeper_timeout": 1.0, "store_timeout": 2.0}
    alone = engines(models())
    sharing = [engines(models(), options) for _ in range(ENGINES)]
    for engine in [alone, *sharing]:
        engine.wait_ready()
    keeper_kills = sorted(source.sample(range(CONVERSATIONS), max(1, CONVERSATIONS // 10)))
    engine_kills = sorted(source.sample(range(CONVERSATIONS), max(1, CONVERSATIONS // 40)))
    hits, kills = 0, {"keeper": 0, "engine": 0}
    for number in range(CONVERSATIONS):
        if number in keeper_kills:
            if pool.keeper.poll() is not None:
                pool.serve()
            pool.kill()
            kills["keeper"] += 1
        if number in engine_kills:
            at = source.randrange(ENGINES)
            sharing[at].process.kill()
            sharing[at].process.wait()
            sharing[at] = engines(models(), options)
            kills["engine"] += 1
        history = []
        for turn, said in enumerate(draw_turns(source, shared)):
            history = history + said
            engine = sharing[source.randrange(ENGINES)]
            length = source.randrange(4, 60)
            expected = alone.answer([history], max_tokens=length)
            answer = engine.answer([history], max_tokens=length)
            assert answer["tokens"] == expected["tokens"], f"conversation {number}, turn {turn}\n{engine.text()[-3000:]}"
            assert answer["reasons"] == ["length"]
            history = history + answer["tokens"][0]
            if pool.keeper.poll() is not None and source.random() < 0.5:
                pool.serve()
        hits += answer["metrics"].get("vllm:external_prefix_cache_hits", 0)
        if number % 10 == 9:
            print(f"{number + 1} of {CONVERSATIONS} conversations, killed so far: {kills}", time.strftime("%T"), flush=True)
    assert hits > 0
    assert kills == {"keeper": len(keeper_kills), "engine": len(engine_kills)}
