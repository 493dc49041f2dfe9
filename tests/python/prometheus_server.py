"""A real Prometheus, and requests to it. Needs the Debian package prometheus, as tools/setup --for test installs it."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

FILES = Path(__file__).parents[2] / "deploy/prometheus"
DEADLINE_S = 60


def get(address, path, accept="*/*"):
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def status(address, path):
    try:
        get(address, path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(predicate):
    until = time.monotonic() + DEADLINE_S
    while not (result := predicate()):
        assert time.monotonic() < until, "not within the deadline"
        time.sleep(0.05)
    return result


class Prometheus:
    """A server that scrapes `targets` every 200 ms, with the configuration of deploy/prometheus otherwise."""

    def __init__(self, folder, targets):
        config = (FILES / "prometheus.yaml").read_text()
        config = config.replace("15s", "200ms\n  evaluation_interval: 200ms").replace(
            '"127.0.0.1:9464", "127.0.0.1:9465"', ", ".join(f'"{t}"' for t in targets))
        (folder / "prometheus.yaml").write_text(config)
        shutil.copy(FILES / "alerts.yaml", folder)
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)
        wait_until(self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return status(self.address, "/-/ready") == 200
        except OSError:
            return False

    def query(self, expression):
        """{labels without instance and job: value}."""
        text, _ = get(self.address, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        found = {}
        for sample in json.loads(text)["data"]["result"]:
            labels = {k: v for k, v in sample["metric"].items() if k not in ("__name__", "instance", "job")}
            found[tuple(sorted(labels.items()))] = float(sample["value"][1])
        return found

    def value(self, expression):
        return next(iter(self.query(expression).values()), None)

    def wait_for(self, expected):
        """Until each of these metrics has one sample, with this value."""
        until = time.monotonic() + DEADLINE_S
        while wrong := {name: found for name, value in expected.items()
                        if list((found := self.query(name)).values()) != [value]}:
            assert time.monotonic() < until, f"{wrong}, expected {expected}"
            time.sleep(0.05)
