"""Two machines that are peers: conversations go from one to the other, while the network between them and the other keeper fail.
Every answer has the tokens of an engine alone."""

import contextlib
import json
import random
import signal
import statistics
import subprocess
import threading
import time

import pytest
from namespaces import NetnsLink, Side, Unsupported
from processes import PROGRAM
from test_share import external_hits

CONVERSATIONS, TURNS = 50, 2
POOL = "/dev/shm/cachalot_vllm"  # each machine has a /dev/shm of its own
MOST_LATE_S = 10.0  # of one answer; a fault costs less than a second
BLOCK = 128


class Machine:
    """A keeper with a pool, and the registry that both machines see."""

    def __init__(self, link, side, registry):
        self.place, self.registry = Side(link, side), registry
        self.serve("--create", "--block-bytes", str(1 << 20), "--capacity-blocks", "400")

    def serve(self, *more):
        self.keeper = subprocess.Popen(
            self.place.command([str(PROGRAM), "serve", "--pool", POOL, "--peers", f"file:{self.registry}", "--peer-listen",
                                f"tcp:{self.place.host}:0", "--peers-without-key", *more]),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.keeper.stdout.readline()
        assert line.startswith("ready"), line + self.keeper.stdout.read()

    def run(self, *words):
        return subprocess.run(self.place.command([str(PROGRAM), *words]), capture_output=True, text=True)

    def info(self):
        return json.loads(self.run("pool", "info", POOL, "--json", "-").stdout)

    def kill(self):
        self.keeper.kill()
        self.keeper.wait()

    def restart_with_another_pool(self):
        self.kill()
        self.run("pool", "destroy", POOL)
        self.serve("--create", "--block-bytes", str(1 << 20), "--capacity-blocks", "400")


@contextlib.contextmanager
def nothing(link, other):
    yield


@contextlib.contextmanager
def cut_off(link, other):
    link.send("cut")
    yield
    link.send("heal")


@contextlib.contextmanager
def slow(link, other):
    link.send("rate 1000000")
    yield
    link.send("heal")


@contextlib.contextmanager
def stopped(link, other):
    other.keeper.send_signal(signal.SIGSTOP)
    yield
    other.keeper.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def killed(link, other):
    """Some time after the request has begun, and restarted on its pool."""
    timer = threading.Timer(random.uniform(0, 0.2), other.keeper.kill)
    timer.start()
    yield
    timer.join()
    other.kill()
    other.serve()


@contextlib.contextmanager
def another_pool(link, other):
    other.restart_with_another_pool()
    yield


FAULTS = [nothing] * 5 + [cut_off, slow, stopped, killed, another_pool]


@pytest.fixture
def link():
    try:
        made = NetnsLink()
    except Unsupported as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def machines(link, tmp_path):
    made = [Machine(link, side, tmp_path / "registry") for side in "ab"]
    yield made
    for machine in made:
        machine.kill()


def other_machine_has_all(engines_of, prompt_of, machines):
    """A prompt that one machine has computed is a full hit of the other one, after all faults."""
    for attempt in range(20):
        words = prompt_of(1000 + attempt, 5 * BLOCK + 1)
        engines_of[0].answer([words])
        time.sleep(1.0)
        before = external_hits(engines_of[1].answer([prompt_of(2000 + attempt, 10)]))
        if external_hits(engines_of[1].answer([words])) - before == 5 * BLOCK:
            return True
        time.sleep(3.0)  # a peer that has failed rests for a while
    return False


def test_conversations_over_two_machines_while_one_fails(models, engines, prompt, machines, link):
    draw = random.Random(1)
    random.seed(1)
    alone = engines(models())
    both = [engines(models(), {"pool": POOL, "storage_wait": 1}, place=machine.place) for machine in machines]
    late, faults = [], []
    hits, seen = 0, [0, 0]  # tokens of the other machine; all hits of each engine
    for number in range(CONVERSATIONS):
        words = prompt(number, draw.randrange(2 * BLOCK, 8 * BLOCK))
        for turn in range(TURNS):
            alone.answer([], reset=True)
            right = alone.answer([words])
            at = (number + turn) % 2
            fault = draw.choice(FAULTS)
            with fault(link, machines[1 - at]):
                answer = both[at].answer([words])
            assert answer["tokens"] == right["tokens"], (number, turn, fault.__name__)
            assert answer["seconds"] < right["seconds"] + MOST_LATE_S, (number, turn, fault.__name__)
            if turn > 0:  # the first turn was at the other machine
                hits += external_hits(answer) - seen[at]
            seen[at] = external_hits(answer)
            late.append(answer["seconds"] - right["seconds"])
            faults.append(fault.__name__)
            words = words + answer["tokens"][0] + prompt(10_000 + number, 100)
    assert hits > 0, both[0].text()[-3000:]
    assert other_machine_has_all(both, prompt, machines), "\n".join(
        [json.dumps(machine.info()) for machine in machines] + [one.text()[-3000:] for one in both])
    for name in sorted(set(faults)):
        of = [one for one, fault in zip(late, faults) if fault == name]
        print(f"{name}: {len(of)} answers, later than alone: median {1e3 * statistics.median(of):.0f} ms, most {1e3 * max(of):.0f}")
    print(f"{len(late)} answers, {hits} tokens of the other machine, median {1e3 * statistics.median(late):.0f} ms later")
