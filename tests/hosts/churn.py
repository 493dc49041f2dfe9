"""Keepers that join, leave, hang and die for a while, all peers of each other, under puts and gets.

usage: churn.py PROGRAM [--seconds N] [--keepers N] [--seed N]

Checked: each byte that a get returns; that no get takes longer than it waits, and two seconds; and, after two seconds of
rest, that each keeper knows exactly the other ones, and finds a block if and only if some pool has it. The first keeper
lives all the time: between a rest in the middle and the one at the end its memory and descriptors do not grow.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import urllib.request

from keepers import Keeper, content

WAIT_S = 1.0
MOST_GROWTH = {"KiB": 4096, "descriptors": 8}  # of a keeper that has lived long


def known_peers(keeper):
    with urllib.request.urlopen(f"http://{keeper.metrics}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("cachalot_peers{"):
                return int(float(line.rsplit(" ", 1)[1]))
    return -1


def held_by(keeper):
    """Memory of a keeper's own, its pool left out, and open files."""
    pid = keeper.process.pid
    with open(f"/proc/{pid}/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
    return {"KiB": kib, "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


class Churn:
    def __init__(self, program, folder, keepers, seed):
        self.random = random.Random(seed)
        behind = ["--peers", f"file:{folder}/registry", "--peer-listen", "tcp:127.0.0.1:0"]
        self.keepers = [Keeper(program, folder, number, behind) for number in range(keepers)]
        self.keys = []
        self.counts = dict.fromkeys(("puts", "gets", "hits", "kills", "stops", "pauses", "starts", "slow", "wrong"), 0)

    def serving(self):
        return [keeper for keeper in self.keepers if keeper.serves]

    def disturb(self):
        keeper = self.random.choice(self.keepers[1:])
        if keeper.process is None:
            keeper.start()
            self.counts["starts"] += 1
        elif keeper.is_stopped:
            keeper.pause()
        elif len(self.serving()) > 2:
            kind = self.random.choice(("kills", "stops", "pauses"))
            self.counts[kind] += 1
            if kind == "pauses":
                keeper.pause()
            else:
                keeper.end(signal.SIGKILL if kind == "kills" else signal.SIGTERM)

    def put(self):
        key = f"key-{len(self.keys)}"
        done = self.random.choice(self.serving()).run("put", key, input=content(key))
        if done.returncode == 0:
            self.keys.append(key)
            self.counts["puts"] += 1

    def get(self):
        if not self.keys:
            return
        key = self.random.choice(self.keys[-400:])
        begin = time.monotonic()
        done = self.random.choice(self.serving()).run("get", key, "--storage-wait", str(int(WAIT_S)))
        self.counts["gets"] += 1
        self.counts["slow"] += time.monotonic() - begin > WAIT_S + 2
        if done.returncode == 0:
            self.counts["hits"] += 1
            self.counts["wrong"] += done.stdout != content(key)

    def run(self, seconds):
        end = told = time.monotonic()
        end += seconds
        while time.monotonic() < end:
            self.random.choices((self.put, self.get, self.disturb), (4, 6, 1))[0]()
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(self.counts, flush=True)

    def check_views(self):
        """What is wrong after a rest: texts."""
        faults = []
        for keeper in self.keepers:
            if keeper.is_stopped:
                keeper.pause()
            if keeper.process is None:
                keeper.start()
        # Keepers look at the registry twice a second.
        until = time.monotonic() + 20
        while any(known_peers(keeper) != len(self.keepers) - 1 for keeper in self.keepers) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(2)
        for keeper in self.keepers:
            if (known := known_peers(keeper)) != len(self.keepers) - 1:
                faults.append(f"{keeper.pool} knows {known} peers")
        for key in self.random.sample(self.keys, min(30, len(self.keys))):
            own = [keeper.run("lookup", key).returncode == 0 for keeper in self.keepers]
            found = [keeper.run("lookup", key, "--storage").returncode == 0 for keeper in self.keepers]
            if set(found) == {any(own)}:
                continue
            has = [keeper.pool for keeper, is_there in zip(self.keepers, own) if is_there]
            wrong = [keeper for keeper, is_there in zip(self.keepers, found) if is_there != any(own)]
            # Late, or never?
            time.sleep(5)
            still = [keeper.pool for keeper in wrong
                     if (keeper.run("lookup", key, "--storage").returncode == 0) != any(own)]
            faults.append(f"{key}: in {has}; {[keeper.pool for keeper in wrong]} say otherwise, 5 s later {still}")
        return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keepers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="churn.")
    churn = Churn(options.program, folder, options.keepers, options.seed)
    print(f"seed {options.seed}", flush=True)
    try:
        for keeper in churn.keepers:
            keeper.start()
        faults, held = [], []
        for _ in range(2):
            churn.run(options.seconds / 2)
            faults += churn.check_views()
            held.append(held_by(churn.keepers[0]))
            print("keeper 0 holds", held[-1], flush=True)
        for what, most in MOST_GROWTH.items():
            if held[1][what] > held[0][what] + most:
                faults.append(f"keeper 0: {held[0][what]} {what} became {held[1][what]}")
    finally:
        for keeper in churn.keepers:
            keeper.remove()
        shutil.rmtree(folder)
    print(churn.counts, faults or "all views agree", flush=True)
    return 1 if faults or churn.counts["wrong"] or churn.counts["slow"] else 0


if __name__ == "__main__":
    sys.exit(main())
