"""What does it cost a keeper to follow others, and to be followed? CPU, memory and bytes on the wire of a change.

usage: bench/follow_hosts.py PROGRAM [--hosts 2,4,8,16,32] [--blocks N] [--rate N]     (needs the Python package)

One keeper gets N blocks, in chains of 128, so many a second; all others are its peers, with small pools, and hear of each.
CPU is of the whole process, less what it takes while nothing happens, measured before. The row of one host is a keeper
without peers, which stores the same; "a change and follower" is what is above it. Bytes are those of TCP, as `ss` counts
them, without headers. "Told again": changes beyond one for each block and follower. All run on one machine, over the loopback device.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

import cachalot

GEOMETRY = cachalot.KvGeometry(layers=3, kv_heads=1, head_dim=16, dtype="f16", block_tokens=16)
CHAIN = 128
IDLE_S = 3


class Keeper:
    def __init__(self, program, folder, number, capacity, has_peers):
        self.pool = f"/dev/shm/cachalot_follow.{os.getpid()}.{number}"
        peers = ["--peers", f"file:{folder}/registry", "--peer-listen", "tcp:127.0.0.1:0"] if has_peers else []
        self.process = subprocess.Popen(
            [program, "serve", "--pool", self.pool, "--create", "--block-bytes", str(GEOMETRY.block_bytes),
             "--capacity-blocks", str(capacity), "--metrics", "127.0.0.1:0", *peers],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready"), line
        self.metrics = re.search(r"metrics=(\S+)", line)[1]

    def end(self):
        self.process.terminate()
        self.process.wait()
        Path(self.pool).unlink(missing_ok=True)

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith((name + " ", name + "{")):
                    return int(float(line.rsplit(" ", 1)[1]))
        return 0

    def cpu_us(self):
        """Of all threads."""
        folder = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in folder.iterdir()) / 1000

    def private_bytes(self):
        return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) * 1024

    def sent_bytes(self):
        listing = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout
        pairs = re.findall(rf"pid={self.process.pid},.*?\n.*?bytes_sent:(\d+)", listing)
        return sum(int(sent) for sent in pairs)


def wait_until(is_true):
    until = time.monotonic() + 300
    while not is_true():
        assert time.monotonic() < until, "five minutes have passed"
        time.sleep(0.2)


def store(pool, blocks, seed, rate):
    """Chains of blocks that are all different."""
    with cachalot.Client(pool=pool, model="follow@1", geometry=GEOMETRY) as client:
        tensors = [np.ones((2, CHAIN, 16, 1, 16), np.float16) for _ in range(3)]
        cache = client.register_cache("vllm_kbnhc", tensors, pages=CHAIN)
        pages = np.arange(CHAIN, dtype=np.uint32)
        begin = time.monotonic()
        for chain in range(blocks // CHAIN):
            tokens = np.arange(CHAIN * 16, dtype=np.uint32)
            tokens[0] = seed + chain
            client.store(cache, client.hash_tokens(tokens), pages)
            time.sleep(max(0, begin + chain * CHAIN / rate - time.monotonic()))


def measure(program, folder, hosts, blocks, rate):
    keepers = []
    try:
        for number in range(hosts):
            keepers.append(Keeper(program, folder, number, blocks + 1024 if number == 0 else 64, hosts > 1))
        owner, followers = keepers[0], keepers[1:]
        wait_until(lambda: all(keeper.metric("cachalot_peers") == hosts - 1 for keeper in keepers))
        # Once before, so that what a pool takes on its first blocks is not counted.
        store(owner.pool, CHAIN, 1 << 30, rate)
        wait_until(lambda: all(keeper.metric("cachalot_peers_known_blocks") >= CHAIN for keeper in followers))
        idle = [keeper.cpu_us() for keeper in keepers]
        time.sleep(IDLE_S)
        idle = [(keeper.cpu_us() - then) / IDLE_S for keeper, then in zip(keepers, idle)]
        before = [(keeper.cpu_us(), keeper.private_bytes()) for keeper in keepers]
        sent, told = owner.sent_bytes(), owner.metric("cachalot_peers_told_changes_total")
        begin = time.monotonic()
        store(owner.pool, blocks, 0, rate)
        for keeper in followers:  # one after the other: a question costs CPU
            wait_until(lambda keeper=keeper: keeper.metric("cachalot_peers_known_blocks") >= blocks + CHAIN)
        seconds = time.monotonic() - begin
        after = [(keeper.cpu_us(), keeper.private_bytes()) for keeper in keepers]
        sent, told = owner.sent_bytes() - sent, owner.metric("cachalot_peers_told_changes_total") - told
        spent = [(now[0] - then[0] - rest * seconds, now[1] - then[1])
                 for now, then, rest in zip(after, before, idle)]
        of_followers = spent[1:] or [(0, 0)]
        return {
            "owner_us": spent[0][0] / blocks,
            "follower_us": sum(cpu for cpu, _ in of_followers) / len(of_followers) / blocks,
            "follower_bytes": sum(memory for _, memory in of_followers) / len(of_followers) / blocks,
            "wire_bytes": sent / told if told else 0,
            "told": told,
            "idle_percent": idle[0] / 1e4,
            "seconds": seconds,
        }
    finally:
        for keeper in keepers:
            keeper.end()
        shutil.rmtree(f"{folder}/registry", ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--hosts", default="2,4,8,16,32")
    parser.add_argument("--blocks", type=int, default=256000)
    parser.add_argument("--rate", type=int, default=50000)
    options = parser.parse_args()
    blocks = options.blocks // CHAIN * CHAIN
    with tempfile.TemporaryDirectory(prefix="follow.") as folder:
        alone = measure(options.program, folder, 1, blocks, options.rate)
        print(f"{blocks} blocks\n"
              "hosts  owner us/block  us/change and follower  follower us/change  follower bytes/block  wire bytes/change  told again  idle  s")
        print(f"{1:5} {alone['owner_us']:15.2f} {'':82} {alone['idle_percent']:5.2f}% {alone['seconds']:7.1f}", flush=True)
        for hosts in map(int, options.hosts.split(",")):
            found = measure(options.program, folder, hosts, blocks, options.rate)
            each = (found["owner_us"] - alone["owner_us"]) * blocks / found["told"]
            print(f"{hosts:5} {found['owner_us']:15.2f} {each:23.3f} {found['follower_us']:19.3f} "
                  f"{found['follower_bytes']:21.1f} {found['wire_bytes']:18.1f} "
                  f"{found['told'] / blocks / (hosts - 1) - 1:11.1%} {found['idle_percent']:5.2f}% {found['seconds']:7.1f}", flush=True)


if __name__ == "__main__":
    main()
