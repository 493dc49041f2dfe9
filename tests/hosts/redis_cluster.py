"""Two hosts that share a Redis cluster of three nodes with replicas, while it is resharded, fails over, is emptied and full.

usage: redis_cluster.py PROGRAM [--rounds N] [--seconds N] [--seed N]

Checked: each byte that a get returns; that no get takes longer than it waits, and two seconds; and, after each event, that
what one host puts is a hit of the other one. Needs redis-server and redis-cli.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from keepers import Keeper, content

NODES = 6
WAIT_S, AGAIN_S = 2, 30


class Cluster:
    """Nodes by their ports."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}
        # The bus has the port 10,000 above.
        for port in random.Random().sample(range(20000, 30000), 200):
            with socket.socket() as one, socket.socket() as other:
                if len(self.processes) < NODES and one.connect_ex(("127.0.0.1", port)) and other.connect_ex(("127.0.0.1", port + 10000)):
                    self.start(port)
        self.ports = list(self.processes)
        for port in self.ports:
            self.until(lambda: self.cli(port, "PING") == "PONG", f"node {port} answers")
        self.manage("create", *(f"127.0.0.1:{port}" for port in self.ports), "--cluster-replicas", "1")
        self.until(self.is_whole, "the cluster is whole")

    def start(self, port):
        self.processes[port] = subprocess.Popen(
            ["redis-server", "--port", str(port), "--dir", self.folder, "--save", "", "--cluster-enabled", "yes",
             "--cluster-config-file", f"nodes-{port}.conf", "--cluster-node-timeout", "1000"], stdout=subprocess.DEVNULL)

    def cli(self, port, *words):
        return subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True).stdout.strip()

    def manage(self, *words):
        done = subprocess.run(["redis-cli", "--cluster", *words, "--cluster-yes"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr

    def until(self, is_so, what):
        end = time.monotonic() + AGAIN_S
        while not is_so():
            assert time.monotonic() < end, f"not so after {AGAIN_S} s: {what}"
            time.sleep(0.1)

    def nodes(self, kind):
        """port: id of the masters or the slaves, as a node that lives sees them."""
        found = {}
        for line in self.cli(self.living(), "CLUSTER", "NODES").splitlines():
            name, address, flags = line.split()[:3]
            if kind in flags.split(",") and "fail" not in flags:
                found[int(address.split(":")[1].split("@")[0])] = name
        return found

    def living(self):
        return next(port for port, process in self.processes.items() if process.poll() is None)

    def is_whole(self):
        return (len(self.nodes("master")) == 3 and len(self.nodes("slave")) == 3 and
                all("cluster_state:ok" in self.cli(port, "CLUSTER", "INFO") for port in self.ports))

    # --- Events ----------------------------------------------------------------------------------

    def reshard(self, draw):
        masters = self.nodes("master")
        giver, taker = draw.sample(list(masters), 2)
        self.manage("reshard", f"127.0.0.1:{giver}", "--cluster-from", masters[giver], "--cluster-to", masters[taker],
                    "--cluster-slots", "1000")

    def fail_over(self, draw):
        self.cli(draw.choice(list(self.nodes("slave"))), "CLUSTER", "FAILOVER")

    def kill_master(self, draw):
        port = draw.choice(list(self.nodes("master")))
        self.processes[port].kill()
        self.processes[port].wait()
        self.until(lambda: len(self.nodes("master")) == 3 and port not in self.nodes("master"), "a replica has taken over")
        self.start(port)

    def flush(self, draw):
        self.cli(draw.choice(list(self.nodes("master"))), "FLUSHALL")

    def fill(self, draw):
        for port in self.ports:
            self.cli(port, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            self.cli(port, "CONFIG", "SET", "maxmemory", "4mb")

    EVENTS = (reshard, fail_over, kill_master, flush, fill)


class Load:
    """Puts at one host, gets at the other, until stop()."""

    def __init__(self, keepers, seed):
        self.keepers, self.random = keepers, random.Random(seed)
        self.keys, self.has_ended = [], threading.Event()
        self.counts = dict.fromkeys(("puts", "gets", "hits", "slow", "wrong"), 0)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.has_ended.is_set():
            self.put(f"key-{len(self.keys)}")
            for _ in range(2):
                self.get(self.random.choice(self.keys[-500:]))

    def put(self, key):
        self.keys.append(key)
        self.counts["puts"] += self.keepers[len(self.keys) % 2].run("put", key, input=content(key)).returncode == 0

    def get(self, key):
        begin = time.monotonic()
        done = self.random.choice(self.keepers).run("get", key, "--storage-wait", str(WAIT_S))
        self.counts["gets"] += 1
        self.counts["slow"] += time.monotonic() - begin > WAIT_S + 2
        if done.returncode == 0:
            self.counts["hits"] += 1
            self.counts["wrong"] += done.stdout != content(key)

    def stop(self):
        self.has_ended.set()
        self.thread.join()


def seconds_to_a_hit(keepers, name):
    begin = time.monotonic()
    for attempt in range(1000):
        key = f"{name}-{attempt}"
        assert keepers[0].run("put", key, "--wait", "5", input=content(key)).returncode == 0
        done = keepers[1].run("get", key, "--storage-wait", str(WAIT_S))
        if done.returncode == 0:
            assert done.stdout == content(key)
            return time.monotonic() - begin
        assert time.monotonic() - begin < AGAIN_S, f"what one host puts is no hit of the other one {AGAIN_S} s after {name}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of puts and gets after each event")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    draw, folder = random.Random(options.seed), tempfile.mkdtemp(prefix="redis_cluster.")
    keepers, cluster, load = [], None, None
    try:
        cluster = Cluster(folder)
        behind = ["--storage", f"redis://127.0.0.1:{cluster.ports[0]}?cluster=1"]
        for number in range(2):
            keepers.append(Keeper(options.program, folder, number, behind))
            keepers[-1].start()
        seconds_to_a_hit(keepers, "the start")
        load = Load(keepers, options.seed)
        for turn in range(options.rounds):
            for event in Cluster.EVENTS:
                event(cluster, draw)
                again_s = seconds_to_a_hit(keepers, f"{event.__name__}-{turn}")
                print(f"{event.__name__}: a hit of the other host {again_s:.2f} s later; {load.counts}", flush=True)
                cluster.until(cluster.is_whole, "the cluster is whole")
                time.sleep(options.seconds)
    finally:
        if load is not None:
            load.stop()
        for keeper in keepers:
            keeper.remove()
        for process in cluster.processes.values() if cluster is not None else ():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    print(load.counts, flush=True)
    return 1 if load.counts["wrong"] or load.counts["slow"] or not load.counts["hits"] else 0


if __name__ == "__main__":
    sys.exit(main())
