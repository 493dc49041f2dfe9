"""What an operator asks of `cachalot serve`: pages over HTTP, its configuration file, its log.

usage: operate_test.py CACHALOT
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

CACHALOT = Path(sys.argv[1]).resolve()
SECONDS = 60


def run(*words, **options):
    return subprocess.run([CACHALOT, *words], capture_output=True, text=True, check=False, timeout=SECONDS, **options)


class Keeper:
    """`cachalot serve` with these flags, on a pool of the test; ended with it."""

    def __init__(self, test, *flags):
        self.process = subprocess.Popen([CACHALOT, "serve", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.line = self.process.stdout.readline().split()
        if self.line[:1] not in (["ready"], ["standby"]):
            test.fail(f"{flags}: {self.line} {self.process.stderr.read()}")
        self.said = dict(word.split("=", 1) for word in self.line[1:])

    def get(self, path):
        """Status, type and body."""
        try:
            with urllib.request.urlopen(f"http://{self.said['metrics']}{path}", timeout=SECONDS) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def end(self):
        """What it has written to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=SECONDS)[1]


class OperateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cachalot_operate_", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.pool = str(self.folder / "pool")
        self.geometry = ["--pool", self.pool, "--create", "--block-bytes", "4KiB", "--capacity-blocks", "32"]


class Pages(OperateTest):
    def test_the_status_page_is_what_pool_info_says(self):
        keeper = Keeper(self, *self.geometry, "--metrics", "127.0.0.1:0")
        subprocess.run([CACHALOT, "put", "greeting", "--pool", self.pool], input=b"hello", check=True, timeout=SECONDS)

        def lasting(description):
            """Without what changes from one moment to the next."""
            description["keeper"].pop("uptime_s")
            return {name: description[name] for name in ("pool", "uuid", "geometry", "keeper", "storage", "namespaces")}

        status, kind, body = keeper.get("/status")
        self.assertEqual((status, kind), (200, "application/json"))
        told = json.loads(run("pool", "info", self.pool, "--json", "-").stdout)
        self.assertEqual(set(json.loads(body)), set(told))
        self.assertEqual(lasting(json.loads(body)), lasting(told))
        self.assertEqual(json.loads(body)["keeper"]["state"], "serving")

    def test_a_standby_lives_and_is_not_ready(self):
        keeper = Keeper(self, *self.geometry, "--metrics", "127.0.0.1:0")
        standby = Keeper(self, "--pool", self.pool, "--standby", "--metrics", "127.0.0.1:0")
        pages = ("/livez", "/readyz", "/status")
        self.assertEqual([keeper.get(page)[0] for page in pages], [200, 200, 200])
        self.assertEqual([standby.get(page)[0] for page in pages], [200, 503, 503])
        self.assertEqual(json.loads(standby.get("/status")[2]), {"role": "waiting"})

    def test_the_version_page_has_the_version_of_the_program(self):
        keeper = Keeper(self, *self.geometry, "--metrics", "127.0.0.1:0")
        version = json.loads(keeper.get("/version")[2])
        self.assertEqual(f"cachalot {version['version']}", run("--version").stdout.strip())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
