"""cachalot-llama as its clients see it: storage behind the pool.

usage: server_storage_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import tempfile
import unittest

from server_cases import BLOCK_TOKENS, LONG, PROGRAMS, cached, pool_path, reusable, run, text_of
from servers import Keeper, Server


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


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
