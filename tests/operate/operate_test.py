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
            for one in description["namespaces"]:
                for count in ("live_blocks", "committed_blocks"):
                    one.pop(count)  # published a moment after the put
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


class Configuration(OperateTest):
    def write(self, *lines):
        path = self.folder / "kv.toml"
        path.write_text("".join(line + "\n" for line in lines))
        return str(path)

    def configuration(self, *more):
        return self.write(f'pool = "{self.pool}"', "create = true", "block-bytes = 4096", 'size = "16MiB"',
                          'metrics = "127.0.0.1:0"', *more)

    def test_a_keeper_serves_as_its_file_says_and_flags_win(self):
        keeper = Keeper(self, "--config", self.configuration('policy = "fifo"', 'pin = ["a", "default:b"]'), "--ttl", "7")
        info = json.loads(run("pool", "info", self.pool, "--json", "-").stdout)
        self.assertEqual((info["keeper"]["policy"], info["keeper"]["ttl_s"], info["keeper"]["pins"]), ("fifo", 7, 2))
        self.assertEqual(info["geometry"]["block_bytes"], 4096)
        self.assertEqual(keeper.get("/readyz")[0], 200)

    def test_check_config_says_ok_and_makes_nothing(self):
        done = run("serve", "--config", self.configuration(), "--check-config")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))
        self.assertFalse(os.path.exists(self.pool))

    def test_what_is_wrong_in_a_file_is_one_error_that_names_it(self):
        for line, code, parts in (
            ('metricss = "127.0.0.1:1"', 2, ['"metricss" is not a flag of serve', 'did you mean "metrics"?']),
            ('qqqq = 1', 2, ['"qqqq" is not a flag of serve']),
            ('config = "x"', 2, ["cannot be set in a file"]),
            ("ttl = true", 2, ["--ttl", "expected a number"]),
            ('log-level = "loud"', 2, ["--log-level", "loud"]),
            ("[storage]", 2, ['"storage" is a section']),
            ('pin = ":"', 2, ["--pin", "expected NAMESPACE:KEY"]),
            ('storage = "nothing://x"', 2, ["nothing"]),
            ('kv-events = "tcp:/x"', 2, ["tcp:/x"]),
        ):
            for check in ([], ["--check-config"]):
                done = run("serve", "--config", self.configuration(line), *check)
                with self.subTest(line=line, said=done.stderr):
                    self.assertEqual((done.returncode, done.stdout), (code, ""))
                    self.assertEqual(len(done.stderr.splitlines()), 1)
                    self.assertEqual([part for part in parts if part not in done.stderr], [])
                    self.assertFalse(os.path.exists(self.pool))
        self.assertEqual(run("serve", "--config", str(self.folder / "none.toml")).returncode, 2)

    def test_hangup_reads_the_file_again(self):
        keeper = Keeper(self, "--config", self.configuration('policy = "fifo"', "max-grants = 8", 'log-level = "warn"'))
        said = []
        for line in ('policy = "lru"\nmax-grants = 16\nlog-level = "debug"', 'policy = "fifo"\nmax-grants = 16\nttl = "x"',
                     'policy = "fifo"\nmax-grants = 16\nlog-level = "debug"'):
            self.configuration(line)
            keeper.process.send_signal(signal.SIGHUP)
            said.append(keeper.process.stderr.readline())
        self.assertIn("SIGHUP: changed now: max-grants, log-level; with the next start: policy", said[0])
        self.assertIn("SIGHUP: nothing is changed: ", said[1])
        self.assertIn("--ttl", said[1])
        self.assertRegex(said[2], "SIGHUP: changed now: nothing$")
        self.assertEqual(keeper.get("/readyz")[0], 200)

    def test_a_changed_size_is_no_matter_of_the_next_start(self):
        path = self.configuration('policy = "fifo"')
        keeper = Keeper(self, "--config", path)
        said = []
        for old, new in (('"16MiB"', '"16777216"'), ('"16777216"', '"32MiB"'), ('"32MiB"', '"1KiB"')):
            text = Path(path).read_text()
            Path(path).write_text(text.replace(old, new).replace("fifo", "lru"))
            keeper.process.send_signal(signal.SIGHUP)
            said.append(keeper.process.stderr.readline())
        self.assertRegex(said[0], "with the next start: policy$")
        self.assertRegex(said[1], "with the next start: policy; size: the pool has to be made anew ")
        self.assertIn("SIGHUP: nothing is changed: --size: ", said[2])
        keeper.end()
        Path(path).write_text(Path(path).read_text().replace('"1KiB"', '"32MiB"'))
        self.assertEqual(run("serve", "--config", path).returncode, 2)

    def test_without_a_file_hangup_ends_the_keeper(self):
        keeper = Keeper(self, *self.geometry)
        keeper.process.send_signal(signal.SIGHUP)
        self.assertEqual(keeper.process.wait(timeout=SECONDS), 0)


class Log(OperateTest):
    def test_each_line_of_a_json_log_is_an_object(self):
        keeper = Keeper(self, *self.geometry, "--log-format", "json", "--log-level", "info", "--storage", "null:")
        taker = Keeper(self, "--pool", self.pool, "--take-over", "--log-format", "json")
        self.assertEqual(keeper.process.wait(timeout=SECONDS), 1)  # it is deposed, and says so
        lines = [json.loads(line) for line in keeper.process.stderr.read().splitlines()]
        self.assertGreater(len(lines), 1)
        for line in lines:
            self.assertEqual(list(line), ["time", "level", "origin", "message"])
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual((lines[-1]["level"], lines[-1]["origin"]), ("error", "cachalot"))
        self.assertEqual(taker.end(), "")

    def test_text_of_strangers_stays_one_valid_object(self):
        name = os.fsdecode(b'a"\\\xff\n\xc3\xa4')
        keeper = run("serve", "--pool", str(self.folder / name), "--log-format", "json")
        (line,) = keeper.stderr.splitlines()
        self.assertIn('a"\\\ufffd ä', json.loads(line)["message"])


class Limits(OperateTest):
    # Of this process alone: the files of version 1 and of version 2, with 256 MiB of which 16 MiB are taken.
    GROUP = """mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && cd /sys/fs/cgroup &&
        echo 268435456 | tee memory.max > memory/memory.limit_in_bytes &&
        echo 16777216 | tee memory.current > memory/memory.usage_in_bytes && cd / && exec "$@" """

    def in_group(self, *words):
        return subprocess.run(["unshare", "--mount", "sh", "-c", self.GROUP, "sh", *words], capture_output=True, text=True,
                              check=False, timeout=SECONDS)

    def test_a_pool_beyond_the_limit_of_its_container_is_refused_before_it_is_made(self):
        if self.in_group("true").returncode != 0:
            self.skipTest("needs the right to mount")
        for command in (["serve", "--create"], ["pool", "create"]):
            done = self.in_group(CACHALOT, *command, "--pool", self.pool, "--block-bytes", "64KiB", "--size", "300MiB")
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (3, "", 1), done.stderr)
            for part in (self.pool, "bytes wanted", "251658240 available (control group /: memory limit 268435456)", "would fit"):
                self.assertIn(part, done.stderr)
            self.assertEqual(list(self.folder.iterdir()), [])
        done = self.in_group(CACHALOT, "pool", "create", self.pool, "--block-bytes", "64KiB", "--size", "64MiB")
        self.assertEqual(done.returncode, 0, done.stderr)


class Views(OperateTest):
    """`pool list`, `top`, and what `pool info` says of misses."""

    def test_the_pools_of_a_folder_are_listed(self):
        self.assertEqual(run("pool", "list", str(self.folder)).stdout, f"no pool in {self.folder}\n")
        Keeper(self, *self.geometry)
        run("pool", "create", str(self.folder / "other"), "--block-bytes", "4KiB", "--capacity-blocks", "32", "--devices", "2")
        (self.folder / "file").write_bytes(bytes(100_000))
        done = run("pool", "list", str(self.folder), "--json", "-")
        pools = {Path(one["pool"]).name: one["keeper"] for one in json.loads(done.stdout)["pools"]}
        self.assertEqual(pools, {"pool": "serving", "other": "none"})
        self.assertIn("serving", run("pool", "list", str(self.folder)).stdout)
        self.assertEqual(run("pool", "list", str(self.folder / "none")).returncode, 2)

    def test_top_shows_each_pool(self):
        Keeper(self, *self.geometry)
        done = run("top", self.pool, "--once", "--interval", "0.2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for part in (f"{self.pool}  keeper serving", "in use     0.0 %", "0 of 64, 0 suspected, 0 held", "hit rate", "loads 0 bytes/s"):
            self.assertIn(part, done.stdout)
        self.assertNotIn("\033", done.stdout)
        absent = run("top", str(self.folder / "none"), "--once")
        self.assertEqual((absent.returncode, absent.stdout, len(absent.stderr.splitlines())), (1, "", 1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
