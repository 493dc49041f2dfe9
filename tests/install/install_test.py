"""Installs the build into a folder, moves the folder, and uses what is there as a stranger would.

usage: install_test.py CMAKE BUILD_FOLDER LIBDIR CC CXX PKG_CONFIG VERSION
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD, LIBDIR, CC, CXX, PKG_CONFIG, VERSION = sys.argv[1:8]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, **{name: str(value) for name, value in environment.items()}})
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="cachalot_install_"))
        run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first")
        (cls.folder / "first").rename(cls.folder / "moved")
        cls.prefix = cls.folder / "moved"
        cls.libraries = cls.prefix / LIBDIR

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def pkg_config(self, *words):
        if PKG_CONFIG.endswith("NOTFOUND"):
            self.skipTest("there is no pkg-config")
        return run(PKG_CONFIG, *words, "cachalot", PKG_CONFIG_PATH=self.libraries / "pkgconfig").split()

    @contextlib.contextmanager
    def keeper(self, pool):
        program = self.prefix / "bin/cachalot"
        keeper = subprocess.Popen([program, "serve", "--pool", pool, "--create", "--block-bytes", "32KiB", "--capacity", "16MiB"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            self.assertTrue(keeper.stdout.readline().startswith("ready"))
            yield
            run(program, "stop", "--pool", pool)
        finally:
            keeper.kill()
            keeper.communicate()
            Path(pool).unlink(missing_ok=True)

    def test_the_programs_are_there_and_find_each_other(self):
        program = self.prefix / "bin/cachalot"
        self.assertEqual(run(program, "--version"), f"cachalot {VERSION}\n")
        self.assertEqual([file.name for file in (self.prefix / "bin").iterdir()], ["cachalot"])
        path = "/usr/bin:/bin"  # no other installation
        self.assertIn("Usage: cachalot bench ", run(program, "bench", "--help", PATH=path))
        for command in ("alloc-replay", "calibrate", "long-prefill", "simulate", "tiers"):
            self.assertIn(f"Usage: cachalot {command} ", run(program, command, "--help", PATH=path))

    def test_each_command_has_a_manual_page(self):
        pages = {page.name for page in (self.prefix / "share/man/man1").iterdir()}
        # Of each program one.
        self.assertLessEqual({"cachalot.1", "cachalot-pool-fsck.1", "cachalot-simulate.1", "cachalot-alloc-trace-info.1",
                              "cachalot-bench.1"}, pages)

    def test_a_build_without_all_of_it_says_what_to_build(self):
        build = self.folder / "unbuilt"
        run(CMAKE, "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={CXX}", f"-DCMAKE_C_COMPILER={CC}",
            "-DCACHALOT_BUILD_TESTS=OFF", "-DCACHALOT_WITH_LLAMA=OFF")
        done = subprocess.run([CMAKE, "--install", build, "--prefix", self.folder / "none"], capture_output=True, text=True,
                              check=False, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        said = " ".join(done.stderr.split())
        self.assertIn(f"{build}/apps/cachalot/cachalot is not built", said)
        self.assertIn(f"cmake --build {build}", said)
        self.assertFalse((self.folder / "none").exists())

    def test_pkg_config_has_the_version(self):
        self.assertEqual(self.pkg_config("--modversion"), [VERSION])

    def test_examples_compile_and_run_through_pkg_config(self):
        flags = self.pkg_config("--cflags", "--libs")
        for source, compiler, standard in (("share_prefix.c", CC, "-std=c11"), ("share_prefix.cpp", CXX, "-std=c++20"),
                                           ("opaque_blocks.cpp", CXX, "-std=c++20")):
            program = self.folder / source.replace(".", "_")
            run(compiler, standard, EXAMPLES / source, "-o", program, *flags)
            pool = f"/dev/shm/cachalot_install_{os.getpid()}"
            with self.keeper(pool) if "cachalot serve" in (EXAMPLES / source).read_text() else contextlib.nullcontext():
                run(program, pool, LD_LIBRARY_PATH=self.libraries)

    def test_what_the_library_itself_needs_is_private(self):
        self.assertNotIn("-lcrypto", self.pkg_config("--libs"))
        self.assertIn("-lcrypto", self.pkg_config("--libs", "--static"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
