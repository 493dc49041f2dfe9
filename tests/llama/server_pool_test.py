"""cachalot-llama as its clients see it: several servers on one pool.

usage: server_pool_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import mmap
import struct
import subprocess
import threading
import unittest

from server_cases import BLOCK_TOKENS, LONG, PROGRAMS, STORY, cached, pool_path, reusable, run, text_of, wait_until
from servers import Keeper, Server


class Shared(unittest.TestCase):
    """Several servers on one pool."""

    def setUp(self):
        self.pool = pool_path("kv")
        self.keeper = Keeper(PROGRAMS.cachalot, self.pool, "256KiB", 400)
        self.addCleanup(self.keeper.stop)

    def server(self, model, *flags, pool=True):
        server = Server(PROGRAMS.cachalot_llama, model, *flags, pool=self.pool if pool else None)
        self.addCleanup(server.stop)
        return server

    def test_what_one_server_computed_another_reads(self):
        for model in (PROGRAMS.random, PROGRAMS.trained):
            writer, reader, alone = self.server(model), self.server(model), self.server(model, pool=False)
            prompt = LONG[:200 if model == PROGRAMS.trained else None]
            body = {"max_tokens": 32, "temperature": 0}
            first = writer.complete(prompt, **body)
            tokens = first["usage"]["prompt_tokens"]
            self.assertGreater(reusable(tokens), 0)
            self.assertEqual(cached(first), (0, 0))
            second = reader.complete(prompt, **body)
            self.assertEqual(cached(second), (reusable(tokens), reusable(tokens)))
            own = reader.complete(prompt, **body)
            self.assertEqual(cached(own), (reusable(tokens), 0))
            cold = alone.complete(prompt, **body)
            self.assertEqual(cached(cold), (0, 0))
            self.assertEqual([text_of(a) for a in (second, own, cold)], [text_of(first)] * 3)
            # Another ending: as many blocks as are alike.
            ending = prompt + " And then the ball said: I am tired of this, I go home now. " * 2
            partial, cold = writer.complete(ending, **body), alone.complete(ending, **body)
            self.assertGreaterEqual(cached(partial)[0], reusable(tokens))
            self.assertEqual(text_of(partial), text_of(cold))

    def test_conversations_hop_between_servers_with_the_same_answers(self):
        servers = [self.server(PROGRAMS.random), self.server(PROGRAMS.random)]
        alone = self.server(PROGRAMS.random, "--slots", 1, pool=False)
        messages = [{"role": "system", "content": STORY}]
        hits = []
        for turn in range(4):
            messages.append({"role": "user", "content": f"turn {turn}: {STORY}"})
            answer = servers[turn % 2].chat(messages, max_tokens=20, temperature=0)
            expected = alone.chat(messages, max_tokens=20, temperature=0)
            self.assertEqual(answer["choices"], expected["choices"])
            hits.append(cached(answer))
            messages.append(answer["choices"][0]["message"])
        self.assertEqual(hits[0], (0, 0))
        for turn in range(1, 4):
            self.assertGreater(hits[turn][0], hits[turn - 1][0], hits)
            self.assertGreater(hits[turn][1], 0, hits)  # of the turn before, which the other one had

    def test_a_dead_keeper_fails_no_request(self):
        server, alone = self.server(PROGRAMS.random), self.server(PROGRAMS.random, pool=False)
        server.complete(LONG, max_tokens=1)
        self.keeper.child.kill()
        self.keeper.child.wait()
        for prompt in (LONG + "one", "Another " + LONG, LONG + "two"):
            answer = server.complete(prompt, max_tokens=16, temperature=0)
            expected = alone.complete(prompt, max_tokens=16, temperature=0)
            self.assertEqual(text_of(answer), text_of(expected))

    def test_a_pool_that_was_made_anew_is_noticed_by_who_has_the_old_one(self):
        server, alone = self.server(PROGRAMS.random), self.server(PROGRAMS.random, pool=False)
        first = server.complete(LONG, max_tokens=16, temperature=0)
        self.keeper.stop()
        self.keeper = Keeper(PROGRAMS.cachalot, self.pool, "256KiB", 400)
        self.addCleanup(self.keeper.stop)
        answers = []

        def has_noticed():
            answers.append(server.complete("Another " + LONG, max_tokens=16, temperature=0))
            return "removed meanwhile" in server.stderr()
        wait_until(has_noticed, "the server says that its pool is gone")
        expected = alone.complete("Another " + LONG, max_tokens=16, temperature=0)
        for answer in answers:
            self.assertEqual(text_of(answer), text_of(expected))
        # It goes on without, and says it once.
        again = server.complete("And " + LONG, max_tokens=16, temperature=0)
        self.assertEqual(cached(again), (0, 0))
        self.assertEqual(text_of(server.complete(LONG, max_tokens=16, temperature=0)), text_of(first))
        self.assertLessEqual(server.stderr().count("restart the engine to share again"), 2)  # a slot each
        # One that is started now shares with the new one.
        fresh = [self.server(PROGRAMS.random), self.server(PROGRAMS.random)]
        self.assertEqual([cached(s.complete(LONG, max_tokens=1))[1] > 0 for s in fresh], [False, True])

    def test_a_damaged_block_is_replaced_and_told_of(self):
        first = self.server(PROGRAMS.random).complete(LONG, max_tokens=16, temperature=0)
        tokens = reusable(first["usage"]["prompt_tokens"])
        with open(self.pool, "r+b") as pool, mmap.mmap(pool.fileno(), 0) as memory:
            # llama.cpp's state of a sequence, at position 0: some of its keys.
            magic, second = struct.pack("<I", 0xaf143cd8), struct.pack("<II", 1, BLOCK_TOKENS)
            at = memory.find(magic)
            while at >= 0 and (memory[at + 8:at + 16] != second or memory[at + 16:at + 20] != bytes(4)):
                at = memory.find(magic, at + 1)
            self.assertGreater(at, 0)
            memory[at + 1000] ^= 1
        repairing, reader = self.server(PROGRAMS.random), self.server(PROGRAMS.random)

        def health(server):
            return server.call("GET", "/health")[2]["pool"]
        answer = repairing.complete(LONG, max_tokens=16, temperature=0)
        self.assertEqual((text_of(answer), cached(answer)), (text_of(first), (tokens - BLOCK_TOKENS,) * 2))
        wait_until(lambda: health(repairing) == {"damaged_blocks": 1, "replaced_chains": 1, "failures": 0},
                   "it is counted")
        answer = reader.complete(LONG, max_tokens=16, temperature=0)
        self.assertEqual((text_of(answer), cached(answer)), (text_of(first), (tokens, tokens)))
        self.assertEqual(health(reader), {"damaged_blocks": 0, "replaced_chains": 0, "failures": 0})

    def test_servers_of_different_salts_share_nothing(self):
        first, second = self.server(PROGRAMS.random, "--salt", "a"), self.server(PROGRAMS.random, "--salt", "b")
        answers = [server.complete(LONG, max_tokens=8, temperature=0) for server in (first, second)]
        self.assertEqual([cached(a) for a in answers], [(0, 0), (0, 0)])
        self.assertEqual(*[text_of(a) for a in answers])

    def test_models_whose_prompts_cannot_be_shared_are_served_without_a_pool_only(self):
        for model, reason in ((PROGRAMS.recurrent, "the model is recurrent"),
                              (PROGRAMS.windowed, "the model has sliding-window attention")):
            with self.subTest(reason=reason):
                run = subprocess.run([PROGRAMS.cachalot_llama, "--model", model, "--port", "0", "--pool", self.pool],
                                     capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((run.returncode, run.stdout), (3, ""), run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
                self.assertIn(reason, run.stderr)
                server = self.server(model, "--slots", 1, pool=False)
                # Longer than its window, twice: nothing of the first time is used for the second.
                body = {"prompt": [5, 9, 70] * 60, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
                first = server.complete(**body)
                again = server.complete(**body)
                self.assertEqual((text_of(again), cached(again)), (text_of(first), (0, 0)))
                self.assertNotIn("pool", server.call("GET", "/health")[2])

    def test_two_servers_asked_at_once_compute_a_prompt_once(self):
        servers = [self.server(PROGRAMS.random), self.server(PROGRAMS.random)]
        answers = [None, None]

        def ask(i):
            answers[i] = servers[i].complete(LONG * 3, max_tokens=8, temperature=0)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(text_of(answers[0]), text_of(answers[1]))
        # Each block was computed by one of them, and read by the other.
        self.assertEqual(sum(cached(a)[1] for a in answers), reusable(answers[0]["usage"]["prompt_tokens"]))


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
