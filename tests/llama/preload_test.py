"""A stock llama-server with the preload library: the second one reads what the first one computed.

usage: preload_test.py --cachalot FILE --llama-server FILE --preload FILE --trained GGUF --random GGUF [--figures] [TEST ...]

--figures  no tests: time to the first token of one prompt, computed, kept and through the pool, on --random
"""
import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines/llama/demo"))
from servers import Keeper  # noqa: E402

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/vllm"))
from ports import free_port  # noqa: E402

PROGRAMS = None  # the command line's
STORY = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
         "One day, she saw a big, red ball. ")
LONG = STORY * 8
FILLED = re.compile(r"cachalot: sequence \d+: (\d+) tokens, of which (\d+) were there, (\d+) came from the pool")


class LlamaServer:
    """llama.cpp's own server; with the preload library where a pool is given."""

    def __init__(self, model, *flags, pool=None, preloaded=True, **environment):
        self.port = free_port()
        self.errors = tempfile.TemporaryFile()
        variables = {k: v for k, v in os.environ.items() if not k.startswith("CACHALOT_")}
        if preloaded:
            variables["LD_PRELOAD"] = PROGRAMS.preload
        if pool is not None:
            variables.update(CACHALOT_POOL=pool, CACHALOT_VERBOSE="1")
        variables.update(environment)
        arguments = [PROGRAMS.llama_server, "-m", model, "--host", "127.0.0.1", "--port", self.port, "-c", 4096,
                     "-t", 1, "-tb", 1, *flags]
        self.child = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.DEVNULL, stderr=self.errors,
                                      env=variables)
        deadline = time.monotonic() + 60
        while not self.is_ready():
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"llama-server: not ready: {self.text}")
            time.sleep(0.02)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def is_ready(self):
        try:
            return self.request("GET", "/health")[0] == 200
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def complete(self, prompt, tokens=24, **parameters):
        status, answer = self.request("POST", "/completion", {
            "prompt": prompt, "n_predict": tokens, "temperature": 0, "return_tokens": True, **parameters})
        if status != 200:
            raise RuntimeError(f"/completion: {status}: {answer}")
        return answer

    def said(self):
        """Lines of the preload library."""
        if not self.errors.closed:
            self.errors.seek(0)
            self.text = self.errors.read().decode(errors="replace")
        return [line for line in self.text.split("\n") if line.startswith("cachalot: ")]

    def filled(self):
        """[(tokens of a prompt, of these kept, loaded)]"""
        return [tuple(map(int, m.groups())) for line in self.said() if (m := FILLED.match(line))]

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.wait()
        self.said()
        self.errors.close()
        return self.child.returncode


class Preload(unittest.TestCase):
    def setUp(self):
        self.pool = f"/dev/shm/cachalot_preload_test_{os.getpid()}"
        self.keeper = Keeper(PROGRAMS.cachalot, self.pool, 256 << 10, 200, "--spare-blocks", 80)
        self.addCleanup(self.keeper.stop)

    def server(self, model, *flags, **options):
        server = LlamaServer(model, *flags, **{"pool": self.pool, **options})
        self.addCleanup(server.stop)
        return server

    def stock(self, model, *flags):
        return self.server(model, *flags, pool=None, preloaded=False)

    def test_the_second_server_reads_the_shared_prefix_and_says_the_same(self):
        for model in (PROGRAMS.trained, PROGRAMS.random):
            first, second, stock = self.server(model), self.server(model), self.stock(model)
            alone = self.server(model, CACHALOT_SALT="by itself")
            texts = [server.complete(LONG + "Lily kicked the ball.", 32)["content"] for server in (first, stock)]
            self.assertEqual(*texts)
            tokens = first.filled()[0][0]
            self.assertEqual(first.filled(), [(tokens, 0, 0)])
            # Another ending: all blocks of the beginning come from the pool, and only those.
            prompt = LONG + "Then a dog came by and wanted to play, too."
            answers = [server.complete(prompt, 32) for server in (second, alone, stock)]
            self.assertEqual(answers[0]["tokens"], answers[1]["tokens"])
            self.assertEqual(answers[0]["content"], answers[2]["content"])
            shared = len(second.request("POST", "/tokenize", {"content": LONG})[1]["tokens"]) // 64 * 64
            self.assertGreaterEqual(shared, 256)
            self.assertEqual([f[1:] for f in second.filled()], [(0, shared)])
            self.assertEqual([f[1:] for f in alone.filled()], [(0, 0)])

    def test_conversations_go_on_at_another_server(self):
        first, second, stock = (self.server(PROGRAMS.random), self.server(PROGRAMS.random), self.stock(PROGRAMS.random))
        prompt, at_stock = LONG, LONG
        for turn, server in enumerate((first, second, first, second)):
            prompt += server.complete(prompt, 40)["content"] + f" Turn {turn}. "
            at_stock += stock.complete(at_stock, 40)["content"] + f" Turn {turn}. "
            if turn != 0:
                _, kept, loaded = server.filled()[-1]
                self.assertGreaterEqual(kept + loaded, 64 * (turn + 4))
        self.assertGreater(second.filled()[0][2], 0)

    def test_many_requests_at_once(self):
        servers = [self.server(PROGRAMS.trained), self.server(PROGRAMS.trained)]
        texts, failures = {}, []

        def ask(server, i):
            try:
                texts[i] = server.complete(LONG + f"It was number {i % 5}.", 24)["content"]
            except (RuntimeError, OSError) as error:
                failures.append(error)
        threads = [threading.Thread(target=ask, args=(servers[i % 2], i)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(texts), 20)
        computed = sum(total - kept - loaded for server in servers for total, kept, loaded in server.filled())
        everything = sum(total for server in servers for total, _, _ in server.filled())
        self.assertLess(computed, everything / 2)

    def test_a_keeper_that_ends_changes_no_answer(self):
        server, stock = self.server(PROGRAMS.trained), self.stock(PROGRAMS.trained)
        server.complete(LONG, 8)
        self.keeper.child.send_signal(signal.SIGKILL)
        self.keeper.child.wait()
        for prompt in (LONG, "Another day, " + LONG, LONG + "And then"):
            self.assertEqual(server.complete(prompt, 24)["content"], stock.complete(prompt, 24)["content"])

    def test_what_cannot_be_shared_is_said_once_and_passed_through(self):
        stock = self.stock(PROGRAMS.trained, "-np", 2)
        expected = stock.complete(LONG)["content"]
        for flags, environment, why in (
                (("-np", 2), {}, "KV cache is not unified"),
                (("--kv-unified", "-np", 2, "-fa", "off"), {}, "flash attention"),
                (("-ub", 32, "-b", 32), {}, "n_ubatch = 32"),
                ((), {"CACHALOT_BLOCK_TOKENS": "many"}, "CACHALOT_BLOCK_TOKENS is \"many\""),
                ((), {"CACHALOT_POOL": self.pool + ".no_such"}, "no_such"),
                (("--embeddings",), {}, "embeddings")):
            with self.subTest(why):
                server = self.server(PROGRAMS.trained, *flags, **environment)
                if "--embeddings" not in flags:
                    self.assertEqual(server.complete(LONG)["content"], expected)
                lines = server.said()
                self.assertEqual(len(lines), 1, lines)
                self.assertIn(why, lines[0])
                server.stop()

    def test_without_a_pool_it_says_and_does_nothing(self):
        silent, stock = self.server(PROGRAMS.trained, pool=None), self.stock(PROGRAMS.trained)
        self.assertEqual(silent.complete(LONG)["content"], stock.complete(LONG)["content"])
        self.assertEqual(silent.said(), [])

    def test_programs_without_libllama_run_as_ever(self):
        done = subprocess.run(["sh", "-c", "echo fine"], env={**os.environ, "LD_PRELOAD": PROGRAMS.preload,
                              "CACHALOT_POOL": self.pool}, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "fine\n", ""))


def figures():
    """Of one prompt of 1,540 tokens, the last 40 of which differ from request to request."""
    pool = f"/dev/shm/cachalot_preload_figures_{os.getpid()}"
    with Keeper(PROGRAMS.cachalot, pool, 1 << 20, 200, "--spare-blocks", 80):
        servers = {"stock": LlamaServer(PROGRAMS.random, pool=None, preloaded=False),
                   "first": LlamaServer(PROGRAMS.random, pool=pool), "second": LlamaServer(PROGRAMS.random, pool=pool)}
        common = [3 + i * i % 251 for i in range(1500)]
        texts = {}
        for name, ending in (("stock", 1), ("stock", 2), ("first", 1), ("first", 2), ("second", 3), ("second", 1)):
            answer = servers[name].complete(common + [5 + ending] * 40)
            texts.setdefault(ending, set()).add(tuple(answer["tokens"]))
            filled = servers[name].filled()[-1] if name != "stock" else (1540, answer["timings"]["cache_n"], 0)
            print(f"{name:7} ending {ending}: {filled[1]:5} tokens kept, {filled[2]:5} from the pool, "
                  f"prompt {answer['timings']['prompt_ms']:9.1f} ms")
        for server in servers.values():
            server.stop()
        print("the same tokens for the same prompt:", all(len(t) == 1 for t in texts.values()))


def main():
    global PROGRAMS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("cachalot", "llama-server", "preload", "trained", "random"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--figures", action="store_true")
    PROGRAMS, rest = parser.parse_known_args()
    if PROGRAMS.figures:
        figures()
    else:
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
