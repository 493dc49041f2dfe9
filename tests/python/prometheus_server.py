"""A real Prometheus, and requests to it. Needs the Debian package prometheus, as tools/setup --for test installs it."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples/vllm"))
from ports import start_at_free_port  # noqa: E402

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
        self.log = folder / "log"
        self.process = start_at_free_port(lambda port: self.start(folder, port))

    def start(self, folder, port):
        self.address = f"127.0.0.1:{port}"
        with self.log.open("w") as log:
            process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)
        wait_until(lambda: self.is_ready(process))
        return process

    def is_ready(self, process):
        try:
            is_ready = status(self.address, "/-/ready") == 200
        except OSError:
            is_ready = False
        if process.poll() is not None:  # then it was another server that answered
            raise RuntimeError(self.log.read_text())
        return is_ready

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
