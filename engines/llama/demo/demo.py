#!/usr/bin/env python3
"""Two llama.cpp engines and one pool: what one has computed, the other only reads.

Runs a keeper and cachalot-llama servers on a small trained model and on a random one of 125 million
parameters, asks them for the same long prompt with different endings, and shows how long the first
token took: computed, from the engine's own cache, through the pool. Each text is compared with that
of an engine without a pool. Needs about 2 GiB of memory and a minute.

exit: 0 all texts are equal, and as many tokens came from the pool as should; 1 not so; 3 it cannot run
"""
import argparse
import subprocess
import sys
import textwrap

from programs import BLOCK_TOKENS, Programs, add_flags, pool_path
from servers import Keeper, Server

STORY = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her "
         "dog Max. One day, Lily and Max saw a big red ball near the old tree. They ran to it and played with it "
         "until the sun went down. Then they went home, and Lily told her mom about the ball. Her mom smiled and "
         "said that they could go back the next day. ")
ENDINGS = ["The next day, Lily", "In the morning, Max", "But the ball was"]
COLUMNS = "{:<28}{:>8}{:>8}{:>8}{:>10}{:>14}{:>9}"


def milliseconds(seconds):
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:,.1f} ms"


def print_row(name, answer, cold):
    usage = answer["usage"]
    pool = usage["prompt_tokens_details"]["pool_tokens"]
    own = usage["prompt_tokens_details"]["cached_tokens"] - pool
    factor = "" if answer is cold else f"{cold['first_text_s'] / answer['first_text_s']:,.0f} x"
    print(COLUMNS.format(name, f"{usage['prompt_tokens']:,}", f"{own:,}", f"{pool:,}",
                         f"{usage['prompt_tokens'] - own - pool:,}", milliseconds(answer["first_text_s"]),
                         factor))


def print_texts(alone, story, asked, body):
    """Each text, and whether an engine without a pool writes the same."""
    print("\nWhat they wrote; `same`: an engine without a pool, which computes all of it, writes the same text.\n")
    all_same = True
    for ending, answer in asked:
        is_same = answer["text"] == alone.timed(story + ending, **body)["text"]
        all_same = all_same and is_same
        print(f"  {'same ' if is_same else 'OTHER'}  {textwrap.shorten(ending + answer['text'], 98)}")
    return all_same


def comes_from_pool(answer, shared_tokens):
    """All whole blocks of what the prompts have in common were read from the pool."""
    expected = shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    got = answer["usage"]["prompt_tokens_details"]["pool_tokens"]
    if got < expected:
        print(f"\nwrong: {got} tokens came from the pool, expected at least {expected}")
    return got >= expected


def run_model(programs, title, model, story, answer_tokens):
    block_bytes = programs.block_bytes(model)
    pool = pool_path("demo")
    body = {"max_tokens": answer_tokens, "temperature": 0}
    print(f"\n== {title}\n   pool {pool}, blocks of {BLOCK_TOKENS} tokens: {block_bytes:,} bytes each\n")
    with Keeper(programs.cachalot, pool, block_bytes, 256), \
            Server(programs.engine, model, pool=pool) as first, \
            Server(programs.engine, model, pool=pool) as second, Server(programs.engine, model) as alone:
        print(COLUMNS.format("", "prompt", "own", "pool", "computed", "first token", "sooner"))
        cold = first.timed(story + ENDINGS[0], **body)
        print_row("engine A, cold", cold, cold)
        own = first.timed(story + ENDINGS[1], **body)
        print_row("engine A, another ending", own, cold)
        pooled = second.timed(story + ENDINGS[2], **body)
        print_row("engine B, a third ending", pooled, cold)
        asked = list(zip(ENDINGS, (cold, own, pooled)))
        all_same = print_texts(alone, story, asked, body)
        # The story's last token may be another one with a word behind it.
        shared = alone.complete(story, max_tokens=1)["usage"]["prompt_tokens"] - 1
        return comes_from_pool(pooled, shared) and all_same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    programs = Programs(parser.parse_args())
    random_model = programs.random_model()
    print("Prompts: a story, and an ending each. Of a prompt's tokens, `own` were in the engine's own cache,\n"
          "`pool` were read from the pool, and the rest was computed: the ending, and what is before it behind\n"
          "the last whole block of 64. First token: as its client sees it. Each engine is a process with one thread.")
    is_good = run_model(programs, "stories260K: trained, 0.26 million parameters, f32", programs.trained_model(),
                        STORY, 40)
    is_good = run_model(programs, "random weights, 124.7 million parameters, f16: no sense, but a real model's work",
                        random_model, STORY * 6, 16) and is_good
    print("\nThe texts are the same with and without the pool." if is_good else "\nSomething is wrong, see above.")
    return 0 if is_good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(3)
