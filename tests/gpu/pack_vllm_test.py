"""tools/pack-vllm and what it packs, as far as they go without a download: what they refuse, and how a run without vLLM ends.

usage: pack_vllm_test.py SOURCE_FOLDER
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve()
PACK, SCRIPT, PARTS = (SOURCE / each for each in ("tools/pack-vllm", "tests/gpu/vllm_on_gpu.py", "tests/gpu/python_on_gpu.py"))


class PackVllm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)

    def run_it(self, *command, **more):
        return subprocess.run([str(each) for each in command], cwd=self.root, env={**os.environ, **more}, capture_output=True, text=True, check=False)

    def assert_refused(self, done, words):
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(words, done.stderr)

    def test_a_pack_needs_a_new_folder_python_3_12_and_nvcc(self):
        (self.root / "full").mkdir()
        (self.root / "full/file").touch()
        python = self.root / "python3.12"
        python.write_text("#!/bin/sh\necho 3 12\n")
        python.chmod(0o755)
        for arguments, words in [([], "expected a folder"), (["a", "b"], "'b' beside"), (["--fast", "a"], "--fast"), (["--python"], "--python needs"),
                                 (["full"], "other files, such as file"), (["--python", "/bin/true", "a"], "'/bin/true'; expected a Python 3.12")]:
            self.assert_refused(self.run_it(PACK, *arguments), words)
        paths = [folder for folder in os.environ["PATH"].split(":") if not os.path.exists(f"{folder}/nvcc")]
        self.assert_refused(self.run_it(PACK, "--python", python, "a", PATH=":".join(paths), CUDA_HOME=str(self.root)), "missing: nvcc")
        self.assertEqual(sorted(path.name for path in self.root.iterdir()), ["full", "python3.12"])

    def test_the_script_refuses_what_it_cannot_do(self):
        for arguments, words in [(["--lengths", "5"], "'5'; expected numbers of tokens"), (["--lengths", "100,,200"], "'100,,200'"), (["--lengths", "30000"], "19900"),
                                 (["--seconds", "9"], "'9'; expected 10"), (["--sharing", "both"], "both"), (["--listen", "here"], "here"), (["a", "b"], "b")]:
            self.assert_refused(self.run_it(sys.executable, SCRIPT, *arguments), words)
        for arguments, words in [(["--only", "tiers,all"], "'all'; expected some of tiers"), (["--blocks", "1"], "'1'; expected 2 to 480"), (["--seconds", "9"], "'9'")]:
            self.assert_refused(self.run_it(sys.executable, PARTS, *arguments), words)
        shutil.copy(SCRIPT, self.root)
        (self.root / "vllm.tar.xz").write_text("no archive")
        self.assert_refused(self.run_it(sys.executable, self.root / SCRIPT.name), "vllm.tar.xz")

    def test_a_run_without_vllm_says_so_in_its_results(self):
        (self.root / "without").mkdir()
        (self.root / "without/torch.py").write_text("raise ImportError('there is no PyTorch here')\n")
        done = self.run_it(sys.executable, SCRIPT, "--size", "tiny", PYTHONPATH=str(self.root / "without"))
        self.assertEqual(done.returncode, 1, done.stdout)
        results = self.root / "vllm-results"
        self.assertEqual({path.name for path in results.iterdir()}, {"table.txt", "vllm.json", "logs.tar.gz"})
        self.assertIn("there is no PyTorch here", json.loads((results / "vllm.json").read_text())["wrong"][0])
        self.assertIn("WRONG: model", (results / "table.txt").read_text())
        self.assertEqual(list(Path("/dev/shm").glob("cachalot-vllm-*")), [])

    def test_parts_that_cannot_run_are_named_one_by_one(self):
        (self.root / "without").mkdir()
        (self.root / "without/torch.py").write_text("raise ImportError('there is no PyTorch here')\n")
        done = self.run_it(sys.executable, PARTS, "--only", "tiers,pool", PYTHONPATH=str(self.root / "without"))
        self.assertEqual(done.returncode, 1, done.stdout)
        table = (self.root / "python-results/table.txt").read_text()
        for part in ("check", "tiers", "pool"):
            self.assertRegex(table, f"(?s)WRONG: {part}: ended with 1: .*there is no PyTorch here")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
