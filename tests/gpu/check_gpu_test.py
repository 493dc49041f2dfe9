"""tools/check-gpu, in a pack of stubs: what it says of steps that pass, fail, are skipped, hang, or come too late.

usage: check_gpu_test.py CHECK_GPU FAKE_LIBCUDA
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

CHECK_GPU, FAKE = sys.argv[1:3]
STUBS = {
    "build/dev/src/kv/kv_gpu_test": "exit 0",
    "build/dev/src/device_memory/device_memory_gpu_test": "echo SKIPPED cuda_on_gpu",
    "build/dev/tests/gpu/client_gpu_test": "exit 3",
    # The JSON's path comes last in every call of it.
    "build/release/apps/cachalot/cachalot-memory": "exit 0",
    "build/release/apps/cachalot/cachalot-bench": """
for file in "$@"; do :; done
case $1 in
  cuda) cp "$ROWS" "$file" ;;
  vmm) echo '{"rows": []}' >"$file" ;;
  attention) if [ -n "$HANG" ]; then trap '' TERM; echo $$ >"$HANG"; exec sleep 1000; fi; cp "$ROWS" "$file" ;;
esac""",
}
ROWS = [{"name": "rate/20KB", "value": 50, "unit": "GB/s", "ratio": 0.95, "target": ">= 0.9", "target_met": True},
        {"name": "block", "value": 3, "unit": "us", "ratio": 1.5, "target": "<= 1.2", "target_met": False},
        {"name": "without a target", "value": 1, "unit": "us", "ratio": None}]


class CheckGpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        for path, text in STUBS.items():
            self.put(path, f"#!/bin/sh\n{text}\n")
        self.put("packed", "a commit\ncuda 13\n")
        for path in ("tests/assets/alloc/one.trace.gz", "python/cachalot/errors.py", "python/cachalot/torch_allocator.py",
                     "python/cachalot/vmm.py"):
            self.put(path, "")
        self.put("rows.json", json.dumps({"rows": ROWS}))
        self.put("without/torch.py", "raise ImportError\n")
        (self.root / "tools").mkdir()
        shutil.copy(CHECK_GPU, self.root / "tools/check-gpu")
        (self.root / "driver").mkdir()
        (self.root / "driver/libcuda.so.1").symlink_to(FAKE)

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run_it(self, *arguments, script="tools/check-gpu", **more):
        environment = {**os.environ, **more, "PYTHONPATH": str(self.root / "without"), "PATH": f"{self.root}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(self.root / "driver"), "ROWS": str(self.root / "rows.json")}
        return subprocess.run(["bash", self.root / script, *arguments], cwd=self.root, env=environment, capture_output=True,
                              text=True, check=False)

    def is_running(self):
        """What hangs and does not listen to a polite end."""
        hanging = self.root / "hanging"
        try:
            state = Path("/proc", hanging.read_text().strip() or "none", "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"  # has ended, and was not waited for

    def outcomes_of(self, done):
        return {line.split()[0]: line.split(maxsplit=2)[2] for line in done.stdout.split("outcome\n")[1].splitlines()}

    def test_each_step_has_its_outcome_and_nothing_runs_past_the_limit(self):
        self.put("build/gpu/logs/bench-vmm.json", json.dumps({"rows": [{**ROWS[0], "name": "of an earlier run"}]}))
        done = self.run_it("--no-sanitizer", "--seconds", "20", "results", HANG=str(self.root / "hanging"))
        self.assertFalse(self.is_running())
        outcomes = self.outcomes_of(done)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual((outcomes["probe"], outcomes["tests-on-gpu"]), ("passed", "passed"))
        self.assertTrue(outcomes["vmm-on-gpu"].startswith("FAILED ("), outcomes)  # a skipped test was not passed
        self.assertTrue(outcomes["client-on-gpu"].startswith("FAILED ("), outcomes)
        self.assertEqual(outcomes["bench-cuda"], "passed")
        self.assertTrue(outcomes["bench-attention"].startswith("FAILED: ended at its limit of time"), outcomes)
        for late in ("bench-vmm", "replay-one"):
            self.assertEqual(outcomes[late], "not run: 20 seconds are over (--seconds)")
        self.assertEqual(outcomes["memcheck"], "not run: --no-sanitizer")
        measured = done.stdout.split("target    met\n")[1].split("\n\n")[0].splitlines()
        self.assertEqual([(line.split()[0], line.split()[-1]) for line in measured], [("rate/20KB", "yes"), ("block", "NO")])
        self.assertEqual(self.results_in("results")["rows"], [{"file": "bench-cuda", **row} for row in ROWS])

    def results_in(self, folder):
        """All that a run leaves: the table, the same for programs, and the logs."""
        folder = self.root / folder
        self.assertEqual({path.name for path in folder.iterdir()}, {"table.txt", "results.json", "results.tar.gz"})
        with tarfile.open(folder / "results.tar.gz") as archive:
            self.assertIn("results/probe.log", archive.getnames())
        results = json.loads((folder / "results.json").read_text())
        self.assertIn("a commit", (folder / "table.txt").read_text().splitlines()[0])
        self.assertEqual(results["commit"], "a commit")
        self.assertTrue(results["machine"][0].startswith("card: "), results["machine"])
        for step in results["steps"]:
            self.assertIn(step["outcome"], (folder / "table.txt").read_text())
        return results

    def all_good(self):
        for path in STUBS:
            self.put(path, "#!/bin/sh\nfor file in \"$@\"; do :; done\ncp \"$ROWS\" \"$file\"\n" if path.endswith("bench") else "#!/bin/sh\nexit 0\n")
        self.put("rows.json", json.dumps({"rows": [{**ROWS[0], "name": "build/cuda"}]}))

    def test_only_the_steps_that_are_named_run_and_what_was_asked_for_must(self):
        self.all_good()
        for only, steps, code in [("bench-vmm,probe", ["probe", "bench-vmm"], 0), ("bench", ["bench-cuda", "bench-attention", "bench-vmm"], 0),
                                  ("replay-one", ["replay-one"], 0), ("torch-checks", ["torch"], 1), ("memcheck,probe", ["probe", "memcheck"], 1)]:
            done = self.run_it("--quick", "--no-sanitizer", "--only", only)
            self.assertEqual((list(self.outcomes_of(done)), done.returncode), (steps, code), done.stdout)

    def test_an_archive_runs_where_it_is_and_leaves_its_results_only(self):
        self.all_good()
        carried, temporary = self.root / "carried", self.root / "temporary"
        carried.mkdir()
        temporary.mkdir()
        shutil.copy(CHECK_GPU, carried / "check-gpu")
        with tarfile.open(carried / "pack.tar.xz", "w:xz") as archive:
            for name in ("packed", "build", "tests", "python"):
                archive.add(self.root / name, name)
        for arguments, folder in [(["here/results"], "here/results"), ([], "gpu-results")]:
            done = self.run_it("--quick", "--no-sanitizer", *arguments, script="carried/check-gpu", TMPDIR=str(temporary))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual({step["outcome"] for step in self.results_in(folder)["steps"] if not step["name"].startswith(("torch", "mem", "race"))}, {"passed"})
        self.assertEqual((list(temporary.iterdir()), len(list(carried.iterdir()))), ([], 2))
        for arguments, words in [(["--pack", "x"], "packed already"), (["--only", "soon"], "there is no step 'soon'")]:
            done = self.run_it(*arguments, script="carried/check-gpu", TMPDIR=str(temporary))
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        (carried / "pack.tar.xz").write_bytes((carried / "pack.tar.xz").read_bytes()[:-100])
        done = self.run_it(script="carried/check-gpu", TMPDIR=str(temporary))
        self.assertEqual((done.returncode, done.stdout, list(temporary.iterdir())), (2, "", []))
        self.assertIn("cannot be unpacked", done.stderr)

    def test_a_benchmark_that_found_no_gpu_has_not_passed(self):
        outcomes = self.outcomes_of(self.run_it("--quick", "--no-sanitizer"))
        self.assertTrue(outcomes["bench-vmm"].startswith("FAILED ("), outcomes)
        self.assertEqual((outcomes["bench-attention"], outcomes["replay-one"]), ("passed", "passed"))

    def test_one_step_that_did_not_pass_is_enough_and_a_skipped_test_did_not(self):
        tests = [path for path in STUBS if path.endswith("gpu_test")]
        program = "build/release/apps/cachalot/cachalot-memory"
        self.all_good()
        good = {path: (self.root / path).read_text() for path in STUBS}
        skipped = "#!/bin/sh\necho SKIPPED gpu_coherent cuda_on_gpu\n"
        last = "#!/bin/sh\nexit 1\n"
        cases = [({}, set())] + [({path: skipped}, {step}) for path, step in zip(tests, ("tests-on-gpu", "vmm-on-gpu", "client-on-gpu"))]
        for changed, wanted in [*cases, ({program: last}, {"replay-one"})]:
            for path, text in {**good, **changed}.items():
                self.put(path, text)
            done = self.run_it("--quick", "--no-sanitizer")
            failed = {step for step, outcome in self.outcomes_of(done).items() if outcome.startswith("FAILED")}
            self.assertEqual((failed, done.returncode), (wanted, len(wanted)), done.stdout)

    def test_a_sanitizer_that_looked_at_nothing_has_neither_passed_nor_failed(self):
        for words, code, outcome in [("Error: Device not supported", 0, "not run: it does not support"), ("0 errors", 0, "passed"),
                                     ("SKIPPED gpu_coherent", 0, "FAILED ("), ("1 error", 1, "FAILED (")]:
            self.put("bin/compute-sanitizer", f"#!/bin/sh\necho '{words}'\nexit {code}\n")
            outcomes = self.outcomes_of(self.run_it("--only", "memcheck,racecheck"))
            for tool in ("memcheck", "racecheck"):
                self.assertTrue(outcomes[tool].startswith(outcome), outcomes)

    def test_an_interrupt_ends_what_runs_and_the_script(self):
        environment = {**os.environ, "PYTHONPATH": str(self.root / "without"), "LD_LIBRARY_PATH": str(self.root / "driver"),
                       "ROWS": str(self.root / "rows.json"), "HANG": str(self.root / "hanging")}
        script = subprocess.Popen(["bash", self.root / "tools/check-gpu"], cwd=self.root, env=environment, stdout=subprocess.PIPE, text=True)
        for line in script.stdout:
            if "bench-attention" in line:
                break
        while not self.is_running():
            time.sleep(0.01)
        script.terminate()
        self.assertEqual(script.wait(timeout=30), 130)
        outcomes = script.stdout.read().split("outcome\n")[1]  # which ends when no process has it any more
        self.assertIn("interrupted", outcomes)
        self.assertNotIn("bench-vmm", outcomes)
        script.stdout.close()
        self.assertFalse(self.is_running())

    def test_what_is_wrong_or_missing_is_named_and_nothing_runs(self):
        for arguments, words in [(["--seconds", "soon"], "--seconds is 'soon'"), (["--seconds"], "--seconds is ''"), (["--seconds", "9"], "'9'"), (["--fast"], "--fast"),
                                 (["a", "b"], "'b' beside"), (["--only", "bench,,"], "--only is 'bench,,'"), (["--only"], "--only is ''"),
                                 (["--only", "benches"], "no step 'benches'; expected of probe tests-on-gpu"), (["--pack", "x", "--only", "probe"], "--only beside"), (["--pack"], "--pack needs a folder"), (["--pack", "x"], "packed already")]:
            done = self.run_it(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        self.put("packed", "a commit\ncuda 99\n")
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("missing: a driver of CUDA 99 or later, as nvcc's: this one is of CUDA 13", done.stderr)
        (self.root / "driver/libcuda.so.1").unlink()
        (self.root / "driver/libcuda.so.1").write_text("no library")
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("missing: an NVIDIA driver", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
