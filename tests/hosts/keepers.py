"""Keepers as processes, for trials with several hosts on one machine."""

import hashlib
import re
import signal
import subprocess
from pathlib import Path

BLOCK_BYTES, CAPACITY = 16384, 128


def content(key):
    return hashlib.shake_128(key.encode()).digest(BLOCK_BYTES - 8)


class Keeper:
    """behind: where it finds blocks that its pool has not, as flags of `serve`."""

    def __init__(self, program, folder, number, behind):
        self.program, self.folder, self.behind = program, folder, behind
        self.pool = f"/dev/shm/cachalot.{Path(folder).name}.{number}"
        self.process, self.metrics = None, ""
        self.is_stopped = False

    def start(self):
        self.log = open(f"{self.folder}/{Path(self.pool).name}.log", "a")
        self.process = subprocess.Popen(
            [self.program, "serve", "--pool", self.pool, "--create", "--block-bytes", str(BLOCK_BYTES),
             "--capacity-blocks", str(CAPACITY), "--metrics", "127.0.0.1:0", "--take-over", *self.behind],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready"), f"{self.pool}: {line!r}, {Path(self.log.name).read_text()[-500:]}"
        self.metrics = re.search(r"metrics=(\S+)", line)[1]

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(20)
        self.process = None
        self.is_stopped = False

    def pause(self):
        self.process.send_signal(signal.SIGCONT if self.is_stopped else signal.SIGSTOP)
        self.is_stopped = not self.is_stopped

    @property
    def serves(self):
        return self.process is not None and not self.is_stopped

    def run(self, *arguments, **options):
        return subprocess.run([self.program, *arguments, "--pool", self.pool], capture_output=True, timeout=60, **options)

    def remove(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        Path(self.pool).unlink(missing_ok=True)
