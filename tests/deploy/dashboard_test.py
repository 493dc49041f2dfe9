"""The dashboard and the alert rules of deploy/ name metrics that a keeper exports; a real Prometheus evaluates each expression.

usage: dashboard_test.py ROOT CACHALOT
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT, CACHALOT = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests/python"))
from prometheus_server import DEADLINE_S, Prometheus, get, wait_until  # noqa: E402

DASHBOARD, RULES = ROOT / "deploy/grafana/cachalot.json", ROOT / "deploy/prometheus/alerts.yaml"


def panels():
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [each for row in board["panels"] for each in [row, *row.get("panels", [])] if each["type"] != "row"]


def expressions():
    """As Grafana asks for them, of all pools."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$pool", ".*").replace("$__rate_interval", "30s")


class Dashboard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cachalot_dashboard_", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_files_are_what_the_sources_say(self):
        subprocess.run([ROOT / "tools/dashboard", ROOT, "--check"], check=True, timeout=DEADLINE_S)

    def test_a_metric_that_is_new_makes_the_files_old(self):
        tree = self.folder / "tree"
        for name in ("src/node/metrics", "deploy"):
            shutil.copytree(ROOT / name, tree / name)
        table = tree / "src/node/metrics/storage_metrics.cpp"
        table.write_text(table.read_text().replace("cachalot_storage_objects", "cachalot_storage_things"))
        rules = tree / "deploy/prometheus/alerts.yaml"
        rules.write_text(rules.read_text().replace("cachalot_peers ==", "cachalot_pears =="))
        done = subprocess.run([ROOT / "tools/dashboard", tree, "--check"], check=False, capture_output=True, text=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cachalot.json: is not what the sources say", done.stdout)
        self.assertIn("alerts.yaml: cachalot_pears is no metric", done.stdout)

    def start_keeper(self):
        """With storage and peers: it exports all metrics."""
        key = self.folder / "cluster.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        keeper = subprocess.Popen(
            [CACHALOT, "serve", "--pool", self.folder / "pool", "--create", "--block-bytes", "4KiB", "--capacity-blocks", "32",
             "--quota", "default=64KiB", "--storage", "null:", "--peers", f"file:{self.folder}/peers", "--peer-listen", "tcp:127.0.0.1:0",
             "--cluster-key-file", key, "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end, keeper)
        ready = keeper.stdout.readline()
        # A namespace: metrics of namespaces have samples.
        subprocess.run([CACHALOT, "put", "greeting", "--pool", self.folder / "pool"], input=b"hello", check=True,
                       stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        return dict(word.split("=", 1) for word in ready.split()[1:])["metrics"]

    @staticmethod
    def end(process):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)

    def test_prometheus_evaluates_each_expression(self):
        if not shutil.which("prometheus"):
            self.skipTest("needs prometheus: tools/setup --for test")
        address = self.start_keeper()
        wait_until(lambda: "cachalot_peers" in get(address, "/metrics")[0] and "cachalot_storage" in get(address, "/metrics")[0])
        server = Prometheus(self.folder, [address])
        self.addCleanup(self.end, server.process)
        wait_until(lambda: server.query("rate(cachalot_keeper_publications_total[30s])") and server.query("cachalot_storage_up"))
        exported = set(re.findall(r"^(cachalot_\w+)\{", get(address, "/metrics")[0], re.MULTILINE))
        asked = set()
        for expression in expressions():
            asked |= set(re.findall(r"\bcachalot_\w+", expression))
            with self.subTest(expression=expression):
                self.assertTrue(server.query(expression), "no sample")
        self.assertEqual(asked, exported)
        rules = re.findall(r"expr: (.+)", RULES.read_text(encoding="utf-8"))
        self.assertGreater(len(rules), 10)
        for expression in rules:
            with self.subTest(rule=expression):
                server.query(expression)  # raises if it is refused
                self.assertEqual(set(re.findall(r"\bcachalot_\w+", expression)) - exported, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
