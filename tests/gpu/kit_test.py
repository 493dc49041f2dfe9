"""A rehearsal of the kit for a machine with a GPU: the real packs, unpacked and run on an emulated driver.

usage: kit_test.py GPU_PACK DRIVER_FOLDER [VLLM_PACK PYTHON]

GPU_PACK is what `tools/check-gpu --pack` made, DRIVER_FOLDER has the libcuda.so.1 of tests/emulated_gpu, VLLM_PACK is what
`tools/pack-vllm` made, and PYTHON is a Python 3.12 with PyTorch 2.11 and transformers. `make test-gpu-kit` makes them all.
What is quick and needs no pack is in check_gpu_test.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

PACK, DRIVER = (Path(each).resolve() for each in sys.argv[1:3])
VLLM, PYTHON = (Path(each).absolute() for each in sys.argv[3:5]) if len(sys.argv) > 4 else (None, None)
MOST_FILES, MOST_FILE_BYTES = 8, 16 << 20  # of results
GLIBC = {"libc", "libm", "libmvec", "libdl", "librt", "libpthread", "libresolv", "libanl", "libnsl", "libutil", "libthread_db"}
STEPS = ["probe", "tests-on-gpu", "vmm-on-gpu", "client-on-gpu", "bench-cuda", "bench-attention", "bench-vmm"]


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.results = self.root / "results"
        (self.root / "temporary").mkdir()

    def run_it(self, *command, **more):
        environment = {**os.environ, "TMPDIR": str(self.root / "temporary"), **more}
        began = time.monotonic()
        done = subprocess.run([str(each) for each in command], cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        self.seconds = time.monotonic() - began
        self.assertEqual(list((self.root / "temporary").iterdir()), [])
        return done

    def assert_results_fit(self):
        files = list(self.results.iterdir())
        self.assertLessEqual(len(files), MOST_FILES)
        self.assertLessEqual(len([file for file in files if file.suffix == ".json"]), 2)
        for file in files:
            self.assertLess(file.stat().st_size, MOST_FILE_BYTES, file.name)


class CheckGpu(Rehearsal):
    def check(self, *arguments, **more):
        # Without a PyTorch, whatever this Python has: its scripts are rehearsed in tests/torch.
        (self.root / "without").mkdir(exist_ok=True)
        (self.root / "without/torch.py").write_text("raise ImportError\n")
        return self.run_it("bash", PACK / "check-gpu", *arguments, self.results, LD_LIBRARY_PATH=str(DRIVER), PYTHONPATH=str(self.root / "without"), **more)

    def outcomes(self):
        return {step["name"]: step["outcome"] for step in json.loads((self.results / "results.json").read_text())["steps"]}

    def test_the_pack_is_light_and_has_no_part_of_glibc(self):
        self.assertEqual({file.name for file in PACK.iterdir()}, {"pack.tar.xz", "check-gpu"})
        self.assertLessEqual((PACK / "pack.tar.xz").stat().st_size, 24_000_000)
        with tarfile.open(PACK / "pack.tar.xz") as archive:
            names = archive.getnames()
        libraries = {Path(name).name.split(".so")[0] for name in names if name.startswith("./lib/")}
        self.assertTrue(libraries)
        self.assertEqual(libraries & (GLIBC | {"libstdc++", "libgcc_s"}), set())

    def test_every_step_runs(self):
        # A sanitizer that only starts what it is given.
        (self.root / "bin").mkdir()
        stub = self.root / "bin/compute-sanitizer"
        stub.write_text('#!/bin/sh\nwhile [ "${1#build}" = "$1" ]; do shift; done\nexec "$@"\n')
        stub.chmod(0o755)
        # The emulated GPU is hundreds of times slower, and its machine is busy.
        done = self.check("--quick", "--seconds", "4800", RC_PARAMS="max_success=20", PATH=f"{self.root}/bin:{os.environ['PATH']}")
        print(done.stdout)
        outcomes = self.outcomes()
        for step in [*STEPS, "memcheck", "racecheck", *(name for name in outcomes if name.startswith("replay-"))]:
            self.assertEqual(outcomes[step], "passed", done.stdout)
        self.assertIn("no PyTorch", outcomes["torch"])
        self.assertEqual(done.returncode, 0)
        self.assertGreater(len([name for name in outcomes if name.startswith("replay-")]), 3)
        results = json.loads((self.results / "results.json").read_text())
        self.assertEqual({row["file"] for row in results["rows"]}, {"bench-cuda", "bench-attention", "bench-vmm"})
        self.assert_results_fit()

    def test_only_what_is_named_runs(self):
        done = self.check("--only", "probe,bench-vmm")
        self.assertEqual((done.returncode, self.outcomes()), (0, {"probe": "passed", "bench-vmm": "passed"}), done.stdout + done.stderr)
        self.assert_results_fit()

    def test_it_ends_in_time_with_a_table(self):
        done = self.check("--seconds", "12")
        outcomes = self.outcomes()
        self.assertEqual(done.returncode, 1)
        self.assertIn("12 seconds are over (--seconds)", set(map(lambda each: each.removeprefix("not run: "), outcomes.values())))
        self.assertLess(self.seconds, 60)  # of a busy machine
        self.assert_results_fit()

    def test_bad_arguments_are_refused(self):
        for arguments, words in [(["--only", "everything"], "no step 'everything'"), (["--seconds", "0"], "--seconds is '0'"), (["--pack"], "packed already")]:
            done = self.check(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)


@unittest.skipUnless(VLLM, "no pack of vLLM was given")
class VllmOnGpu(Rehearsal):
    @classmethod
    def setUpClass(cls):
        """A driver without a device, with every name that the packed libraries are linked with."""
        cls.driver = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.driver.cleanup)
        folder = Path(cls.driver.name)
        names = set()
        with tarfile.open(VLLM / "vllm.tar.xz") as archive:
            for member in archive:
                if member.name.endswith(".abi3.so"):
                    (folder / "library").write_bytes(archive.extractfile(member).read())
                    listed = subprocess.run(["nm", "-D", "--undefined-only", folder / "library"], capture_output=True, text=True, check=True).stdout
                    names.update(re.findall(r" (cu[A-Z]\w*)", listed))
        no_device = "".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names | {"cuInit"}))
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-xc", "-", "-o", folder / "libcuda.so.1"], input=no_device, text=True, check=True)

    def run_vllm(self, *arguments, script=None):
        return self.run_it(PYTHON, script or VLLM / "vllm_on_gpu.py", *arguments, self.results, LD_LIBRARY_PATH=self.driver.name)

    def test_the_pack_is_light(self):
        self.assertEqual({file.name for file in VLLM.iterdir()}, {"vllm.tar.xz", "vllm_on_gpu.py", "python_on_gpu.py"})
        self.assertLessEqual((VLLM / "vllm.tar.xz").stat().st_size, 50_000_000)

    def test_everything_is_imported_and_the_engines_can_be_configured(self):
        done = self.run_vllm("--check", "--seconds", "1200")
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("imported and configured", done.stdout)
        self.assert_results_fit()

    def test_the_python_package_is_imported_and_its_parts_say_that_there_is_no_gpu(self):
        done = self.run_vllm("--check", script=VLLM / "python_on_gpu.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("imported; no GPU", done.stdout)
        self.assert_results_fit()
        done = self.run_vllm("--only", "tiers,layouts", script=VLLM / "python_on_gpu.py")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for part in ("tiers", "layouts"):
            self.assertIn(f"WRONG: {part}: ended with 1: PyTorch finds no GPU", (self.results / "table.txt").read_text())

    def test_engines_that_do_not_start_are_named(self):
        done = self.run_vllm("--size", "tiny", "--seconds", "600")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("WRONG: first did not start", done.stdout)
        self.assert_results_fit()
        self.assertEqual(list(Path("/dev/shm").glob("cachalot-vllm-*")), [])

    def test_it_ends_in_time_with_a_table(self):
        done = self.run_vllm("--size", "tiny", "--seconds", "10")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("(--seconds)", (self.results / "table.txt").read_text())
        self.assertEqual(list(Path("/dev/shm").glob("cachalot-vllm-*")), [])

    def test_what_is_wrong_is_named(self):
        for arguments, words in [(["--lengths", "5"], "'5'; expected numbers of tokens"), (["--seconds", "0"], "'0'; expected 10"), (["--size", "70b"], "70b")]:
            done = self.run_vllm(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        shutil.copy(VLLM / "vllm_on_gpu.py", self.root)
        (self.root / "vllm.tar.xz").write_bytes((VLLM / "vllm.tar.xz").read_bytes()[:1000])
        done = self.run_vllm(script=self.root / "vllm_on_gpu.py")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("vllm.tar.xz: ", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
