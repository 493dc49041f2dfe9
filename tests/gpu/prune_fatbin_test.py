"""tools/prune-fatbin, on libraries that are made here: what is kept, what becomes zeros, and what is refused.

usage: prune_fatbin_test.py PRUNE_FATBIN
"""

import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PRUNE = sys.argv[1]
MAGIC, PTX, CODE = 0xBA55ED50, 1, 2


def entry(kind, architecture, body):
    return struct.pack("<HHIQ", kind, 0, 64, len(body)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + body


def fat(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def library(section, name=b".nv_fatbin"):
    names = b"\0" + name + b"\0.shstrtab\0"
    table = 64 + len(section) + len(names)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)

    def section_header(name, begin, length):
        return struct.pack("<IIQQQQ", name, 1, 0, 0, begin, length) + bytes(24)

    return header + section + names + bytes(64) + section_header(1, 64, len(section)) + section_header(1 + len(name) + 1, 64 + len(section), len(names))


class PruneFatbin(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name, "out")

    def prune(self, content, *arguments):
        source = Path(self.folder.name, "library.so")
        source.write_bytes(content)
        return subprocess.run([sys.executable, PRUNE, str(source), str(self.out), *(arguments or ["90"])], capture_output=True, text=True, check=False)

    def section(self, length):
        return self.out.read_bytes()[64:64 + length]

    def test_code_for_one_gpu_stays_in_its_place_and_the_rest_is_zeros(self):
        kept = [entry(CODE, 90, b"hopper" * 8), entry(CODE, 90, b"hopper, too " * 4)]
        first = fat(entry(CODE, 80, b"ampere" * 8), kept[0], entry(PTX, 90, b"text" * 4), kept[1])
        second = fat(entry(CODE, 100, b"blackwell" * 8), entry(PTX, 100, b"text" * 8))
        section = first + bytes(-len(first) % 8) + second
        for name in (b".nv_fatbin", b"__nv_relfatbin"):
            done = self.prune(library(section, name))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("2 pieces of machine code, 0 of PTX", done.stdout)
            got = self.section(len(section))
            self.assertEqual(got[:len(first)].rstrip(b"\0"), fat(*kept).rstrip(b"\0"))
            self.assertEqual(len(self.out.read_bytes()), len(library(section, name)))
            # Nothing of the second is for this GPU: its smallest entry stays, blank.
            self.assertEqual(got[len(section) - len(second):].rstrip(b"\0"), fat(entry(PTX, 100, bytes(32))).rstrip(b"\0"))
            self.assertNotIn(b"blackwell", self.out.read_bytes())

    def test_ptx_stays_where_it_is_asked_for_and_the_gpu_can_compile_it(self):
        section = fat(entry(PTX, 80, b"old" * 8), entry(PTX, 90, b"new" * 8), entry(PTX, 100, b"later" * 8), entry(CODE, 100, b"blackwell" * 8))
        self.assertEqual(self.prune(library(section)).returncode, 1)
        done = self.prune(library(section), "90", "--ptx")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.section(len(section)).rstrip(b"\0"), fat(entry(PTX, 90, b"new" * 8)).rstrip(b"\0"))

    def test_what_is_no_such_library_is_refused_in_a_line(self):
        good = library(fat(entry(CODE, 90, b"hopper" * 8)))
        long = good.replace(struct.pack("<Q", 48), struct.pack("<Q", 1 << 40))
        for content, words in [(b"", "ELF"), (b"text" * 30, "ELF"), (good[:200], ""), (long, "longer than"), (good[:64] + struct.pack("<IHHQ", MAGIC, 1, 16, 1 << 50) + good[80:], "longer than")]:
            done = self.prune(content)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn("library.so: ", done.stderr)
            self.assertIn(words, done.stderr)
            self.assertFalse(self.out.exists())
        done = self.prune(library(b"", b".text"))
        self.assertEqual((done.returncode, self.out.exists()), (1, False))
        self.assertIn("no code for sm_90", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
