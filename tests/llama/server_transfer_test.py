"""cachalot-llama as prefill and as decode: servers that share no pool hand the KV of prompts over.

usage: server_transfer_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import copy
import json
import signal
import subprocess
import threading
import unittest

from server_cases import (BLOCK_TOKENS, LONG, PROGRAMS, STORY, cached, pool_path, reusable, run, text_of,
                          wait_until)
from servers import Keeper, Server

BODY = {"max_tokens": 32, "temperature": 0}
REFERENCE = "cachalot_reference"


def details(answer):
    return answer["usage"]["prompt_tokens_details"]


def transfer(server):
    return server.call("GET", "/health")[2]["transfer"]


def changed(params, **members):
    """The same reference with other members."""
    params = copy.deepcopy(params)
    params[REFERENCE].update(members)
    return params


class Case(unittest.TestCase):
    def server(self, *flags, model=None, listen=("auto",), pool=None):
        listens = [word for address in listen for word in ("--transfer-listen", address)]
        server = Server(PROGRAMS.cachalot_llama, model or PROGRAMS.random, *listens, *flags, pool=pool)
        self.addCleanup(server.stop)
        return server

    def prefill(self, server, prompt):
        """What the answer of a prefill says to the decode side; None: nothing."""
        answer = server.complete(prompt, max_tokens=1, temperature=0, kv_transfer_params={"do_remote_decode": True})
        return answer.get("kv_transfer_params")

    def expected(self, prompt=LONG, model=None, *flags):
        """The answer of a server that takes part in no transfer."""
        with Server(PROGRAMS.cachalot_llama, model or PROGRAMS.random, *flags) as alone:
            return alone.complete(prompt, **BODY)

    def check_computed(self, decode, params, reason, expected, prompt=LONG):
        """The reference leads to nothing: the text is right, the log says why, and nothing is held."""
        answer = decode.complete(prompt, kv_transfer_params=params, **BODY)
        self.assertEqual((details(answer)["transfer_tokens"], text_of(answer)), (0, text_of(expected)))
        self.assertIn(reason, decode.stderr())
        self.check_nothing_is_held(decode)

    def check_nothing_is_held(self, server):
        wait_until(lambda: transfer(server)["free_pages"] == transfer(server)["pages"], "all pages are free")
        counts = transfer(server)
        self.assertEqual((counts["open_offers"], counts["open_asks"]), (0, 0))


class Transfer(Case):
    def test_a_prompt_is_computed_by_one_server_and_continued_by_another(self):
        for model in (PROGRAMS.random, PROGRAMS.trained):
            prompt = LONG[:200 if model == PROGRAMS.trained else None]
            expected = self.expected(prompt, model)
            tokens = reusable(expected["usage"]["prompt_tokens"])
            for listen, moved in (("tcp:127.0.0.1:0", "received_bytes"), ("auto", "copied_bytes")):
                with self.subTest(model=model, listen=listen):
                    prefill, decode = (self.server(model=model, listen=(listen,)) for _ in range(2))
                    params = self.prefill(prefill, prompt)
                    self.assertEqual(params[REFERENCE]["tokens"], tokens)
                    answer = decode.complete(prompt, kv_transfer_params=params, **BODY)
                    self.assertEqual((details(answer)["transfer_tokens"], cached(answer)), (tokens, (tokens, 0)))
                    self.assertEqual(text_of(answer), text_of(expected))
                    self.assertGreater(transfer(decode)[moved], 0)
                    self.assertEqual((transfer(prefill)["taken_offers"], transfer(decode)["done_asks"]), (1, 1))
                    self.check_nothing_is_held(prefill)
                    self.check_nothing_is_held(decode)

    def test_a_conversation_takes_only_what_the_decode_server_does_not_have(self):
        prefill, decode = self.server("--transfer-checksums"), self.server()
        messages, held = [{"role": "system", "content": STORY}], 0
        for turn in range(3):
            messages.append({"role": "user", "content": f"turn {turn}: {STORY}"})
            params = prefill.chat(messages, max_tokens=1, temperature=0,
                                  kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
            answer = decode.chat(messages, max_tokens=20, temperature=0, kv_transfer_params=params)
            tokens = reusable(answer["usage"]["prompt_tokens"])
            self.assertEqual(details(answer)["transfer_tokens"], tokens - held)
            self.assertEqual(details(answer)["cached_tokens"], tokens)
            messages.append(answer["choices"][0]["message"])
            held = tokens
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.random) as alone:
            expected = alone.chat(messages[:-1], max_tokens=20, temperature=0)
        self.assertEqual(messages[-1], expected["choices"][0]["message"])

    def test_a_streamed_answer_of_a_longer_prompt_uses_the_reference(self):
        prefill, decode = self.server(), self.server()
        params = self.prefill(prefill, LONG)
        longer = LONG + STORY * 2
        answer = decode.timed(longer, kv_transfer_params=params, **BODY)
        self.assertEqual(details(answer)["transfer_tokens"], params[REFERENCE]["tokens"])
        self.assertEqual(answer["text"], text_of(self.expected(longer)))

    def test_an_offer_ends_although_the_decode_server_has_the_whole_prompt(self):
        prefill, decode = self.server(), self.server()
        for transferred in (True, False):
            answer = decode.complete(LONG, kv_transfer_params=self.prefill(prefill, LONG), **BODY)
            self.assertEqual(details(answer)["transfer_tokens"] > 0, transferred)
            wait_until(lambda: transfer(prefill)["open_offers"] == 0, "the offer ends", timeout_s=20)
        self.check_nothing_is_held(prefill)
        self.check_nothing_is_held(decode)

    def test_many_prompts_at_once_keep_their_own_text(self):
        prefill, decode = self.server("--slots", 4), self.server("--slots", 4)
        prompts = [f"{i} times. " + LONG for i in range(8)]
        answers = [None] * len(prompts)

        def ask(i):
            params = self.prefill(prefill, prompts[i])
            answers[i] = decode.complete(prompts[i], kv_transfer_params=params, **BODY)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.random) as alone:
            self.assertEqual([text_of(a) for a in answers], [text_of(alone.complete(p, **BODY)) for p in prompts])
        self.assertTrue(all(details(a)["transfer_tokens"] > 0 for a in answers))
        self.check_nothing_is_held(prefill)
        self.check_nothing_is_held(decode)

    def test_blocks_that_were_taken_over_go_to_the_pool_of_the_decode_server(self):
        pool = pool_path("decode")
        keeper = Keeper(PROGRAMS.cachalot, pool, "256KiB", 400)
        self.addCleanup(keeper.stop)
        prefill, decode, reader = self.server(), self.server(pool=pool), self.server(pool=pool)
        expected = self.expected()
        tokens = reusable(expected["usage"]["prompt_tokens"])
        taken = decode.complete(LONG, kv_transfer_params=self.prefill(prefill, LONG), **BODY)
        self.assertEqual(details(taken)["transfer_tokens"], tokens)
        read = reader.complete(LONG, **BODY)
        self.assertEqual(details(read)["pool_tokens"], tokens)
        # With the pool at hand, only what it does not have is asked for.
        longer = LONG + STORY * 3
        other = self.server(pool=pool).complete(longer, kv_transfer_params=self.prefill(prefill, longer), **BODY)
        all_tokens = reusable(other["usage"]["prompt_tokens"])
        self.assertEqual((details(other)["pool_tokens"], details(other)["transfer_tokens"]),
                         (tokens, all_tokens - tokens))
        self.assertEqual([text_of(taken), text_of(read), text_of(other)],
                         [text_of(expected)] * 2 + [text_of(self.expected(longer))])


class Refused(Case):
    """References that lead to nothing."""

    def test_another_model_another_kv_type_or_salt_is_refused_by_name(self):
        decode, expected = self.server(), self.expected()
        for flags, model, reason in (((), PROGRAMS.trained, "it has model "),
                                     (("--kv-type", "q8_0"), None, "it has KV types q8_0/q8_0, this process f16/f16"),
                                     (("--block-tokens", "32"), None, "its blocks have 32 tokens, those of this process 64"),
                                     (("--salt", "x"), None, "another libllama, CPU, setting or salt")):
            with self.subTest(reason=reason):
                prefill = self.server("--transfer-deadline", 1, *flags, model=model)
                params = self.prefill(prefill, LONG[:300])
                self.check_computed(decode, params, reason, expected)
                self.check_nothing_is_held(prefill)  # after its deadline
                self.assertIn("nothing asked for the offer in time", prefill.stderr())

    def test_a_reference_that_hides_its_model_is_refused_by_the_ranks(self):
        prefill, other, decode = self.server("--salt", "x"), self.server(), self.server()
        own = self.prefill(other, LONG)[REFERENCE]
        params = changed(self.prefill(prefill, LONG), **{name: own[name] for name in ("fingerprint", "last_block")})
        self.check_computed(decode, params, "has model ", self.expected())

    def test_a_reference_is_used_once(self):
        prefill, decode, expected = self.server(), self.server(), self.expected()
        params = self.prefill(prefill, LONG)
        first = self.server().complete(LONG, kv_transfer_params=params, **BODY)
        self.assertGreater(details(first)["transfer_tokens"], 0)
        self.check_computed(decode, params, "the offer has ended: it was taken", expected)
        self.check_nothing_is_held(prefill)

    def test_an_expired_reference_is_computed(self):
        prefill, decode = self.server("--transfer-deadline", 1), self.server()
        params = self.prefill(prefill, LONG)
        wait_until(lambda: transfer(prefill)["expired_offers"] == 1, "the offer expires")
        self.check_nothing_is_held(prefill)
        self.check_computed(decode, params, "the offer has ended: it has expired", self.expected())

    def test_an_unknown_reference_one_of_another_prompt_and_a_malformed_one_are_computed(self):
        prefill, decode, expected = self.server(), self.server(), self.expected()
        params = self.prefill(prefill, LONG)
        self.check_computed(decode, changed(params, id="0" * 31 + "1"), "has no such offer", expected)
        decode = self.server()
        self.check_computed(decode, changed(params, tokens=params[REFERENCE]["tokens"] - BLOCK_TOKENS),
                            "it is of another prompt", expected)
        decode = self.server()
        other = "Another " + LONG
        self.check_computed(decode, params, "it is of another prompt", self.expected(other), other)
        decode = self.server()
        short = LONG[:200]
        self.check_computed(decode, params, "in whole blocks before its last token", self.expected(short), short)
        self.check_computed(decode, changed(params, tokens=65), "it has 65 tokens", self.expected(short), short)
        decode = self.server()
        for members in ({"id": "x"}, {"addresses": []}, {"addresses": [["a\nb"]]}, {"tokens": -1}, {"model": 1},
                        {"tokens": 1 << 62}, {"tp_size": 2}, {"kv_types": None}, {"block_tokens": 0},
                        {"last_block": "\u00e9" * 32}):
            with self.subTest(members=members):
                fresh = f"{members} " + LONG
                answer = decode.complete(fresh, kv_transfer_params=changed(params, **members), **BODY)
                self.assertEqual(details(answer)["transfer_tokens"], 0)
        self.assertEqual(decode.stderr().count("it has another form"), 10, decode.stderr())
        # The true one still leads to the blocks.
        answer = decode.complete(LONG, kv_transfer_params=params, **BODY)
        self.assertEqual((details(answer)["transfer_tokens"], text_of(answer)),
                         (params[REFERENCE]["tokens"], text_of(expected)))

    def test_parameters_of_another_type_are_refused_and_unknown_ones_ignored(self):
        server = self.server()
        for given in ([], "text", {"do_remote_decode": 1}):
            status, _, answer = server.call("POST", "/v1/completions", {"prompt": LONG, "kv_transfer_params": given})
            self.assertEqual((status, answer["error"]["param"]), (400, "kv_transfer_params"))
        status, _, answer = server.call("POST", "/v1/completions", {
            "prompt": LONG, "stream": True, "kv_transfer_params": {"do_remote_decode": True}})
        self.assertEqual(status, 400, answer)
        server.complete(LONG, kv_transfer_params={"remote_engine_id": "x", "do_remote_prefill": True})
        with Server(PROGRAMS.cachalot_llama, PROGRAMS.random) as without:
            self.assertIsNone(self.prefill(without, LONG))
            answer = without.complete(LONG, kv_transfer_params=self.prefill(server, LONG), **BODY)
            self.assertEqual(text_of(answer), text_of(self.expected()))
            self.assertNotIn("transfer", without.call("GET", "/health")[2])


class Failures(Case):
    """Processes that die, stall or have no memory."""

    def test_a_prompt_of_a_prefill_that_died_is_computed(self):
        for listen in ("tcp:127.0.0.1:0", "auto"):
            with self.subTest(listen=listen):
                prefill, decode = self.server(listen=(listen,)), self.server(listen=(listen,))
                params = self.prefill(prefill, LONG)
                prefill.child.kill()
                prefill.child.wait()
                self.check_computed(decode, params, "a transfer failed, its blocks are computed", self.expected())

    def test_a_prefill_that_restarts_at_its_address_does_not_know_the_reference(self):
        prefill, decode = self.server(listen=("tcp:127.0.0.1:0",)), self.server()
        params = self.prefill(prefill, LONG)
        address = params[REFERENCE]["addresses"][0][0]
        prefill.child.kill()
        prefill.child.wait()
        again = self.server(listen=(address,))
        self.prefill(again, LONG)
        self.check_computed(decode, params, "a transfer failed, its blocks are computed", self.expected())

    def test_a_prefill_that_stalls_and_dies_in_mid_transfer_costs_a_computation(self):
        expected = self.expected()
        for kills in (False, True):
            with self.subTest(kills=kills):
                prefill, decode = self.server(), self.server("--transfer-deadline", 60 if kills else 1)
                params = self.prefill(prefill, LONG)
                prefill.child.send_signal(signal.SIGSTOP)
                answers = []
                thread = threading.Thread(target=lambda: answers.append(
                    decode.complete(LONG, kv_transfer_params=params, **BODY)))
                thread.start()
                wait_until(lambda: transfer(decode)["open_asks"] == 1 or answers, "the decode server asks")
                if kills:
                    prefill.child.kill()
                thread.join()
                prefill.child.kill()
                self.assertEqual((details(answers[0])["transfer_tokens"], text_of(answers[0])), (0, text_of(expected)))
                self.assertIn("a transfer failed, its blocks are computed", decode.stderr())
                self.check_nothing_is_held(decode)

    def test_a_client_that_leaves_while_its_kv_comes_leaves_nothing_held(self):
        prefill, decode = self.server("--transfer-deadline", 3), self.server("--slots", 1)
        params = self.prefill(prefill, LONG)
        prefill.child.send_signal(signal.SIGSTOP)
        connection = decode.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": LONG, "kv_transfer_params": params}))
        wait_until(lambda: transfer(decode)["open_asks"] == 1, "the decode server asks")
        connection.close()
        self.check_nothing_is_held(decode)
        prefill.child.send_signal(signal.SIGCONT)
        # Whether it heard of the ask or not: its pages are free at the deadline at the latest.
        self.check_nothing_is_held(prefill)

    def test_without_room_for_the_blocks_a_prompt_is_computed_on_both_sides(self):
        block = int(subprocess.run([PROGRAMS.cachalot_llama, "--model", PROGRAMS.random, "--print-block-bytes"],
                                   check=True, capture_output=True, text=True).stdout)
        small, prefill, decode = (self.server("--transfer-memory", 2 * block), self.server(),
                                  self.server("--transfer-memory", 2 * block))
        self.assertIsNone(self.prefill(small, LONG))
        self.assertIn("of staging memory are free", small.stderr())
        self.check_nothing_is_held(small)
        self.check_computed(decode, self.prefill(prefill, LONG), "of staging memory are free", self.expected())

    def test_flags_that_cannot_be_are_refused_at_the_start(self):
        for flags, code, reason in ((("--transfer-listen", "tcp:nowhere:1"), 2, "nowhere"),
                                    (("--transfer-listen", "auto", "--transfer-memory", "1KiB"), 2, "staging memory"),
                                    (("--transfer-deadline", "5"), 2, "--transfer-listen")):
            with self.subTest(flags=flags):
                started = subprocess.run([PROGRAMS.cachalot_llama, "--model", PROGRAMS.random, "--port", "0", *flags],
                                         capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((started.returncode, started.stdout), (code, ""), started.stderr)
                self.assertIn(reason, started.stderr)


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
