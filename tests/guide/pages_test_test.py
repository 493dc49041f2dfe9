"""What pages_test.py finds on a page, and what it lets pass.

usage: pages_test_test.py ROOT BUILD
"""

import sys
import time
from pathlib import Path

import pages_test
from page import blocks_of
from pages_test import Page

TRACE = "tests/assets/traces/weka_session_0702.json.gz"
WRONG = {
    "    cachalot trace info tests/assets/traces/none.jsonl": "none.jsonl does not exist",
    "    cachalot trace info conversation_trace.jsonl.gz": "exit code 2",
    "    cachalot simulate --trace " + TRACE + " --prefill N": "\"N\" stands for a value",
    "    vllm serve MODEL": "\"MODEL\" stands for a value",
    "    cachalot trace info FILE... [--json FILE]": "stands for a value",
    "    cachalot trace info " + TRACE + " --frobnicate": "exit code 2",
    "<!-- test: slow -->\n\n    cachalot trace info " + TRACE + " --frobnicate": "--frobnicate",
    "<!-- test: slow -->\n\n    cachalot simulate --trace " + TRACE + " --prefill 0": "--prefill",
    "<!-- test: not here, needs a GPU -->\n\n    python examples/torch/none.py --json a": "examples/torch/none.py does not exist",
    "<!-- test: tests/guide/page.py -->\n\n    make demo": "does not name PAGE.md",
    "<!-- test: perhaps -->\n\n    make demo": "unknown mark",
    "    cachalot serve --pool /dev/shm/kv": "exit code",
    "```sh\nfalse\n```": "exit code 1",
}
RIGHT = [
    "    cachalot trace info " + TRACE + " --json info.json     # a comment with N…\n    cat info.json",
    "<!-- test: slow -->\n\n    cachalot trace info " + TRACE + " \\\n        --json -",
    "<!-- test: with a pool -->\n\n    cachalot serve --pool /dev/shm/kv    # until Ctrl-C",
    "<!-- test: with a keeper -->\n\n    echo a | cachalot put b --pool /dev/shm/kv",
    "    cachalot serve --pool /dev/shm/kv --create --block-bytes 4KiB --capacity-blocks 16 &",
    "<!-- test: continues -->\n\n    cachalot stop --pool /dev/shm/kv",
]


def processes_of(command):
    found = []
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command in words.read_bytes():
                found.append(words.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def check_end_of_time(page):
    """Nothing of a script that takes too long stays, also not what its shell started as a job."""
    pages_test.SECONDS, before = 1, pages_test.SECONDS
    found = page.shell("sleep 7321 & sleep 7321")
    pages_test.SECONDS = before
    assert "takes more than 1 s" in found, found
    until = time.monotonic() + 30  # a killed process takes a moment to end
    while (left := processes_of(b"sleep\x007321")) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"{left}: still run"


def main():
    page = Page(*(Path(word).resolve() for word in sys.argv[1:3]), "PAGE.md")
    wrong = 0
    try:
        check_end_of_time(page)
        for text, expected in [*WRONG.items(), *((text, "") for text in RIGHT)]:
            blocks = blocks_of(text)
            found = page.problem_of(blocks[0], False) if len(blocks) == 1 and blocks[0].is_shell() else "no shell block"
            if expected not in found or bool(expected) != bool(found):
                wrong += 1
                print(f"{text}\ngives \"{found}\", expected \"{expected}\"\n")
    finally:
        page.close()
    print(f"{len(WRONG) + len(RIGHT)} blocks, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
