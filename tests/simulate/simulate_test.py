"""Compares simulated engines with measured ones, and tries what must be refused.

usage: simulate_test.py PROGRAM ASSETS [unittest's arguments]
"""

import gzip
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


def engine_rows(run):
    with gzip.open(PERF / f"vllm-runs/{run}.requests.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def vllm_bench(rows):
    """The run as vLLM's benchmark would have written it, with a request that failed."""
    failed = {"input_toks": 5, "output_toks": 0, "queued_ts": rows[0]["queued_ts"] + 1}
    ttft = [row["first_token_ts"] - row["queued_ts"] for row in rows] + [0.0]
    gaps = [[row["last_token_ts"] - row["first_token_ts"]] for row in rows] + [[]]
    rows = [*rows, failed]
    return json.dumps({
        "backend": "vllm", "request_rate": "inf", "max_concurrency": None, "request_throughput": float("nan"),
        "input_lens": [row["input_toks"] for row in rows], "output_lens": [row["output_toks"] for row in rows],
        "ttfts": ttft, "itls": gaps, "start_times": [row["queued_ts"] for row in rows],
        "errors": [""] * (len(rows) - 1) + ["refused"]})


def aiperf_lines(rows):
    def value(number, unit):
        return {"value": number, "unit": unit}

    return "\n".join(json.dumps({
        "metadata": {"request_start_ns": round(1e9 * row["queued_ts"]), "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": value(row["input_toks"], "tokens"),
            "output_sequence_length": value(row["output_toks"], "tokens"),
            "time_to_first_token": value(1e3 * (row["first_token_ts"] - row["queued_ts"]), "ms"),
            "request_latency": value(1e3 * (row["last_token_ts"] - row["queued_ts"]), "ms")},
        "error": None}) for row in rows)


class ClientRuns(Folder):
    def compared(self, file, name):
        done = call("simulate", "--trace", file, "--trace-format", name, "--profile", PERF / RUNS[0],
                    "--meta", PERF / f"vllm-runs/{RUNS[0]}.meta.json", "--compare", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_client_of_the_same_run_gives_the_same_comparison(self):
        engine = json.loads(recorded(RUNS[0], "--compare", "--json", "-").stdout)
        rows = engine_rows(RUNS[0])
        for name, text in (("vllm-bench", vllm_bench(rows)), ("aiperf-run", aiperf_lines(rows))):
            with self.subTest(name=name):
                client = self.compared(self.file(f"{name}.json", text), name)
                self.assertEqual(client["completed"], 300)
                self.assertNotIn("service_mean_error", client["compare"])
                for figure in ("ttft_ms", "tbt_ms"):
                    for mean in ("mean", "p50"):
                        self.assertAlmostEqual(client["recorded"][figure][mean], engine["recorded"][figure][mean],
                                               places=3)
                # Arrivals are those of another clock, milliseconds away.
                for figure in ("ttft_mean_error", "tpot_mean_error", "makespan_error"):
                    self.assertLess(abs(client["compare"][figure] - engine["compare"][figure]), 0.01, figure)

    def test_sglangs_clients_begin_when_others_end(self):
        rows = engine_rows(RUNS[0])[:50]
        bench = json.loads(vllm_bench(rows))
        del bench["start_times"]
        bench.update(dataset_name="random", request_rate=float("inf"), max_concurrency=4)
        client = self.compared(self.file("s.jsonl", json.dumps(bench) + "\n"), "sglang-bench")
        ends, makespan = [0.0] * 4, 0.0
        for row in rows:
            start = ends.pop(ends.index(min(ends)))
            ends.append(start + row["last_token_ts"] - row["queued_ts"])
            makespan = max(makespan, ends[-1])
        self.assertAlmostEqual(client["recorded"]["makespan_s"], makespan, places=6)

    def test_runs_are_points_of_a_fit(self):
        rows = engine_rows(RUNS[1])
        run = self.file("run.json", vllm_bench(rows))
        models = self.folder / "models.json"
        done = call("calibrate", "--runs", run, "--gpu", "RTX PRO 6000", "--model", "meta-llama/Llama-3.1-8B",
                    "--out", models, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("run.json: 1 failed request left out", done.stderr)
        fit = json.loads(done.stdout)
        self.assertEqual((fit["rows"], fit["groups"][0]["model"]), (1, "Llama-3.1-8B"))
        self.assertLess(fit["tpot_median_error"], 0.05)
        # The same point as a row, counted here.
        seconds = max(row["last_token_ts"] for row in rows) - min(row["queued_ts"] for row in rows)
        mean = {
            "isl": sum(row["input_toks"] for row in rows) / len(rows),
            "osl": sum(row["output_toks"] for row in rows) / len(rows),
            "concurrency": sum(row["last_token_ts"] - row["queued_ts"] for row in rows) / seconds,
            "ttft_ms": 1e3 * sum(row["first_token_ts"] - row["queued_ts"] for row in rows) / len(rows),
            "tpot_ms": 1e3 * sum((row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1)
                                 for row in rows) / len(rows)}
        row = self.file("row.csv", "gpu,engine,engine_version,model,precision,tp," + ",".join(mean) + "\n"
                        "RTXPRO6000,vllm,0.19,Llama-3.1-8B,bf16,1," + ",".join(map(str, mean.values())) + "\n")
        done = call("calibrate", "--check", row, "--models", models, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(json.loads(done.stdout)["tpot_median_error"], fit["tpot_median_error"], places=6)

    def test_what_cannot_be_told_is_refused(self):
        run = self.file("run.json", vllm_bench(engine_rows(RUNS[0])))
        folder, meta = PERF / RUNS[0], PERF / f"vllm-runs/{RUNS[0]}.meta.json"
        self.refused(call("simulate", "--trace", run, "--trace-format", "aiperf-run", "--profile", folder,
                          "--meta", meta), "--trace-format: aiperf-run, but")
        self.refused(call("calibrate", "--runs", run, "--out", self.folder / "m"), "expected --gpu GPU and --model")
        self.refused(call("calibrate", "--run", run), "expected --profile FOLDER and --meta FILE")
        self.refused(call("calibrate", "--run", run, "--profile", folder, "--meta", meta),
                     "tensor parallelism 1, expected at least 2")


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
