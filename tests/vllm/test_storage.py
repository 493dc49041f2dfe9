"""A pool with storage behind it: an engine takes prompts from it that the pool has lost, and says the same."""

import time
from pathlib import Path

import pytest
from handover import right
from test_share import TOKENS, external_hits, full_blocks

WAIT_S = 20.0


def wait_until_stored(folder, blocks):
    """Waits until so many table entries of the storage are in use (docs/formats/storage-file.md)."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        used = 0
        for segment in Path(folder).glob("segment-*"):
            data = segment.read_bytes()
            slots = int.from_bytes(data[12:16], "little")
            entries = (data[4096 + 128 * slot : 4224 + 128 * slot] for slot in range(slots))
            used += sum(int.from_bytes(entry[120:124], "little") == 1 for entry in entries)
        if used >= blocks:
            return
        time.sleep(0.2)
    raise AssertionError(f"{used} blocks are stored, expected {blocks}")


@pytest.mark.parametrize("options", [{}, {"load": "sync"}], ids=["async", "sync"])
def test_a_pool_that_lost_its_memory_is_warm(models, engines, pools, prompt, tmp_path, options):
    storage = ["--storage", f"file:{tmp_path}/objects"]
    one = prompt(1, TOKENS)
    pool = pools(1 << 20, 64, *storage)
    first = engines(models(), {"pool": pool.path, **options})
    first.answer([one])
    wait_until_stored(tmp_path / "objects", full_blocks(128) // 128)
    first.close()
    pool.kill()
    Path(pool.path).unlink()

    again = pools(1 << 20, 64, *storage)
    second = engines(models(), {"pool": again.path, **options})
    time.sleep(6.0)  # the storage joins within a second, and the engine looks for it every five
    answer = second.answer([one])
    assert answer["tokens"][0] == right(engines(models()), one)
    assert external_hits(answer) == full_blocks(128), second.text()[-3000:]
    # By hand: this pool's engines asked for the full blocks of one prompt, and used them all from storage.
    blocks = full_blocks(128) // 128
    until = time.monotonic() + WAIT_S  # clients publish every 200 ms
    while (totals := again.info()["totals"])["prompts"] != 1 and time.monotonic() < until:
        time.sleep(0.05)
    names = "prompts", "prompt_blocks", "used_pool_blocks", "used_peer_blocks", "used_storage_blocks"
    assert [totals[name] for name in names] == [1, blocks, 0, 0, blocks]
    assert totals["hit_rate"] == 1


def test_a_pool_smaller_than_its_prompts(models, engines, pools, prompt, tmp_path):
    """Ten prompts of 11 blocks through a pool of 24: each one's second answer comes from storage."""
    pool = pools(1 << 20, 24, "--storage", f"file:{tmp_path}/objects")
    prompts = [prompt(seed, TOKENS) for seed in range(10)]
    first = engines(models(), {"pool": pool.path})
    for number, one in enumerate(prompts):
        first.answer([one])
        wait_until_stored(tmp_path / "objects", (number + 1) * (full_blocks(128) // 128))
    second = engines(models(), {"pool": pool.path})
    time.sleep(6.0)
    alone = engines(models())
    hits = 0
    for one in prompts:
        answer = second.answer([one])
        assert answer["tokens"][0] == right(alone, one)
        hits = external_hits(answer)
    assert hits == 10 * full_blocks(128), second.text()[-3000:]


def test_storage_that_is_gone_costs_nothing(models, engines, pools, prompt, tmp_path):
    """The directory is emptied under the keeper: what comes back is checked, the rest is computed."""
    pool = pools(1 << 20, 24, "--storage", f"file:{tmp_path}/objects")
    prompts = [prompt(seed, TOKENS) for seed in range(4)]
    first = engines(models(), {"pool": pool.path})
    for number, one in enumerate(prompts):
        first.answer([one])
        wait_until_stored(tmp_path / "objects", (number + 1) * (full_blocks(128) // 128))
    for segment in (tmp_path / "objects").glob("segment-*"):
        with open(segment, "r+b") as file:
            size = segment.stat().st_size
            file.seek(size // 2)
            file.write(bytes(size - size // 2))
    second = engines(models(), {"pool": pool.path})
    time.sleep(6.0)
    alone = engines(models())
    for one in prompts:
        assert second.answer([one])["tokens"][0] == right(alone, one)
