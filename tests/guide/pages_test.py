"""Runs each block of shell commands of README.md and docs/guide as it is printed, in a scratch folder of this tree.

usage: pages_test.py ROOT BUILD [--slow] [PAGE...]

The pool's path, ports and build/release become ones of this test; all else is as on the page. A line before a block says
what this test cannot know:

  <!-- test: with a pool -->, <!-- test: with a keeper -->    there is a small one at /dev/shm/kv when the block begins
  <!-- test: continues -->                 the block before runs first, in the same shell
  <!-- test: slow -->                     runs with --slow only; else its flags must be known, and 20 requests run
  <!-- test: not here, needs REASON -->   is not run; the files that it names must exist
  <!-- test: tests/FILE -->               that file runs it, and names the page

A command that no other block made the file for, a file that does not exist, and a letter in a value's place fail.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from page import blocks_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples/vllm"))
from ports import free_port  # noqa: E402

#: Pages that a test of their own runs, and the blocks between these two lines of docs/guide/llama.md.
OTHER_TESTS = {"docs/guide/tiers.md": "tests/guide/storage_test.py"}
LLAMA = ("guide_test.py runs what follows", "guide_test.py: end")
#: Letters and dots that stand for a value.
PLACEHOLDER = re.compile(r"(?<![\w$./{-])(?:[A-Z]|MODEL|FILE|KEY|LINK|FOLDER|NAME|PATH|POOL|OUT_FOLDER|CACHALOT|HOST|PORT)"
                         r"(?![\w=./}-])|…|\.\.\.|/path/to|\[--")
# A minute on an idle machine; on one that a dozen processes keep busy it may be ten times that.
SECONDS = 900
POOL_FLAGS = "--block-bytes 64KiB --capacity-blocks 64"
# A keeper in the background has printed its line when the next command runs; one in the foreground is ended then.
BEGIN = """set -e -o pipefail -m
begins() {
  rm -f keeper.out
  "$@" > keeper.out & keeper=$!
  until grep -qs ^ready keeper.out; do kill -0 $keeper; sleep 0.05; done
}
keeps() { begins "$@"; kill $keeper; wait $keeper; }
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
"""


def end_session(session):
    """Kills all processes of it: each command of a shell with jobs has a group of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == session:
                os.kill(int(process.name), signal.SIGKILL)
        except ProcessLookupError:
            pass


class Page:
    def __init__(self, root, build, name):
        self.root, self.build, self.name = root, build, name
        self.folder = Path(tempfile.mkdtemp(prefix="cachalot_pages."))
        self.pool = f"/dev/shm/cachalot_pages.{os.getpid()}"
        for entry in root.iterdir():
            if entry.name not in ("build", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "build").mkdir()
        (self.folder / "build/release").symlink_to(build)
        self.ports, self.last = {}, ""
        self.environment = {**os.environ, "PATH": f"{build}/apps/cachalot:{os.environ['PATH']}"}

    def close(self):
        self.remove_pool()
        shutil.rmtree(self.folder)

    def remove_pool(self):
        for path in Path("/dev/shm").glob(Path(self.pool).name + "*"):
            path.unlink()

    def placed(self, text):
        text = re.sub(r"/dev/shm/kv\b", self.pool, text)
        return re.sub(r"(?<=[:*]:)\d{4}\b|(?<=127\.0\.0\.1:)\d{4}\b",
                      lambda found: self.ports.setdefault(found[0], str(free_port())), text)

    def shell(self, script):
        """Returns the error, "": none. The script's processes are a session that ends with it."""
        shell = subprocess.Popen(["bash", "-c", BEGIN + script], cwd=self.folder, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
                                 env=self.environment)
        try:
            output, _ = shell.communicate(timeout=None if "--slow" in sys.argv else SECONDS)
            return "" if shell.returncode == 0 else f"exit code {shell.returncode}: {output[-2000:]}"
        except subprocess.TimeoutExpired:
            return f"takes more than {SECONDS} s; mark it as slow"
        finally:
            shell.kill()
            shell.wait()
            end_session(shell.pid)

    def run(self, block):
        text = block.text.replace("\\\n", " ")
        if block.mark == "continues":
            text = f"{self.last}\n{text}"
        self.last = text
        text = re.sub(r"^(cachalot serve [^&#\n]*?) &( *#.*)?$", r"begins \1", text, flags=re.MULTILINE)
        text = re.sub(r"^(cachalot serve [^&#\n]*?)( *#.*)?$", r"keeps \1", text, flags=re.MULTILINE)
        if block.mark.startswith("with a "):
            text = f"cachalot pool create /dev/shm/kv {POOL_FLAGS} > pool.out\n{text}"
        if block.mark == "with a keeper":
            text = text.replace("\n", "\nbegins cachalot serve --pool /dev/shm/kv\n", 1)
        self.remove_pool()
        return self.shell(self.placed(text))

    def check_flags(self, block):
        """Each command of the program refuses the one flag that it does not have; what may be short is run."""
        for command in re.findall(r"^cachalot .*", block.text.replace("\\\n", " "), re.MULTILINE):
            command = self.placed(command).split(" #")[0].rstrip(" &")
            if re.match("cachalot (replay|simulate) ", command):
                problem = self.shell(command + " --limit 20")
                if problem:
                    return f"{command}: {problem}"
                continue
            done = subprocess.run(["bash", "-c", command + " --no-such-flag"], cwd=self.folder, capture_output=True, text=True,
                                  env=self.environment, timeout=SECONDS)
            said = done.stderr.strip()
            if done.returncode != 2 or "--no-such-flag" not in said or re.search(r"--(?!no-such-flag|help)\w", said):
                return f"{command}: {said}"
        return ""

    def check_files(self, block):
        """Paths that begin as one of this tree exist."""
        for word in re.findall(r"(?<![\w/.~$-])[\w.-]+/[\w./@-]+", block.text):
            word = word.rstrip(".")
            if (self.root / word.split("/")[0]).exists() and not word.startswith("build/") and not (self.root / word).exists():
                return f"{word} does not exist"
        return ""

    def problem_of(self, block, is_slow):
        placeholder = PLACEHOLDER.search(re.sub(r"'[^']*'| #.*", "", block.text))
        if placeholder:
            return f"\"{placeholder[0]}\" stands for a value"
        missing = self.check_files(block)
        if missing:
            return missing
        if block.mark.startswith("tests/"):
            test = self.root / block.mark
            return "" if test.exists() and Path(self.name).name in test.read_text() else f"{block.mark} does not name {self.name}"
        if block.mark.startswith("not here, needs "):
            return self.check_flags(block)
        if block.mark not in ("", "slow", "continues", "with a pool", "with a keeper"):
            return f"unknown mark \"{block.mark}\""
        if block.mark == "slow" and not is_slow:
            return self.check_flags(block)
        return self.run(block)


def shell_blocks(root, name):
    text = (root / name).read_text()
    if name.endswith("/llama.md"):
        begin, end = (text.index(word) for word in LLAMA)
        text = text[:begin] + "\n" * text[begin:end].count("\n") + text[end:]
    return [block for block in blocks_of(text) if block.is_shell()]


def main():
    words = [word for word in sys.argv[1:] if word != "--slow"]
    root, build = (Path(word).resolve() for word in words[:2])
    pages = words[2:] or ["README.md", *sorted(str(page.relative_to(root)) for page in (root / "docs/guide").glob("*.md"))]
    count = wrong = 0
    for name in pages:
        if name in OTHER_TESTS:
            assert name in (root / OTHER_TESTS[name]).read_text()
            continue
        page = Page(root, build, name)
        try:
            for block in shell_blocks(root, name):
                count += 1
                problem = page.problem_of(block, "--slow" in sys.argv)
                if problem:
                    wrong += 1
                    print(f"{name}:{block.line}: {problem}\n{block.text}\n")
        finally:
            page.close()
    print(f"{count} blocks, {wrong} wrong")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
