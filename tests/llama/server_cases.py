"""What the tests of cachalot-llama share: programs and models, a prompt, and what an answer says."""
import argparse
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines/llama/demo"))

BLOCK_TOKENS = 64
PROGRAMS = argparse.Namespace()  # and models: the command line's, once run() has read it
STORY = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
         "One day, she saw a big, red ball. ")
LONG = STORY * 4


def reusable(tokens):
    """How much of a prompt can come from a cache: whole blocks, and never the last token."""
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def pool_path(name):
    return f"/dev/shm/cachalot_llama_test_{os.getpid()}_{name}"


def cached(answer):
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details["pool_tokens"]


def text_of(answer):
    return answer["choices"][0]["text"]


def streamed(server, path, body):
    """(text, all events) of an answer in pieces."""
    events = list(server.events(path, body))
    pieces = [e["choices"][0] for e in events if e != "[DONE]" and e["choices"]]
    return "".join(p["text"] if "text" in p else p["delta"].get("content", "") for p in pieces), events


def wait_until(condition, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.005)


def run(description):
    """Runs the test cases of the program that was started."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("cachalot", "cachalot-llama", "trained", "random", "recurrent", "windowed"):
        parser.add_argument("--" + name, required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(module="__main__", argv=[sys.argv[0], *rest])
