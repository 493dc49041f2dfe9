"""Compares simulated engines with measured ones, and tries what must be refused.

usage: simulate_test.py PROGRAM ASSETS [unittest's arguments]
"""

import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, ASSETS = Path(sys.argv.pop(1)).resolve(), Path(sys.argv.pop(1)).resolve()
PERF = ASSETS / "perf"
RUNS = ("rtx4090-llama-3.1-8b-tp1", "rtxpro6000-llama-3.1-8b-tp1")


def call(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def recorded(run, *more, profile=None, meta=None, colocated=1):
    return call("simulate", "--trace", PERF / f"vllm-runs/{run}.requests.jsonl.gz",
                "--trace-format", "vllm-run", "--profile", profile or PERF / run,
                "--meta", meta or PERF / f"vllm-runs/{run}.meta.json", "--colocated", colocated, *more)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name

    def refused(self, done, words):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class RecordedRuns(Folder):
    def test_figures_are_those_of_the_recorded_engine(self):
        for run in RUNS:
            with self.subTest(run=run):
                done = recorded(run, "--compare", "--json", "-")
                self.assertEqual(done.returncode, 0, done.stderr)
                compare = json.loads(done.stdout)["compare"]
                for name, bound in (("ttft_mean_error", 0.05), ("ttft_p50_error", 0.05),
                                    ("service_mean_error", 0.15), ("tpot_mean_error", 0.02),
                                    ("makespan_error", 0.03), ("running_mean_distance", 0.10)):
                    self.assertLess(abs(compare[name]), bound, name)
                # The run on the RTX PRO 6000 recorded no use of the KV cache.
                self.assertEqual("kv_cache_mean_distance" in compare, "4090" in run)
                self.assertLess(compare.get("kv_cache_mean_distance", 0), 0.10)

    def test_the_same_run_gives_the_same_requests(self):
        rows = [recorded(RUNS[0], "--csv", "-") for _ in range(2)]
        self.assertEqual(rows[0].returncode, 0, rows[0].stderr)
        self.assertEqual(rows[0].stdout, rows[1].stdout)
        self.assertEqual(len(rows[0].stdout.splitlines()), 301)

    def test_without_compare_there_is_no_comparison(self):
        done = recorded(RUNS[0], "--json", "-", "--ttft-slo-ms", 1000, "--tbt-slo-ms", 1000)
        figures = json.loads(done.stdout)
        self.assertNotIn("compare", figures)
        self.assertEqual(figures["completed"], 300)
        self.assertLess(figures["slo_attainment"], 0.5)

    def test_what_does_not_fit_together_is_refused(self):
        self.refused(recorded(RUNS[0], profile=self.folder / "none-tp1"), "no such folder")
        self.refused(recorded(RUNS[0], colocated=2), "a recorded run is of one engine")
        kwargs = {"model": "gpt-9", "max_num_seqs": 8, "max_num_batched_tokens": 64}
        unknown = self.file("m.json", json.dumps({"engine_kwargs": kwargs}))
        self.refused(recorded(RUNS[0], meta=unknown), 'model: gpt-9 is unknown')
        kwargs["model"] = "Qwen/Qwen3-32B"
        other = self.file("m.json", json.dumps({"engine_kwargs": kwargs}))
        self.refused(recorded(RUNS[0], meta=other), "it is of Llama-3.1-8B, but the run is of")
        kwargs.update(model="meta-llama/Llama-3.1-8B", tensor_parallel_size=2)
        parallel = self.file("m.json", json.dumps({"engine_kwargs": kwargs}))
        self.refused(recorded(RUNS[0], meta=parallel), "tensor parallelism")
        kwargs.update(tensor_parallel_size=1, max_num_seqs=-8)
        negative = self.file("m.json", json.dumps({"engine_kwargs": kwargs}))
        self.refused(recorded(RUNS[0], meta=negative), "max_num_seqs: -8")
        kwargs.update(max_num_seqs=8)
        small = self.file("m.json", json.dumps({"engine_kwargs": kwargs,
                                                "kv_cache": {"num_gpu_blocks": 10}}))
        self.refused(recorded(RUNS[0], meta=small), "the KV blocks of an engine hold 144")

    def test_flags_that_are_missing_are_named(self):
        trace = PERF / f"vllm-runs/{RUNS[0]}.requests.jsonl.gz"
        self.refused(call("simulate", "--trace", trace, "--trace-format", "vllm-run"), "--profile: missing")
        self.refused(call("simulate", "--trace", trace, "--trace-format", "vllm-run",
                          "--profile", PERF / RUNS[0]), "--meta: missing")

    def test_a_trace_without_the_engines_times_is_refused(self):
        trace = self.file("t.jsonl", '{"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n')
        done = call("simulate", "--trace", trace, "--trace-format", "vllm-run", "--profile", PERF / RUNS[0],
                    "--meta", PERF / f"vllm-runs/{RUNS[0]}.meta.json")
        self.refused(done, "t.jsonl:1: input_toks: missing")


class Calibration(Folder):
    def test_half_of_the_rows_predicts_the_other_half(self):
        header, *rows = (PERF / "silicon.csv").read_text().splitlines()
        for seed in range(5):
            with self.subTest(seed=seed):
                random.Random(seed).shuffle(rows)
                halves = rows[:len(rows) // 2], rows[len(rows) // 2:]
                fit, check = (self.file(f"{i}.csv", "\n".join([header, *half]) + "\n")
                              for i, half in enumerate(halves))
                models = self.folder / "models.json"
                done = call("calibrate", "--rows", fit, "--out", models)
                self.assertEqual(done.returncode, 0, done.stderr)
                done = call("calibrate", "--check", check, "--models", models, "--json", "-")
                self.assertEqual(done.returncode, 0, done.stderr)
                errors = json.loads(done.stdout)
                self.assertLess(errors["tpot_median_error"], 0.07)
                self.assertLess(errors["ttft_median_error"], 0.10)
                self.assertLess(errors["tpot_p90_error"], 0.25)
                self.assertEqual(len(errors["groups"]), 3)
                self.assertEqual(sum(group["rows"] for group in errors["groups"]), errors["rows"])

    def test_what_is_wrong_is_refused(self):
        rows = PERF / "silicon.csv"
        models = self.folder / "models.json"
        self.refused(call("calibrate"), "expected either --rows with --out")
        self.refused(call("calibrate", "--rows", rows), "expected --out FILE")
        self.refused(call("calibrate", "--check", rows), "expected --models FILE")
        header, first, *_ = rows.read_text().splitlines()
        bad = self.file("bad.csv", header.replace("isl", "input") + "\n" + first + "\n")
        self.refused(call("calibrate", "--rows", bad, "--out", models), 'unknown column "input"')
        bad = self.file("bad.csv", header + "\n" + first.replace("1024", "-1024") + "\n")
        self.refused(call("calibrate", "--rows", bad, "--out", models), "isl is -1024")
        self.assertFalse(models.exists())
        one = self.file("one.csv", header + "\n" + first + "\n")
        self.assertEqual(call("calibrate", "--rows", one, "--out", models).returncode, 0)
        self.refused(call("calibrate", "--check", rows, "--models", models), "no fitted model of h100_sxm")


unittest.main()
