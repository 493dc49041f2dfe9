"""Runs each command and code block of the pages about storage as it is printed, but for places and sizes.

usage: storage_test.py ROOT BUILD C_COMPILER [unittest's arguments]
"""

import gzip
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from page import blocks_of

ROOT, BUILD, CC = Path(sys.argv.pop(1)), Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
PROGRAM = BUILD / "apps/cachalot/cachalot"
PYTHON_PLUGIN = BUILD / "bindings/python_storage/libcachalot_python_storage.so"
CREATED = "--create --block-bytes 64KiB --capacity-blocks 16 --spare-blocks 64"


class StoragePages(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="cachalot_guide."))
        self.pool = f"/dev/shm/cachalot_guide.{os.getpid()}"
        (self.folder / "ssd").mkdir()
        (self.folder / "include").symlink_to(ROOT / "include")
        (self.folder / "examples").symlink_to(ROOT / "examples")
        trace = "tests/assets/traces/conversation_trace.jsonl.gz"
        (self.folder / trace).parent.mkdir(parents=True)
        with gzip.open(ROOT / trace) as full, gzip.open(self.folder / trace, "wb") as short:
            short.writelines(itertools.islice(full, 20))

    def tearDown(self):
        Path(self.pool).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def shell(self, command, timeout=300):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, timeout=timeout,
                              env={**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr.decode()}")
        return done.stdout

    def placed(self, command):
        """Where it runs here: this test's folders, a new small pool for "…"."""
        for printed, here in {"/dev/shm/kv": self.pool, "/ssd/": f"{self.folder}/ssd/", "PATH/lib": f"{PYTHON_PLUGIN.parent}/lib",
                              "…": f"--pool {self.pool} {CREATED}"}.items():
            command = command.replace(printed, here)
        return re.sub(r"^cc ", CC + " ", command)

    def serve(self, command):
        """A block that is put comes back, and the keeper ends as it should."""
        if "--create" not in self.placed(command):
            self.shell(f"cachalot pool create {self.pool} {CREATED.replace('--create ', '')}")
        keeper = subprocess.Popen(["bash", "-c", "exec " + self.placed(command)], cwd=self.folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"})
        try:
            line = keeper.stdout.readline()
            self.assertTrue(line.startswith("ready"), line + (keeper.stderr.read() if not line else ""))
            self.shell(f"head -c 65536 /dev/zero | cachalot put a --pool {self.pool}")
            self.assertEqual(self.shell(f"cachalot get a --pool {self.pool}"), bytes(65536))
            self.shell(f"cachalot stop --pool {self.pool}")
            self.assertEqual(keeper.wait(60), 0)
        finally:
            keeper.send_signal(signal.SIGKILL)
            keeper.communicate()
            Path(self.pool).unlink(missing_ok=True)

    def run_block(self, kind, text):
        if kind == "python":
            (self.folder / "my_storage.py").write_text(text)
        elif text.startswith("INSTANTIATE_TEST_SUITE_P"):
            used = (ROOT / "src/storage/redis/redis_backend_test.cpp").read_text()
            for name in set(re.findall(r"\b(?:Backend|Storage|Rig)\w+|name_of_\w+|INSTANTIATE\w+", text)):
                self.assertIn(name, used)
        else:
            for command in text.replace("\\\n", "").split("\n"):
                self.assertRegex(command, r"^(cachalot|cc|\(umask) ", "no command that this test knows")
                if command.startswith("cachalot serve"):
                    self.serve(command)
                else:
                    self.shell(self.placed(command))

    def check(self, page, expected):
        blocks = [(block.kind, block.text) for block in blocks_of((ROOT / page).read_text())]
        self.assertEqual(len(blocks), expected, blocks)
        # A page may print a command before the file that it needs.
        for kind, text in sorted(blocks, key=lambda block: block[0] != "python"):
            if "libcachalot_python_storage" in text and not PYTHON_PLUGIN.exists():
                print("skipped, the plug-in was not built:", text)
                continue
            with self.subTest(text):
                self.run_block(kind, text)

    def test_the_guide(self):
        self.check("docs/guide/tiers.md", 3)

    def test_how_to_add_a_kind(self):
        self.check("docs/extend/storage.md", 4)


unittest.main()
