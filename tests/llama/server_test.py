"""cachalot-llama as its clients see it: HTTP in, HTTP out. One server, without a pool.

usage: server_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import ctypes
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
import unittest

from server_cases import (BLOCK_TOKENS, LONG, PROGRAMS, STORY, cached, pool_path, reusable, run, streamed, text_of,
                          wait_until)
from servers import Server


def shut_listener(pid, port):
    """Shuts another process's listening socket down."""
    system = ctypes.CDLL(None, use_errno=True)
    with open("/proc/net/tcp", encoding="ascii") as lines:
        inode = next(words[9] for words in map(str.split, lines) if words[1].endswith(f":{port:04X}") and words[3] == "0A")
    number = next(int(name) for name in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]")
    process = system.syscall(434, pid, 0)  # pidfd_open
    listener = system.syscall(438, process, number, 0)  # pidfd_getfd
    if listener < 0:
        raise unittest.SkipTest(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
    with socket.socket(fileno=listener) as theirs:
        theirs.shutdown(socket.SHUT_RDWR)
    os.close(process)


class OneServer(unittest.TestCase):
    """Without a pool; the trained model for what reads like text, the random one for the rest."""

    @classmethod
    def setUpClass(cls):
        cls.trained = Server(PROGRAMS.cachalot_llama, PROGRAMS.trained, "--name", "stories")
        cls.random = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--context", 1024)

    @classmethod
    def tearDownClass(cls):
        cls.trained.stop()
        cls.random.stop()

    def test_a_greedy_completion_is_the_same_each_time(self):
        first = self.trained.complete("Once upon a time", max_tokens=20, temperature=0)
        second = self.trained.complete("Once upon a time", max_tokens=20, temperature=0)
        self.assertEqual(text_of(first), text_of(second))
        self.assertIn("there was a little girl", text_of(first))
        self.assertEqual(first["choices"][0]["finish_reason"], "length")
        self.assertEqual(first["object"], "text_completion")
        self.assertEqual(first["model"], "stories")
        self.assertEqual(first["usage"]["completion_tokens"], 20)
        self.assertEqual(first["usage"]["total_tokens"], first["usage"]["prompt_tokens"] + 20)

    def test_an_answer_ends_where_the_model_ends_it_unless_that_is_to_be_ignored(self):
        # So hot that each token is about as likely as any other: it ends after a thousand on average.
        body = {"prompt": [1, 5, 6], "max_tokens": 900, "temperature": 50}
        ends = (seed for seed in range(20)
                if self.random.complete(**body, seed=seed)["choices"][0]["finish_reason"] == "stop")
        seed = next(ends)
        more = self.random.complete(**body, seed=seed, ignore_eos=True)
        self.assertEqual(more["usage"]["completion_tokens"], 900)
        self.assertEqual(more["choices"][0]["finish_reason"], "length")

    def test_a_stream_has_the_text_of_a_whole_answer(self):
        body = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
        whole = self.trained.complete(**body)
        text, events = streamed(self.trained, "/v1/completions", body)
        self.assertEqual(text, text_of(whole))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
        self.assertNotIn("usage", events[0])

    def test_a_stream_tells_its_usage_where_it_is_asked_to(self):
        body = {"prompt": "Once upon a time", "max_tokens": 5, "stream_options": {"include_usage": True}}
        _, events = streamed(self.trained, "/v1/completions", body)
        self.assertEqual(events[-2]["choices"], [])
        self.assertEqual(events[-2]["usage"]["completion_tokens"], 5)
        self.assertIsNone(events[0]["usage"])

    def test_an_answer_ends_before_a_stop_string_that_crosses_tokens(self):
        body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
        text = text_of(self.trained.complete(**body))
        for begin in range(5, 25, 3):
            stop = text[begin:begin + 4]
            answer = self.trained.complete(**body, stop=["never seen", stop])
            self.assertEqual(text_of(answer), text[:text.index(stop)])
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            self.assertEqual(streamed(self.trained, "/v1/completions", {**body, "stop": stop})[0],
                             text[:text.index(stop)])

    def test_a_seed_gives_the_same_text_again_and_another_seed_another(self):
        def text(seed):
            return text_of(self.random.complete("hello", max_tokens=30, temperature=1, seed=seed))
        self.assertEqual(text(7), text(7))
        self.assertNotEqual(text(7), text(8))
        self.assertEqual(text(2**32 - 1), text(2**32 - 1))  # which libllama takes for "any"
        narrow = {"max_tokens": 10, "temperature": 1, "seed": 3}
        greedy = text_of(self.random.complete("hello", max_tokens=10, temperature=0))
        self.assertEqual(text_of(self.random.complete("hello", top_k=1, **narrow)), greedy)
        self.assertEqual(text_of(self.random.complete("hello", top_p=0, **narrow)), greedy)

    def test_characters_are_streamed_whole(self):
        # Hot enough to write single bytes, which rarely make characters.
        for seed in range(5):
            body = {"prompt": "hello", "max_tokens": 200, "temperature": 50, "seed": seed, "ignore_eos": True}
            text, _ = streamed(self.random, "/v1/completions", body)  # decodes each event by itself
            self.assertIn("\ufffd", text)
            self.assertEqual(text, text_of(self.random.complete(**body)))

    def test_what_the_random_model_wrote_is_tokenised_as_it_was_written(self):
        first = self.random.complete(LONG, max_tokens=24, temperature=0, ignore_eos=True)
        self.assertNotIn("\ufffd", text_of(first))  # words only
        second = self.random.complete(LONG + text_of(first), max_tokens=1)
        self.assertEqual(second["usage"]["prompt_tokens"], first["usage"]["total_tokens"])

    def test_a_conversation_is_laid_out_by_the_models_template(self):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who are you?"}]
        laid_out = ("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwho are you?<|im_end|>\n"
                    "<|im_start|>assistant\n")
        chat = self.random.chat(messages, max_tokens=20, temperature=0)
        plain = self.random.complete(laid_out, max_tokens=20, temperature=0)
        self.assertEqual(chat["choices"][0]["message"], {"role": "assistant", "content": text_of(plain)})
        self.assertEqual(chat["object"], "chat.completion")
        self.assertEqual(chat["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"])
        text, events = streamed(self.random, "/v1/chat/completions",
                                {"messages": messages, "max_tokens": 20, "temperature": 0})
        self.assertEqual(text, text_of(plain))
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")

    def test_a_model_without_a_template_says_so(self):
        status, _, answer = self.trained.call("POST", "/v1/chat/completions",
                                              {"messages": [{"role": "user", "content": "x"}]})
        self.assertEqual(status, 400)
        self.assertIn("--chat-template", answer["error"]["message"])
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.trained, "--chat-template", "chatml") as server:
            self.assertEqual(server.chat([{"role": "user", "content": "x"}], max_tokens=3)
                             ["usage"]["completion_tokens"], 3)

    def test_bad_bodies_are_refused_by_name(self):
        cases = [
            (b"{", 400, None, "not JSON"),
            (b"", 400, None, "not JSON"),
            (b'{"prompt": "\xff"}', 400, None, "not JSON"),
            (b"[" * 1_000_000, 400, None, "nested more than 64 deep"),
            (b"[" * 60 + b"]" * 60, 400, None, "expected an object"),
            (b'{"prompt": "x", "top_p": 1e999}', 400, None, "out of range"),
            ({}, 400, "prompt", "missing"),
            ({"prompt": "x", "max_tokens": "many"}, 400, "max_tokens", "whole number"),
            ({"prompt": "x", "temperatur": 1}, 400, "temperatur", "no parameter"),
            ({"prompt": "x", "model": "gpt"}, 404, "model", "expected \"stories\""),
            ({"prompt": [1, 99999999]}, 400, "prompt", "token 99999999"),
            ({"prompt": []}, 400, "prompt", "empty"),
            ({"prompt": "x", "max_tokens": 2_000_000_000}, 400, "max_tokens", "leave"),
            ({"prompt": "x " * 800}, 400, "prompt", "expected fewer than the context's 512"),
        ]
        for body, status, param, part in cases:
            with self.subTest(body=str(body)[:40]):
                got, _, answer = self.trained.call("POST", "/v1/completions", body)
                error = answer["error"]
                self.assertEqual((got, error["param"]), (status, param), error)
                self.assertIn(part, error["message"])
                self.assertEqual(error["type"], "invalid_request_error")

    def test_other_requests_are_refused_as_json(self):
        for method, path, status in [("GET", "/v1/completions", 404), ("POST", "/", 404),
                                     ("DELETE", "/v1/models", 404), ("GET", "/v1/models/other", 404)]:
            got, _, answer = self.trained.call(method, path)
            self.assertEqual(got, status, (method, path))
            self.assertTrue(answer["error"]["message"])

    def test_what_cannot_fit_is_refused_before_it_is_tokenised(self):
        # Far more than a second's work for libllama.
        for text in ("a" * 1_000_000, "a " * 500_000):
            for path, body in (("/v1/completions", {"prompt": text}),
                               ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})):
                status, _, answer = self.random.call("POST", path, body)
                self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
                self.assertIn("bytes, more than 1024 tokens", answer["error"]["message"])
        for bytes_told in (3 << 20, 17 << 20):
            body = b'{"prompt": "' + b"x" * bytes_told + b'"}'
            try:
                status, _, answer = self.trained.call("POST", "/v1/completions", body)
                self.assertEqual(status, 413)
                self.assertIn("longer than", answer["error"]["message"])
            except (ConnectionError, http.client.HTTPException):
                pass  # it need not read on
        self.assertEqual(self.trained.call("GET", "/health")[0], 200)

    def test_prompts_of_the_longest_tokens_fit_however_they_are_written(self):
        text = STORY * 7
        plain = self.random.complete(text, max_tokens=4, temperature=0)
        escaped = "".join(f"\\u{ord(c):04x}" for c in text)
        escaped = '{"prompt": "' + escaped + '", "max_tokens": 4, "temperature": 0}'
        _, _, answer = self.random.call("POST", "/v1/completions", escaped.encode())
        self.assertEqual(text_of(answer), text_of(plain))

    def test_a_body_that_breaks_off_is_a_bad_request(self):
        with socket.create_connection(self.trained.address.split(":")) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                         b"4\r\n{\"a\"\r\nno length\r\n")
            response = http.client.HTTPResponse(half)
            response.begin()
            self.assertEqual(response.status, 400)
            self.assertIn("ends after 4 bytes", json.loads(response.read())["error"]["message"])

    def test_a_form_of_a_body_does_not_matter(self):
        # What curl -d sends without a header.
        connection = self.trained.connect()
        body = json.dumps({"prompt": STORY, "max_tokens": 2, "stop": ["x" * 9000]})
        connection.request("POST", "/v1/completions", body,
                           {"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def test_prompts_may_fill_the_context(self):
        status, _, answer = self.random.call("POST", "/v1/completions", {"prompt": [5] * 1024})
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
        full = self.random.complete([5] * 1023, max_tokens=1)
        self.assertEqual(full["usage"]["total_tokens"], 1024)
        # The default of max_tokens shrinks to what fits.
        self.assertEqual(self.random.complete([5] * 1020, ignore_eos=True)["usage"]["completion_tokens"], 4)
        rest = self.random.complete([5] * 1000, max_tokens=24, ignore_eos=True)
        self.assertEqual(rest["usage"]["completion_tokens"], 24)

    def test_models_and_health_are_told(self):
        _, _, models = self.trained.call("GET", "/v1/models")
        self.assertEqual([m["id"] for m in models["data"]], ["stories"])
        self.assertEqual(self.trained.call("GET", "/v1/models/stories")[2]["max_model_len"], 512)
        status, _, health = self.trained.call("GET", "/health")
        self.assertEqual((status, health["status"], health["slots"]), (200, "ok", 2))

    def test_requests_at_once_get_the_answers_of_requests_one_by_one(self):
        bodies = [{"prompt": STORY[i:] * 3, "max_tokens": 30, "temperature": 0} for i in range(8)]
        alone = [text_of(self.random.complete(**body)) for body in bodies]
        together = [None] * len(bodies)

        def ask(i):
            together[i] = text_of(self.random.complete(**bodies[i]))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_a_slots_own_cache_changes_no_answer(self):
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--slots", 1) as fresh:
            cold = fresh.complete(LONG + "one", max_tokens=32, temperature=0)
            again = fresh.complete(LONG + "one", max_tokens=32, temperature=0)
            other = fresh.complete(LONG + "two", max_tokens=32, temperature=0)
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--slots", 1) as fresh:
            other_cold = fresh.complete(LONG + "two", max_tokens=32, temperature=0)
        tokens = cold["usage"]["prompt_tokens"]
        self.assertGreater(reusable(tokens), BLOCK_TOKENS)
        self.assertEqual([cached(a) for a in (cold, again, other_cold)],
                         [(0, 0), (reusable(tokens), 0), (0, 0)])
        self.assertGreater(cached(other)[0], 0)
        self.assertEqual(text_of(again), text_of(cold))
        self.assertEqual(text_of(other), text_of(other_cold))


class Ends(unittest.TestCase):
    """Requests and servers that end before they are done, and those that do not begin."""

    def busy(self, server):
        return server.call("GET", "/health")[2]["busy_slots"]

    def long_body(self, **more):
        return json.dumps({"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True, **more}).encode()

    def server(self, *flags):
        server = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--context", 32768, *flags)
        self.addCleanup(server.stop)
        return server

    def test_a_client_that_leaves_frees_its_slot(self):
        server = self.server()
        for stream in (True, False):
            connection = server.connect()
            connection.request("POST", "/v1/completions", self.long_body(stream=stream))
            wait_until(lambda: self.busy(server) == 1, "the request is at work")
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
            wait_until(lambda: self.busy(server) == 0, "its slot is free")

    def test_more_requests_than_may_wait_are_told_to_come_back(self):
        server = self.server("--slots", 1, "--queue", 1)
        connections = [server.connect(), server.connect()]
        connections[0].request("POST", "/v1/completions", self.long_body())
        wait_until(lambda: self.busy(server) == 1, "one request is at work")
        connections[1].request("POST", "/v1/completions", self.long_body())
        wait_until(lambda: server.call("GET", "/health")[2]["queued"] == 1, "one request waits")
        status, headers, answer = server.call("POST", "/v1/completions", self.long_body())
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        self.assertIn("waiting already", answer["error"]["message"])
        for connection in connections:
            connection.close()

    def test_sigterm_lets_requests_end_and_takes_no_more(self):
        server = self.server("--stop-wait", 3600)
        answer = {}
        body = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True}
        whole = threading.Thread(target=lambda: answer.update(server.complete(**body)))
        whole.start()
        stream = server.events("/v1/completions", body)
        next(stream)
        wait_until(lambda: self.busy(server) == 2, "both are at work")
        idle = server.connect()
        self.addCleanup(idle.close)
        server.child.send_signal(signal.SIGTERM)

        def is_refused():
            idle.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1}).encode())
            response = idle.getresponse()
            answer = json.loads(response.read())  # in any case, or the connection cannot be used again
            return response.status == 503 and "stopping" in answer["error"]["message"]
        wait_until(is_refused, "no more requests are taken")
        self.assertEqual(list(stream)[-1], "[DONE]")
        whole.join()
        self.assertEqual(answer["usage"]["completion_tokens"], 2000)
        self.assertEqual(server.child.wait(30), 0)

    def test_what_does_not_end_in_time_ends_with_an_error_that_is_json(self):
        server = self.server("--slots", 1, "--stop-wait", 0)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(
            server.call("POST", "/v1/completions", self.long_body()))) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.call("GET", "/health")[2]["queued"] == 1, "one is at work, one waits")
        server.child.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        self.assertEqual([a["error"]["message"] for _, _, a in answers], ["the server is stopping"] * 2)
        self.assertEqual(server.child.wait(30), 0)

    def test_a_second_signal_ends_requests_at_once(self):
        server = self.server("--stop-wait", 3600)
        events = server.events("/v1/completions", json.loads(self.long_body()))
        next(events)
        server.child.send_signal(signal.SIGTERM)
        wait_until(lambda: server.call("POST", "/v1/completions", {"prompt": "x"})[0] == 503, "it is stopping")
        server.child.send_signal(signal.SIGTERM)
        self.assertIn("the server is stopping", list(events)[-2]["error"]["message"])
        self.assertEqual(server.child.wait(30), 0)

    def test_a_server_that_can_accept_no_more_says_so_and_ends(self):
        server = self.server()
        port = int(server.address.rsplit(":", 1)[1])
        shut_listener(server.pid, port)  # accept() fails from here on, as where the system has no more sockets
        self.assertEqual(server.child.wait(30), 3)
        self.assertIn("connections are no longer accepted", server.stderr())

    def test_a_long_text_that_is_being_tokenised_does_not_keep_the_server_from_ending(self):
        # libllama takes time with the square of what is no token; this much is half a minute's work.
        server = Server(PROGRAMS.cachalot_llama, PROGRAMS.random, "--context", 131072, "--slots", 1,
                        "--stop-wait", 0)
        self.addCleanup(server.stop)
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "\U0001f600" * 300_000}, ensure_ascii=False)
                           .encode(), {"Content-Type": "application/json"})
        self.assertEqual(select.select([connection.sock], [], [], 1)[0], [], "it is at it")
        self.assertEqual(server.call("GET", "/health")[0], 200)
        begin = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        self.assertEqual(server.child.wait(60), 0)
        self.assertLess(time.monotonic() - begin, 10)

    def test_sigterm_ends_streams_with_an_error_and_the_server_with_0(self):
        server = self.server("--stop-wait", 0)
        events = server.events("/v1/completions", json.loads(self.long_body()))
        next(events)
        server.child.send_signal(signal.SIGTERM)
        rest = list(events)
        self.assertIn("the server is stopping", rest[-2]["error"]["message"])
        self.assertEqual(server.child.wait(30), 0)
        self.assertEqual(server.stderr(), "")

    def test_a_context_beyond_the_models_is_warned_of(self):
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.trained, "--context", 513) as server:
            self.assertIn("--context is 513, but the model was trained with 512", server.stderr())
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.trained, "--context", 512) as server:
            self.assertEqual(server.stderr(), "")

    def refused(self, *arguments):
        run = subprocess.run([PROGRAMS.cachalot_llama, *map(str, arguments)], capture_output=True, text=True,
                             timeout=60, check=False)
        lines = run.stderr.strip().split("\n")
        self.assertEqual((len(lines), run.stdout), (1, ""), run.stderr)
        self.assertTrue(lines[0].startswith("cachalot-llama: "), lines[0])
        return run.returncode, lines[0]

    def test_what_cannot_be_served_is_refused_in_one_line(self):
        trained = PROGRAMS.trained
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            cases = [
                (("--model", "/nonexistent.gguf"), 2, "/nonexistent.gguf: opening"),
                (("--model", __file__), 2, "expected a GGUF file"),
                ((), 2, "--model is required"),
                (("--model", trained, "--slots", "0"), 2, "not a whole number from 1 to 64"),
                (("--model", trained, "--port", "70000"), 2, "0 to 65535"),
                (("--model", trained, "--name", ""), 2, "--name: it is empty"),
                (("--model", trained, "--address", ""), 2, "--address: it is empty"),
                (("--model", trained, "--chat-template", ""), 2, "--chat-template: it is empty"),
                (("--model", trained, "--block-tokens", "1"), 2, "not a whole number from 2 to 4096"),
                (("--model", trained, "--kv-type", "q3"), 2, "expected f16"),
                (("--model", trained, "--chat-template", "none such"), 2, "none such"),
                (("--model", trained, "--what"), 2, "--what"),
                (("--model", trained, "--port", port), 3, f"port {port}"),
                (("--model", trained, "--slots", 64, "--context", 16777216), 3,
                 "--slots 64 of --context 16777216: their KV caches take 640.00 GiB, 640 bytes a token"),
                (("--model", trained, "--pool", pool_path("none"), "--keeper-wait", 0), 2, pool_path("none")),
            ]
            for arguments, code, part in cases:
                with self.subTest(arguments=arguments):
                    got, line = self.refused(*arguments)
                    self.assertEqual(got, code, line)
                    self.assertIn(part, line)


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
