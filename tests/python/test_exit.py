"""The end of a process whose daemon threads are inside of calls: in a process of its own each."""

import glob
import os
import subprocess
import sys

import pytest

import cachalot
from conftest import pool_path

START = """
import atexit, multiprocessing.util, sys, threading  # before ours: what is registered first comes last
last = []
atexit.register(lambda: [call() for call in last])
import cachalot
from conftest import GEOMETRY, Engine, tokens_of

def start(target):
    threading.Thread(target=target, daemon=True).start()

keeper = cachalot.EmbeddedKeeper(pool=sys.argv[1], block_bytes=GEOMETRY.block_bytes, capacity_blocks=256)
engine = Engine(sys.argv[1])
client, cache = engine.client, engine.cache
hashes = client.hash_tokens(tokens_of(1, 32))
assert client.store(cache, hashes, range(8)).blocks == 8
begun = threading.Semaphore(0)

def spin(call):
    def run():
        while True:
            call()
            begun.release()
    start(run)

def wait():
    for _ in range(100):
        begun.acquire()
"""


def end_of(program):
    """The exit code of a process that runs this, what it says on stderr and stdout, and the pools that it leaves."""
    pool = pool_path()
    places = (os.path.dirname(__file__), os.path.dirname(os.path.dirname(cachalot.__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in places)}
    done = subprocess.run([sys.executable, "-c", START + program, pool], env=environment,
                          capture_output=True, text=True, timeout=100)
    left = glob.glob(pool + "*")
    for file in left:
        os.unlink(file)
    return done.returncode, done.stderr, done.stdout, left


CALLS = {
    "lookup": "client.lookup(hashes)",
    "hash_tokens": "client.hash_tokens(range(4096))",
    "load": "client.load(cache, hashes, range(8))",
    "store": "client.store(cache, hashes, range(8))",
    "a call's result": "client.load_async(cache, hashes, range(8)).result()",
    "whether a call is done": "client.store_async(cache, hashes, range(8)).done()",
    "layers": "client.begin_load(cache, hashes, range(8)).load_layer(0)",
    "attaching": "Engine(sys.argv[1]).client.detach()",
    "an abandoned client": "Engine(sys.argv[1])",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_daemon_thread_inside_a_call_changes_nothing(call):
    for _ in range(3):
        assert end_of(f"for _ in range(3): spin(lambda: {call})\nwait()\nsys.exit(3)") == (3, "", "", [])


def test_what_a_daemon_thread_holds_ends_all_the_same():
    program = """
def run():
    own = cachalot.EmbeddedKeeper(pool=sys.argv[1] + ".own", block_bytes=GEOMETRY.block_bytes, capacity_blocks=16)
    with own, Engine(own.pool).client as client:
        while True:
            client.lookup(hashes)
            begun.release()
start(run)
wait()
"""
    assert end_of(program) == (0, "", "", [])


def test_functions_of_atexit_may_call():
    program = "last.append(lambda: print(client.lookup(hashes)))"
    assert end_of(program) == (0, "", "8\n", [])


def test_a_child_that_multiprocessing_waits_for_has_its_pool():
    program = """
context = multiprocessing.get_context("fork")
is_ending = context.Event()

def work():
    is_ending.wait()
    with Engine(sys.argv[1]).client as own:
        print(own.lookup(hashes), flush=True)

context.Process(target=work).start()
multiprocessing.util.Finalize(None, is_ending.set, exitpriority=0)  # right before children are waited for
"""
    assert end_of(program) == (0, "", "8\n", [])


@pytest.mark.parametrize("leave", ["sys.exit(5)", "os._exit(5)"])
def test_a_forked_child_leaves_its_parents_alone(leave):
    program = f"""
import os
loading = client.begin_load(cache, hashes, range(8))
spin(lambda: client.lookup(hashes))
wait()
child = os.fork()
if child == 0:
    {leave}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert os.path.exists(sys.argv[1])
assert client.lookup(hashes) == 8 and loading.load_layer(0) == 8
sys.exit(3)
"""
    assert end_of(program) == (3, "", "", [])
