"""Random conversations over two engines and one small pool, while its keeper is killed: every answer is that of an engine alone.

CACHALOT_SGLANG_CONVERSATIONS: how many (default 24; the full soak is 200, with 10 kills of the keeper).
"""

import os
import random
import time

from test_share import from_pool

CONVERSATIONS = int(os.environ.get("CACHALOT_SGLANG_CONVERSATIONS", "24"))
KILLS = max(2, CONVERSATIONS // 20)
BLOCK_BYTES = 16 * 4 * 2 * 2 * 64 * 4  # tokens, layers, keys and values, heads, numbers, float32
PAGE = 16


class Talk:
    """A conversation. `turns`: what its user says, each after the last answer; the first begins with one of a few prompts."""

    def __init__(self, source, shared):
        self.turns = [source.choice(shared) + self._said(source, 20, 200)]
        self.turns += [self._said(source, 10, 120) for _ in range(source.randrange(4))]
        self.history = []

    @staticmethod
    def _said(source, least, most):
        return [source.randrange(3, 250) for _ in range(source.randrange(least, most))]

    def next_prompt(self):
        self.history += self.turns.pop(0)
        return self.history


class Alone:
    """An engine without a pool, and the answers that are right.

    Floats of a prompt that is computed in one piece and of one whose beginning was in a cache round differently. So where two
    tokens are nearly as likely, another answer is right as well: this engine's own, with as many tokens from its own cache.
    """

    def __init__(self, engine):
        self._engine, self.near_ties = engine, 0

    def check(self, prompt, answer, text):
        tokens = len(answer["tokens"][0])
        expected = self._engine.answer([prompt], max_tokens=tokens)
        if answer["tokens"] != expected["tokens"]:
            self.near_ties += 1
            assert self._engine.answer([], flush=True)["flush"]
            cached = answer["cached"][0]
            if cached > 0:
                self._engine.answer([prompt[:cached + 1]], max_tokens=1)
            again = self._engine.answer([prompt], max_tokens=tokens)
            assert again["cached"] == [cached] and answer["tokens"] == again["tokens"], (answer, expected, again, text())
        assert answer["reasons"] == ["length"]


class Trouble:
    """Kills the keeper in the middle of answers, and starts another one some answers later."""

    def __init__(self, source, pool):
        self._source, self._pool, self.kills = source, pool, 0

    def kill(self):
        if self._pool.keeper.poll() is not None:
            self._pool.serve()
        time.sleep(self._source.uniform(0, 0.5))
        self._pool.kill()
        self.kills += 1

    def perhaps_end(self):
        if self._pool.keeper.poll() is not None and self._source.random() < 0.3:
            self._pool.serve()


def test_every_answer_is_that_of_an_engine_alone(models, engines, pools):
    source = random.Random(7)
    shared = [[source.randrange(3, 250) for _ in range(source.randrange(300, 900))] for _ in range(6)]
    pool = pools(BLOCK_BYTES, 600)  # of the shared prompts alone 200 pages: the rest comes and goes
    options = {"pool": pool.path, "keeper_timeout": 1.0, "store_timeout": 2.0}
    sharing, alone = [engines(models(), options, max_total_tokens=4096) for _ in range(2)], Alone(engines(models()))
    talks = [Talk(source, shared) for _ in range(CONVERSATIONS)]
    turns = sum(len(talk.turns) for talk in talks)
    killed_at, trouble = sorted(source.sample(range(turns), KILLS)), Trouble(source, pool)
    began, answers, hits, hit_tokens, own_tokens, open_talks = time.monotonic(), 0, 0, 0, 0, []
    while talks or open_talks:
        while talks and len(open_talks) < 4:
            open_talks.append(talks.pop())
        asked = []
        # Both engines answer at once, other conversations.
        for engine, talk in zip(source.sample(sharing, 2), source.sample(open_talks, min(2, len(open_talks)))):
            engine.send([talk.next_prompt()], max_tokens=source.randrange(4, 40))
            asked.append((engine, talk))
        while killed_at and killed_at[0] < answers + len(asked):
            killed_at.pop(0)
            trouble.kill()
        for engine, talk in asked:
            answer = engine.take()
            alone.check(talk.history, answer, lambda of=engine: of.text()[-3000:])
            talk.history = talk.history + answer["tokens"][0]
            answers, hits, hit_tokens = answers + 1, hits + (from_pool(answer) > 0), hit_tokens + from_pool(answer)
            own_tokens += answer["cached"][0] - from_pool(answer)
            if not talk.turns:
                open_talks.remove(talk)
        trouble.perhaps_end()
        if answers % 20 < len(asked) or not (talks or open_talks):
            print(f"{time.monotonic() - began:.0f} s: {CONVERSATIONS - len(talks) - len(open_talks)} of {CONVERSATIONS} conversations, "
                  f"{answers} of {turns} answers, all right, {alone.near_ties} of them near ties; {trouble.kills} kills; "
                  f"{hits} hits, {hit_tokens} tokens from the pool, {own_tokens} from the engines' own caches", flush=True)
    assert answers == turns and trouble.kills == KILLS
    assert hits > turns // 8, hits
