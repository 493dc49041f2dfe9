"""Request traces as other programs write them: `cachalot trace info` against counts made here from the raw files.

A prompt is taken apart into tokens here, each a name of its own, and blocks are what begins alike. The program under
test never sees tokens.
"""

import csv
import hashlib
import json
import pathlib
import subprocess
import sys
import unittest

CACHALOT, ASSETS = sys.argv[1], pathlib.Path(sys.argv[2])


def info(name, *flags):
    """What trace info says of a file, and its stderr."""
    command = [CACHALOT, "trace", "info", str(ASSETS / name), "--json", "-", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    notes = [line for line in done.stderr.splitlines() if line.startswith("cachalot: ")]
    return (json.loads(done.stdout) if done.returncode == 0 else None), "\n".join(notes)


def lines(name):
    return [json.loads(line) for line in (ASSETS / name).read_text().splitlines()]


def blocks_of(tokens, block_tokens):
    """Each block of a prompt as the digest of all tokens up to its end."""
    digest, blocks = hashlib.sha256(), []
    for begin in range(0, len(tokens), block_tokens):
        digest.update(repr(tokens[begin : begin + block_tokens]).encode())
        blocks.append(digest.hexdigest())
    return blocks


def expected(requests, block_tokens):
    """requests: (time in ms, tokens, output length), the tokens None for a trace without ids."""
    requests = sorted(requests, key=lambda request: request[0])
    total = sum(output for _, _, output in requests)
    figures = {
        "requests": len(requests),
        "span_s": (requests[-1][0] - requests[0][0]) / 1000,
        "input": sum(len(tokens) for _, tokens, _ in requests),
        "output": total,
    }
    seen, references, hits = set(), 0, 0
    for _, tokens, _ in requests:
        blocks = blocks_of(tokens, block_tokens)
        references += len(blocks)
        found = [block in seen for block in blocks] + [False]
        hits += found.index(False)
        seen.update(blocks)
    return {**figures, "blocks": references, "unique": len(seen), "hits": hits}


def content(ids, length, block_tokens):
    """Tokens of blocks that are their own names: `ids` cover `length` tokens."""
    return [(ids[at // block_tokens], at % block_tokens) for at in range(length)]


class Dialects(unittest.TestCase):
    def check(self, said, figures, has_ids=True):
        self.assertEqual(said["requests"], figures["requests"])
        self.assertAlmostEqual(said["span_s"], figures["span_s"], places=6)
        self.assertEqual(said["input_tokens"]["total"], figures["input"])
        self.assertEqual(said["output_tokens"]["total"], figures["output"])
        self.assertEqual(said["has_ids"], has_ids)
        if not has_ids:
            return
        self.assertEqual(said["blocks_total"], figures["blocks"])
        self.assertEqual(said["blocks_unique"], figures["unique"])
        self.assertEqual(said["ideal"]["hit_blocks"], figures["hits"])
        self.assertEqual(said["inconsistent_ids"], 0)

    def test_bailian_has_seconds_and_ids_of_single_blocks(self):
        said, notes = info("bailian.jsonl")
        requests = [
            (1000 * row["timestamp"], content(row["hash_ids"], row["input_length"], 16), row["output_length"])
            for row in lines("bailian.jsonl")
        ]
        self.check(said, expected(requests, 16))
        self.assertEqual((said["format"], said["block_tokens"], notes), ("bailian", 16, ""))

    def test_burstgpt_of_either_version(self):
        for name in ("burstgpt_6.csv", "burstgpt_8.csv"):
            rows = list(csv.DictReader((ASSETS / name).read_text().splitlines()))
            requests = [
                (1000 * float(row["Timestamp"]), [0] * int(row["Request tokens"]), int(row["Response tokens"]))
                for row in rows
            ]
            said, notes = info(name)
            self.check(said, expected(requests, 512), has_ids=False)
            self.assertEqual((said["format"], notes), ("burstgpt", ""))

    def test_sessions_of_aiperf_say_what_is_new(self):
        block_tokens, sessions, requests = 512, {}, []
        for number, row in enumerate(lines("aiperf_sessions.jsonl")):
            time, tokens = sessions.get(row["session_id"], (None, []))
            time = row["timestamp"] if "timestamp" in row else time + row["delay"]
            # The ids of a first turn are shared; the text of later ones and all answers are this line's alone.
            ids = row["hash_ids"] if not tokens else [(number, at) for at in row["hash_ids"]]
            tokens = tokens + content(ids, row["input_length"], block_tokens)
            requests.append((time, tokens, row["output_length"]))
            answer = [("answer", number, at) for at in range(row["output_length"])]
            sessions[row["session_id"]] = (time, tokens + answer)
        said, notes = info("aiperf_sessions.jsonl")
        self.check(said, expected(requests, block_tokens))
        self.assertEqual(said["format"], "aiperf")
        self.assertIn("does not say how long answers took", notes)

    def test_sessions_of_whole_prompts_are_told_from_aiperf(self):
        times, requests = {}, []
        for row in lines("whole_prompt_sessions.jsonl"):
            time = row["timestamp"] if "timestamp" in row else times[row["session_id"]] + row["delay"]
            times[row["session_id"]] = time
            requests.append((time, content(row["hash_ids"], row["input_length"], 512), row["output_length"]))
        said, _ = info("whole_prompt_sessions.jsonl")
        self.check(said, expected(requests, 512))

    def test_tair_has_microseconds_and_keys(self):
        requests = [
            (row["timestamp_us"] / 1000, content(row["keys"], row["input_len"], 16), row["output_len"])
            for row in lines("tair_optimizer.jsonl")
        ]
        said, notes = info("tair_optimizer.jsonl", "--block-tokens", "16")
        self.check(said, expected(requests, 16))
        self.assertEqual((said["format"], notes), ("tair", ""))
        said, notes = info("tair_optimizer.jsonl")
        self.assertIsNone(said)
        self.assertIn("tair_optimizer.jsonl:2: keys: 2 ids for input_len 32, expected 0 or 1 at 512", notes)

    def test_an_array_is_read_as_its_elements(self):
        rows = json.loads((ASSETS / "mooncake_array.json").read_text())
        requests = [
            (row["timestamp"], content(row["hash_ids"], row["input_length"], 512), row["output_length"]) for row in rows
        ]
        said, notes = info("mooncake_array.json")
        self.check(said, expected(requests, 512))
        self.assertEqual((said["format"], notes), ("mooncake", ""))

    def test_seconds_in_mooncakes_lines_are_doubted(self):
        said, notes = info("mooncake_seconds.jsonl")
        self.assertAlmostEqual(said["span_s"], 0.00425)
        self.assertIn("read as milliseconds, which means 471 requests a second; give --time-unit s", notes)
        said, notes = info("mooncake_seconds.jsonl", "--time-unit", "s")
        self.assertAlmostEqual(said["span_s"], 4.25)
        self.assertEqual(notes, "")
        said, notes = info("bailian.jsonl", "--time-unit", "s")
        self.assertIsNone(said)
        self.assertIn("the format bailian says its own", notes)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
