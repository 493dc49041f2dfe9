"""Engines as child processes that are driven by lines of JSON, and pools for them: for the tests of all engines."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from cachalot.command import PROGRAM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "vllm"))  # tiny_models, servers
from servers import kill_group  # noqa: E402

DEADLINE_S = 400  # of one answer: a livelock fails


class EngineProcess:
    """`answer` sends one object and returns the one that the program says. Its first line is {"ready": seconds}."""

    def __init__(self, program, argument, environment, python=sys.executable, place=None):
        """place: a machine to run on, which turns a command line into one there; None: this one."""
        command = [str(python), str(program), json.dumps(argument)]
        self.process = subprocess.Popen(command if place is None else place.command(command),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment, start_new_session=True)
        self.log = []
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put), daemon=True).start()
        threading.Thread(target=self._read, args=(self.process.stderr, self.log.append), daemon=True).start()
        self.ready_s = None

    @staticmethod
    def _read(pipe, take):
        for line in pipe:
            take(line)
        take(None)

    def take(self):
        line = self._lines.get(timeout=DEADLINE_S)
        if line is None:
            raise AssertionError("the engine has ended:\n" + self.text()[-6000:])
        return json.loads(line)

    def wait_ready(self):
        if self.ready_s is None:
            self.ready_s = self.take()["ready"]
        return self

    def send(self, prompts, **options):
        self.wait_ready()
        self.process.stdin.write(json.dumps({"prompts": prompts, **options}) + "\n")
        self.process.stdin.flush()

    def answer(self, prompts, **options):
        self.send(prompts, **options)
        return self.take()

    def text(self):
        return "".join(line for line in self.log if line)

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(60)
            except (OSError, subprocess.TimeoutExpired):
                pass
        kill_group(self.process)


class Pool:
    """A pool with a keeper in a process of its own."""

    def __init__(self, path, block_bytes, blocks, *flags):
        self.path, self.flags = path, flags
        self.create = ["--create", "--block-bytes", str(block_bytes), "--capacity-blocks", str(blocks)]
        self.serve(*self.create)

    def serve(self, *more):
        self.keeper = subprocess.Popen([str(PROGRAM), "serve", "--pool", self.path, *more, *self.flags],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.keeper.stdout.readline()
        assert line.startswith("ready"), line + self.keeper.stdout.read()
        self.ready = dict(word.split("=", 1) for word in line.split()[1:])

    def _ask(self, what):
        done = subprocess.run([str(PROGRAM), "pool", what, self.path, "--json", "-"], capture_output=True, text=True)
        return json.loads(done.stdout)

    def info(self):
        return self._ask("info")

    def blocks(self):
        """Of each published block: hash, namespace, parent, …"""
        return self._ask("blocks")["blocks"]

    def live_blocks(self):
        return self.info()["accounting"]["live_blocks"]

    def wait_for_blocks(self, blocks, wait_s=30):
        """Until it has so many; engines store in the background."""
        until = time.monotonic() + wait_s
        while (live := self.live_blocks()) < blocks:
            assert time.monotonic() < until, f"{live} blocks in {self.path}, expected {blocks}"
            time.sleep(0.05)

    def damage(self, blocks=None):
        """Changes a number in every page of the data, or of these blocks by number, behind the pool's back: its sign and
        exponent, so that a reader that takes it says something else."""
        begin, size = self.data_begin(), self.info()["geometry"]["block_bytes"]
        parts = [(begin, os.path.getsize(self.path))] if blocks is None else [
            (begin + int(block) * size, begin + int(block + 1) * size) for block in blocks]
        with open(self.path, "r+b") as file:
            for at in (at for first, last in parts for at in range(first + 3, last, 4096)):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0x55]))

    def blocks(self):
        """Those that it publishes, as `cachalot pool blocks` lists them."""
        done = subprocess.run([str(PROGRAM), "pool", "blocks", self.path, "--json", "-"], capture_output=True, text=True)
        return json.loads(done.stdout)["blocks"]

    def data_begin(self):
        geometry = self.info()["geometry"]
        stripe = 2 << 20
        data = -(-geometry["blocks"] * geometry["block_bytes"] // stripe) * stripe
        return os.path.getsize(self.path) - data

    def evict_all(self):
        subprocess.run([str(PROGRAM), "evict", "--pool", self.path, "--all"], capture_output=True)

    def kill(self):
        self.keeper.kill()
        self.keeper.wait()

    def close(self):
        self.kill()
        subprocess.run([str(PROGRAM), "pool", "destroy", self.path], capture_output=True)
