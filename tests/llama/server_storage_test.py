"""cachalot-llama as its clients see it: storage behind the pool, and memory in front of it.

usage: server_storage_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import json
import os
import subprocess
import tempfile
import threading
import unittest

from server_cases import BLOCK_TOKENS, LONG, PROGRAMS, STORY, cached, pool_path, reusable, run, text_of, wait_until
from servers import Keeper, Server


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Storage(unittest.TestCase):
    """A keeper whose pool is made anew, with the same storage behind it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cachalot_llama_storage_")
        self.addCleanup(folder.cleanup)
        self.storage = f"file:{folder.name}/kv"

    def keeper(self, storage=None):
        keeper = Keeper(PROGRAMS.cachalot, pool_path("storage"), "256KiB", 400, "--storage", storage or self.storage,
                        "--metrics", "127.0.0.1:0")
        self.addCleanup(keeper.stop)
        keeper.wait_for_storage(0)
        return keeper

    def totals(self):
        """What the pool's clients have counted since it was made."""
        info = subprocess.run([PROGRAMS.cachalot, "pool", "info", pool_path("storage"), "--json", "-"],
                              capture_output=True, check=True, timeout=60)
        return json.loads(info.stdout)["totals"]

    def server(self, *flags, pool=True):
        server = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, *flags, pool=pool_path("storage") if pool else None)
        self.addCleanup(server.stop)
        return server

    def test_an_engine_with_an_empty_pool_answers_from_storage(self):
        body = {"prompt": LONG * 2, "max_tokens": 24, "temperature": 0}
        keeper, writer = self.keeper(), self.server()
        first = writer.complete(**body)
        blocks = first["usage"]["prompt_tokens"] // BLOCK_TOKENS
        self.assertGreater(blocks, 3)
        keeper.wait_for_storage(blocks)
        writer.stop()
        keeper.stop()  # and removes the pool
        keeper, reader = self.keeper(), self.server()
        again = reader.complete(**body)
        tokens = reusable(again["usage"]["prompt_tokens"])
        self.assertEqual(cached(again), (tokens, tokens))
        self.assertEqual(text_of(again), text_of(first))
        self.assertGreater(again["timings"]["prompt_storage_wait_ms"], 0)
        self.assertEqual(keeper.storage()["fetched_blocks_total"], tokens // BLOCK_TOKENS)
        alone = self.server(pool=False)
        self.assertEqual(text_of(alone.complete(**body)), text_of(first))
        # By hand: this pool's engines asked for the blocks of one prompt, and used them from storage.
        wait_until(lambda: self.totals()["prompts"] == 1, "the engine's counts are published")
        totals, used = self.totals(), tokens // BLOCK_TOKENS
        self.assertEqual((totals["prompt_blocks"], totals["used_pool_blocks"], totals["used_storage_blocks"]),
                         (used, 0, used))
        self.assertEqual(totals["hit_rate"], 1.0)

    def test_policies_say_what_came_from_storage_and_what_was_asked_in_vain(self):
        body = {"max_tokens": 8, "temperature": 0}
        keeper, writer = self.keeper(), self.server()
        first = writer.complete(LONG * 2, **body)
        tokens = reusable(first["usage"]["prompt_tokens"])
        keeper.wait_for_storage(first["usage"]["prompt_tokens"] // BLOCK_TOKENS)
        writer.stop()
        keeper.stop()
        for flags, expected in ((["--prefetch-policy", "wait_complete"], (tokens, 0)),
                                (["--prefetch-policy", "off"], (0, 0)),
                                (["--prefetch-policy", "wait_complete", "--prefetch-threshold", tokens + 1], (0, 0))):
            with self.subTest(flags=flags):
                keeper, reader = self.keeper(), self.server(*flags)
                answer = reader.complete(LONG * 2, **body)
                details = answer["usage"]["prompt_tokens_details"]
                self.assertEqual((details["storage_tokens"], details["unused_storage_tokens"]), expected)
                self.assertEqual(text_of(answer), text_of(first))
                reader.stop()
                keeper.stop()
        # Best effort: what it used and what it did not add up to all that storage was asked for.
        keeper, reader = self.keeper(), self.server("--prefetch-policy", "best_effort")
        answer = reader.complete(LONG * 2, **body)
        details = answer["usage"]["prompt_tokens_details"]
        self.assertEqual(details["storage_tokens"] + details["unused_storage_tokens"], tokens)
        self.assertEqual(text_of(answer), text_of(first))

    def test_storage_is_asked_while_a_request_waits_for_a_slot(self):
        body = {"max_tokens": 4, "temperature": 0}
        keeper, writer = self.keeper(), self.server()
        first = writer.complete(LONG * 2, **body)
        tokens = reusable(first["usage"]["prompt_tokens"])
        keeper.wait_for_storage(first["usage"]["prompt_tokens"] // BLOCK_TOKENS)
        writer.stop()
        keeper.stop()
        keeper = self.keeper()
        reader = self.server("--slots", 1, "--prefetch-policy", "best_effort")
        busy = threading.Thread(target=reader.complete, args=("Another " + STORY,),
                                kwargs={"max_tokens": 800, "temperature": 0, "ignore_eos": True})
        busy.start()
        wait_until(lambda: reader.call("GET", "/health")[2]["busy_slots"] == 1, "the slot is busy")
        answer = reader.complete(LONG * 2, **body)
        busy.join()
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["storage_tokens"], tokens)
        self.assertEqual(answer["timings"]["prompt_storage_wait_ms"], 0)
        self.assertEqual(text_of(answer), text_of(first))


class OwnStorage(unittest.TestCase):
    """--storage without --pool: the engine starts a keeper of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cachalot_llama_storage_")
        self.addCleanup(folder.cleanup)
        self.flags = ["--host-cache", "64MiB", "--storage", f"file:{folder.name}/kv"]
        self.before = set(os.listdir("/dev/shm"))

    def server(self, *flags):
        server = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, *(flags or self.flags))
        self.addCleanup(server.stop)
        return server

    def keeper_of(self, server):
        """The process id of its keeper."""
        with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as children:
            pids = [int(pid) for pid in children.read().split()]
        self.assertEqual(len(pids), 1)
        return pids[0]

    def assert_no_leftovers(self):
        self.assertEqual({n for n in set(os.listdir("/dev/shm")) - self.before if "llama" in n and "test" not in n}, set())

    def test_a_restarted_engine_answers_from_its_storage(self):
        body = {"prompt": LONG * 2, "max_tokens": 24, "temperature": 0}
        server = self.server()
        first = server.complete(**body)
        tokens = reusable(first["usage"]["prompt_tokens"])
        keeper = self.keeper_of(server)
        self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.exists(f"/proc/{keeper}"))
        again = self.server().complete(**body)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["storage_tokens"], tokens)
        self.assertEqual(text_of(again), text_of(first))
        self.assert_no_leftovers()

    def test_an_engine_that_is_killed_leaves_nothing_but_its_storage(self):
        body = {"prompt": LONG * 2, "max_tokens": 8, "temperature": 0}
        server = self.server()
        first = server.complete(**body)
        keeper = self.keeper_of(server)
        server.child.kill()
        server.child.wait()
        wait_until(lambda: has_ended(keeper), "its keeper ends")
        self.assert_no_leftovers()
        # The storage is free, and holds no wrong blocks, whatever was written of it.
        self.assertEqual(text_of(self.server().complete(**body)), text_of(first))

    def test_a_keeper_that_is_killed_fails_no_request(self):
        server = self.server()
        body = {"max_tokens": 8, "temperature": 0}
        first = server.complete(LONG, **body)
        os.kill(self.keeper_of(server), 9)
        for prompt in ("Another " + LONG, LONG):
            answer = server.complete(prompt, **body)
        self.assertEqual(text_of(answer), text_of(first))

    def test_what_cannot_be_gets_one_clear_error(self):
        for flags, says in ((["--storage", "file:/x"], "expected --host-cache SIZE"),
                            (["--storage", "file:/x", "--pool", "/dev/shm/x"], "expected `cachalot serve --storage"),
                            (["--storage-capacity", "1GiB"], "--storage-capacity requires --storage"),
                            (["--storage", "nofs:/x", "--host-cache", "64MiB"], "nofs"),
                            (["--storage", "file:/proc/x", "--host-cache", "64MiB"], "/proc/x"),
                            (["--storage", "file:/x", "--host-cache", "1MiB"], "expected at least")):
            with self.subTest(flags=flags):
                refused = subprocess.run([PROGRAMS.cachalot_llama, "--model", PROGRAMS.random, "--port", "0", *flags],
                                         capture_output=True, text=True, timeout=60, check=False)
                self.assertIn(refused.returncode, (2, 3), refused.stderr)
                self.assertEqual((refused.stdout, refused.stderr.count("\n")), ("", 1), refused.stderr)
                self.assertIn(says, refused.stderr)


class Memory(unittest.TestCase):
    """--host-cache: blocks in the engine's own memory."""

    def server(self, *flags, pool=None):
        server = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--slots", 1, *flags, pool=pool)
        self.addCleanup(server.stop)
        return server

    def test_a_prompt_that_left_its_slot_comes_from_the_host_cache(self):
        server, alone = self.server("--host-cache", "64MiB"), self.server()
        body = {"max_tokens": 24, "temperature": 0}
        first = server.complete(LONG, **body)
        tokens = reusable(first["usage"]["prompt_tokens"])
        server.complete("Another " + LONG, **body)  # drives the first one out of the slot
        again, cold = server.complete(LONG, **body), alone.complete(LONG, **body)
        details = again["usage"]["prompt_tokens_details"]
        self.assertEqual((details["host_tokens"], details["cached_tokens"], details["pool_tokens"]), (tokens, tokens, 0))
        self.assertEqual([text_of(again), text_of(cold)], [text_of(first)] * 2)
        health = server.call("GET", "/health")[2]
        self.assertEqual(health["host_cache"]["hit_blocks"], tokens // BLOCK_TOKENS)
        self.assertNotIn("pool", health)

    def test_the_host_cache_keeps_to_its_size(self):
        block = int(subprocess.run([PROGRAMS.cachalot_llama, "--model", PROGRAMS.random, "--print-block-bytes"],
                                   check=True, stdout=subprocess.PIPE, text=True).stdout)
        server, alone = self.server("--host-cache", 6 * block), self.server()
        body = {"max_tokens": 8, "temperature": 0}
        prompts = [f"{name} {LONG}" for name in ("One", "Two", "Three")]
        expected = [text_of(alone.complete(p, **body)) for p in prompts]
        for _ in range(2):
            self.assertEqual([text_of(server.complete(p, **body)) for p in prompts], expected)
        counts = server.call("GET", "/health")[2]["host_cache"]
        self.assertGreater(counts["evicted_blocks"], 0)
        self.assertLessEqual(counts["bytes"], 6 * block)
        self.assertGreater(counts["blocks"], 3)

    def test_before_the_pool_and_with_blocks_that_came_from_it(self):
        keeper = Keeper(PROGRAMS.cachalot, pool_path("host"), "256KiB", 400)
        self.addCleanup(keeper.stop)
        writer, reader = self.server(pool=keeper.pool), self.server("--host-cache", "64MiB", pool=keeper.pool)
        body = {"max_tokens": 24, "temperature": 0}
        first = writer.complete(LONG, **body)
        tokens = reusable(first["usage"]["prompt_tokens"])
        self.assertEqual(cached(reader.complete(LONG, **body)), (tokens, tokens))
        reader.complete("Another " + LONG, **body)
        again = reader.complete(LONG, **body)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["host_tokens"], tokens)
        self.assertEqual(cached(again), (tokens, 0))
        self.assertEqual(text_of(again), text_of(first))
        # What the reader computed is in the pool, too.
        self.assertGreater(cached(writer.complete("Another " + LONG, **body))[1], 0)

    def test_wrong_values_get_one_clear_error_each(self):
        for flags, says in ((["--host-cache", "12 apples"], '"12 apples"'),
                            (["--host-cache", "1KiB"], "expected at least a block of this model"),
                            (["--host-cache", "900TiB"], "expected no more"),
                            (["--prefetch-policy", "never"], "expected best_effort, wait_complete, timeout or off"),
                            (["--prefetch-threshold", "-1"], "--prefetch-threshold")):
            with self.subTest(flags=flags):
                run_it = subprocess.run([PROGRAMS.cachalot_llama, "--model", PROGRAMS.random, "--port", "0", *flags],
                                        capture_output=True, text=True, timeout=60, check=False)
                self.assertIn(run_it.returncode, (2, 3), run_it.stderr)
                self.assertEqual((run_it.stdout, run_it.stderr.count("\n")), ("", 1), run_it.stderr)
                self.assertIn(says, run_it.stderr)


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
