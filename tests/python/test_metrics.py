"""`cachalot serve --metrics`, scraped by a real Prometheus."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import GEOMETRY, Engine, pool_path, tokens_of
from prometheus_server import DEADLINE_S, Prometheus, get, status, wait_until

CAPACITY = 32

# The Debian package prometheus, which tools/setup --for test installs.
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None or shutil.which("promtool") is None,
                                      reason="no prometheus: tools/setup --for test")


def start_keeper(pool, *flags):
    """A keeper's process, and what it says of itself."""
    command = [sys.executable, "-m", "cachalot.command", "serve", "--pool", pool, "--metrics", "127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, read_line(process)


def read_line(process):
    words = process.stdout.readline().split()
    assert words, "the keeper ended"
    return {"said": words[0], **dict(word.split("=", 1) for word in words[1:])}


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def keeper():
    """A pool of 32 blocks, and where its keeper's metrics are."""
    pool = pool_path()
    process, ready = start_keeper(pool, "--create", "--block-bytes", str(GEOMETRY.block_bytes),
                                  "--capacity-blocks", str(CAPACITY))
    assert ready["said"] == "ready"
    yield pool, ready["metrics"]
    end(process)
    os.unlink(pool)


def run(*command, text=""):
    """Exit code and output of a program that ends by itself."""
    ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def cachalot(*arguments):
    return run(sys.executable, "-m", "cachalot.command", *arguments)


@pytest.fixture
def prometheus(tmp_path):
    started = []

    def start(*targets):
        started.append(Prometheus(tmp_path, targets))
        return started[-1]

    yield start
    for server in started:
        server.process.terminate()
        server.process.wait(timeout=DEADLINE_S)


def store_and_load(pool):
    """12 prompts of 8 blocks into 32 blocks, and loads; what the caller saw of it."""
    count = {"written": 0, "looked_up": 0, "hits": 0, "read": 0}
    writer, reader = Engine(pool), Engine(pool, seed=2)
    with writer.client, reader.client:
        for prompt in range(12):
            hashes = writer.client.hash_tokens(tokens_of(prompt, 32))
            count["written"] += writer.client.store(writer.cache, hashes, range(8)).written
            for wanted in (8, 5):
                loaded = reader.client.load(reader.cache, hashes[:wanted], range(wanted))
                count["read"] += loaded
                count["hits"] += loaded
                count["looked_up"] += wanted
        for prompt in range(12):
            hashes = reader.client.hash_tokens(tokens_of(prompt, 32))
            count["hits"] += reader.client.lookup(hashes)
            count["looked_up"] += 8
    return count


@needs_prometheus
def test_prometheus_counts_what_the_engines_did(keeper, prometheus):
    pool, address = keeper
    server = prometheus(address)
    count = store_and_load(pool)
    assert count["written"] == 96 and count["read"] == 12 * 13 and count["hits"] > count["read"]
    expected = {
        "cachalot_client_looked_up_blocks_total": count["looked_up"],
        "cachalot_client_read_blocks_total": count["read"],
        "cachalot_client_read_bytes_total": count["read"] * GEOMETRY.block_bytes,
        "cachalot_client_committed_blocks_total": count["written"],
        "cachalot_client_written_bytes_total": count["written"] * GEOMETRY.block_bytes,
        "cachalot_client_damaged_reads_total": 0,
        "cachalot_keeper_committed_blocks_total": count["written"],
        "cachalot_pool_block_bytes": GEOMETRY.block_bytes,
        "cachalot_pool_capacity_blocks": CAPACITY,
        "cachalot_keeper_epoch": 1,
        "cachalot_keeper_ruling": 1,
        'cachalot_pool_clients{state="served"}': 0,
    }
    server.wait_for(expected)
    for name in expected:
        assert all(dict(labels)["pool"] == pool for labels in server.query(name)), name
    # What was stored is live or was evicted because the pool was full.
    live = server.value('cachalot_pool_blocks{state="live"}')
    by_reason = server.query("cachalot_keeper_evicted_blocks_total")
    evicted = {dict(labels)["reason"]: value for labels, value in by_reason.items()}
    assert 0 < live <= CAPACITY
    assert evicted == {"capacity": count["written"] - live, "bucket": 0, "expired": 0, "requested": 0}


@needs_prometheus
def test_the_guides_query_is_the_hit_rate(keeper, prometheus):
    """By hand: the writer asks for 8 blocks and finds none, the reader for 8 and uses them, and for 4 that are not there."""
    pool, address = keeper
    page = (Path(__file__).parents[2] / "docs/guide/operate.md").read_text(encoding="utf-8")
    query = re.search(r"\[Hit rate\]\(#hit-rate\): `([^`]+)`", page)[1].replace("\n", " ")
    server = prometheus(address)
    server.wait_for({"cachalot_client_prompt_blocks_total": 0})  # a rate is that of what it has seen to grow
    writer, reader = Engine(pool), Engine(pool, seed=2)
    with writer.client, reader.client:
        hashes = writer.client.hash_tokens(tokens_of(1, 32))
        assert writer.client.lookup(hashes) == 0
        writer.client.store(writer.cache, hashes, range(8))
        assert reader.client.lookup(hashes) == 8
        assert reader.client.load(reader.cache, hashes, range(8)) == 8
        assert reader.client.lookup(reader.client.hash_tokens(tokens_of(2, 16))) == 0
    server.wait_for({
        "cachalot_client_prompts_total": 3,
        "cachalot_client_prompt_blocks_total": 20,
        'cachalot_client_used_blocks_total{source="pool"}': 8,
        'cachalot_client_used_blocks_total{source="peer"}': 0,
        'cachalot_client_used_blocks_total{source="storage"}': 0,
    })
    assert server.value(query) == pytest.approx(0.4)


@needs_prometheus
def test_blocks_evicted_on_request_are_counted_as_such(keeper, prometheus):
    pool, address = keeper
    server = prometheus(address)
    engine = Engine(pool)
    with engine.client as client:
        client.store(engine.cache, client.hash_tokens(tokens_of(1, 32)), range(8))
    assert cachalot("evict", "--all", "--pool", pool)[0] == 0
    wait_until(lambda: server.value('cachalot_keeper_evicted_blocks_total{reason="requested"}') == 8)
    assert server.value("sum(cachalot_keeper_evicted_blocks_total)") == 8


@needs_prometheus
def test_a_standby_that_takes_over_is_the_one_that_exports_the_pool(keeper, prometheus, request):
    pool, address = keeper
    standby, said = start_keeper(pool, "--standby")
    request.addfinalizer(lambda: end(standby))
    assert said["said"] == "standby"
    assert (status(address, "/health"), status(said["metrics"], "/health")) == (200, 503)
    server = prometheus(address, said["metrics"])
    wait_until(lambda: server.value("count(cachalot_keeper_ruling)") == 2)
    # Prometheus scrapes the two at different moments.
    wait_until(lambda: server.value("sum(cachalot_keeper_ruling)") == 1)
    wait_until(lambda: server.value("count(cachalot_keeper_epoch)") == 1)
    assert cachalot("stop", "--pool", pool)[0] == 0
    assert read_line(standby)["metrics"] == said["metrics"]
    assert status(said["metrics"], "/health") == 200
    wait_until(lambda: server.value("cachalot_keeper_epoch") == 2)
    wait_until(lambda: server.value("sum(cachalot_keeper_ruling)") == 1)


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_the_metrics(keeper):
    text, _ = get(keeper[1], "/metrics")
    assert run("promtool", "check", "metrics", text=text) == (0, "", "")


@needs_prometheus
def test_a_healthy_pool_raises_no_alert(keeper, prometheus):
    server = prometheus(keeper[1])
    store_and_load(keeper[0])

    def evaluated():
        groups = json.loads(get(server.address, "/api/v1/rules")[0])["data"]["groups"]
        rules = groups[0]["rules"]
        return rules if all(rule["lastEvaluation"] > "0002" for rule in rules) else None

    wait_until(lambda: server.value("cachalot_keeper_ruling") == 1)
    rules = wait_until(evaluated)
    # Absent until the first scrape, so that one may be pending.
    others = [rule for rule in rules if rule["name"] != "CachalotPoolWithoutKeeper"]
    assert len(others) == len(rules) - 1
    assert all((rule["health"], rule["alerts"]) == ("ok", []) for rule in others), others


@pytest.fixture
def storing_keeper(tmp_path):
    """As keeper, with storage behind the pool, which joins within a second, peers, and a namespace that has a quota."""
    pool = pool_path()
    process, ready = start_keeper(pool, "--create", "--block-bytes", str(GEOMETRY.block_bytes),
                                  "--capacity-blocks", str(CAPACITY), "--storage", "null:", "--peers",
                                  f"file:{tmp_path}/peers", "--peer-listen", "tcp:127.0.0.1:0",
                                  "--quota", "default=64KiB")
    assert run(sys.executable, "-m", "cachalot.command", "put", "value", "--pool", pool, text="x")[0] == 0
    # With values: a name alone may stand in the help of one without any.
    parts = ("cachalot_storage_up{", "cachalot_peers{", "cachalot_namespace_quota_blocks{")
    wait_until(lambda: all(name in get(ready["metrics"], "/metrics")[0] for name in parts))
    yield pool, ready["metrics"]
    end(process)
    os.unlink(pool)


def test_the_guide_lists_all_metrics_and_no_other(storing_keeper):
    guide = (Path(__file__).parents[2] / "docs/guide/operate.md").read_text()
    section = guide.split("## Metrics", 1)[1].split("\n## ", 1)[0]
    exported = set(re.findall(r"^(cachalot_\w+)\{", get(storing_keeper[1], "/metrics")[0], re.MULTILINE))
    listed = set(re.findall(r"`(cachalot_\w+)", section))
    assert listed == exported


@pytest.mark.parametrize("address, expected", [
    ("9464", '--metrics: "9464", expected HOST:PORT, [IPv6]:PORT or :PORT'),
    ("127.0.0.1:99999", '--metrics: "127.0.0.1:99999", expected HOST:PORT'),
    ("192.0.2.1:9464", "--metrics: 192.0.2.1:9464: listening: "),
    ("busy", "listening: Address already in use"),
])
def test_a_bad_address_is_one_error_and_makes_no_pool(keeper, address, expected):
    address = keeper[1] if address == "busy" else address
    pool = pool_path()
    code, out, errors = cachalot("serve", "--pool", pool, "--create", "--block-bytes", "64KiB",
                                 "--capacity-blocks", "16", "--metrics", address)
    assert code in (2, 3) and out == ""
    assert expected in errors and len(errors.splitlines()) == 1
    assert not os.path.exists(pool)
