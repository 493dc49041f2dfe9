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


# Thirty minutes of a keeper and its standby, nothing wrong.
HEALTHY = {
    'cachalot_keeper_ruling{pool="kv",instance="a"}': "1x30",
    'cachalot_keeper_ruling{pool="kv",instance="b"}': "0x30",
    'cachalot_keeper_epoch{pool="kv"}': "7x30",
    'cachalot_keeper_publications_total{pool="kv"}': "0+6000x30",
    'cachalot_pool_blocks{pool="kv",state="quarantined"}': "0x30",
    'cachalot_pool_blocks{pool="kv",state="bad"}': "0x30",
    'cachalot_keeper_suspicions_total{pool="kv"}': "2x30",
    'cachalot_client_damaged_reads_total{pool="kv"}': "3x30",
    'cachalot_keeper_refused_grants_total{pool="kv",reason="no_space"}': "9x30",
    'cachalot_keeper_refused_grants_total{pool="kv",reason="over_limit"}': "0+9x30",
    'cachalot_pool_clients{pool="kv",state="served"}': "3x30",
    'cachalot_pool_clients{pool="kv",state="held"}': "0x30",
    'cachalot_pool_client_slots{pool="kv"}': "4x30",
    'cachalot_storage_up{pool="kv"}': "1x30",
    'cachalot_storage_lost_blocks_total{pool="kv"}': "8x30",
    'cachalot_storage_damaged_blocks_total{pool="kv"}': "5x30",
    'cachalot_peers{pool="kv"}': "2x30",
}
# What is wrong in the state that each alert is for.
PLANTED = {
    "CachalotPoolWithoutKeeper": {'cachalot_keeper_ruling{pool="kv",instance="a"}': "1x10 _x20"},
    "CachalotKeeperHangs": {'cachalot_keeper_publications_total{pool="kv"}': "5000x30"},
    "CachalotTakeovers": {'cachalot_keeper_epoch{pool="kv"}': "7x10 8 9 10x20"},
    "CachalotBlocksQuarantined": {'cachalot_pool_blocks{pool="kv",state="quarantined"}': "64x30"},
    "CachalotClientSuspected": {'cachalot_keeper_suspicions_total{pool="kv"}': "2x10 3x20"},
    "CachalotDamagedReads": {'cachalot_client_damaged_reads_total{pool="kv"}': "3x10 4x20"},
    "CachalotBadBlocks": {'cachalot_pool_blocks{pool="kv",state="bad"}': "1x30"},
    "CachalotNoSpace": {'cachalot_keeper_refused_grants_total{pool="kv",reason="no_space"}': "0+9x30"},
    "CachalotClientSlotsUsedUp": {'cachalot_pool_clients{pool="kv",state="held"}': "1x30"},
    "CachalotStorageDown": {'cachalot_storage_up{pool="kv"}': "0x30"},
    "CachalotStorageTooSlow": {'cachalot_storage_lost_blocks_total{pool="kv"}': "0+8x30"},
    "CachalotStorageDamaged": {'cachalot_storage_damaged_blocks_total{pool="kv"}': "5x10 6x20"},
    "CachalotWithoutPeers": {'cachalot_peers{pool="kv"}': "0x30"},
}


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
        rules = tree / "deploy/prometheus/alerts.yaml"

        def checked():
            return subprocess.run([ROOT / "tools/dashboard", tree, "--check"], check=False, capture_output=True, text=True,
                                  timeout=DEADLINE_S)

        table.write_text(table.read_text().replace("cachalot_storage_objects", "cachalot_storage_things"))
        rules.write_text(rules.read_text().replace("for: 1m", "for: 2m"))
        done = checked()
        self.assertEqual(done.returncode, 1)
        self.assertIn("cachalot.json: is not what the sources say", done.stdout)
        self.assertIn("alerts.yaml: is not what the sources say", done.stdout)
        table.write_text(table.read_text().replace("cachalot_storage_up", "cachalot_storage_works"))
        done = checked()
        self.assertEqual(done.returncode, 1)
        self.assertIn("CachalotStorageDown: cachalot_storage_up is no metric of the sources", done.stderr)

    def promtool(self, *words):
        if not shutil.which("promtool"):
            self.skipTest("needs promtool: tools/setup --for test")
        done = subprocess.run(["promtool", *words], check=False, capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else(self):
        self.promtool("check", "rules", RULES)
        self.assertEqual(set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))), set(PLANTED))
        tests = []
        for alert, wrong in {"nothing": {}, **PLANTED}.items():
            fires = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if wrong else []
            tests.append({"name": alert, "interval": "1m",
                          "input_series": [{"series": name, "values": values} for name, values in {**HEALTHY, **wrong}.items()],
                          "promql_expr_test": [{"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "20m",
                                                "exp_samples": fires}]})
        self.assertLessEqual({name for wrong in PLANTED.values() for name in wrong}, set(HEALTHY))
        file = self.folder / "alerts_test.yaml"
        # JSON is YAML.
        file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}), encoding="utf-8")
        self.promtool("test", "rules", file)

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
