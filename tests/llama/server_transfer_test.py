"""cachalot-llama as prefill and as decode: servers that share no pool hand the KV of prompts over.

usage: server_transfer_test.py --cachalot FILE --cachalot-llama FILE --trained GGUF --random GGUF
       --recurrent GGUF --windowed GGUF [TEST ...]
"""
import unittest

from server_cases import LONG, PROGRAMS, reusable, run, text_of
from servers import Server

BODY = {"max_tokens": 32, "temperature": 0}


def details(answer):
    return answer["usage"]["prompt_tokens_details"]


class Transfer(unittest.TestCase):
    def server(self, *flags, model=None, listen=("auto",)):
        listens = [word for address in listen for word in ("--transfer-listen", address)]
        server = Server(PROGRAMS.cachalot_llama, model or PROGRAMS.random, *listens, *flags)
        self.addCleanup(server.stop)
        return server

    def prefill(self, server, prompt):
        """What the answer of a prefill says to the decode side."""
        answer = server.complete(prompt, max_tokens=1, temperature=0, kv_transfer_params={"do_remote_decode": True})
        return answer["kv_transfer_params"]

    def test_a_prompt_is_computed_by_one_server_and_continued_by_another(self):
        alone = self.server(listen=())
        expected = alone.complete(LONG, **BODY)
        tokens = reusable(expected["usage"]["prompt_tokens"])
        for listen in ("tcp:127.0.0.1:0", "auto"):
            with self.subTest(listen=listen):
                prefill, decode = self.server(listen=(listen,)), self.server(listen=(listen,))
                params = self.prefill(prefill, LONG)
                self.assertEqual(params["cachalot_reference"]["tokens"], tokens)
                answer = decode.complete(LONG, kv_transfer_params=params, **BODY)
                self.assertEqual(details(answer)["transfer_tokens"], tokens)
                self.assertEqual(text_of(answer), text_of(expected))


if __name__ == "__main__":
    run(__doc__.split("\n")[0])
