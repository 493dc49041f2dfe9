"""A process with LMCache's own StorageManager over a pool, driven by lines of JSON; LMCache's log is on stderr.

{"do": "store", "seed": s, "keys": n}   writes n objects into L1; LMCache stores them in the background
{"do": "load", "seed": s, "keys": n}    drops them from L1 and prefetches; says the hits, and how many have the right bytes
{"do": "status"}                        says what the adapter does
"""

import argparse
import json
import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # LMCache writes its log to stdout

import torch  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402

WAIT_S = 60
OBJECT_BYTES = 64 << 10
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([OBJECT_BYTES // 2])], dtypes=[torch.bfloat16])


def key_of(seed, number):
    return ObjectKey(chunk_hash=b"%d/%d" % (seed, number), model_name="m", kv_rank=0)


def bytes_of(seed, number):
    source = torch.Generator().manual_seed(1000 * seed + number)
    return torch.randint(0, 256, (OBJECT_BYTES,), dtype=torch.uint8, generator=source)


def flat(memory_object):
    return torch.frombuffer(memory_object.byte_array, dtype=torch.uint8)


def store(manager, keys, seed):
    reserved = manager.reserve_write(keys, LAYOUT)
    for number, key in enumerate(keys):
        flat(reserved[key]).copy_(bytes_of(seed, number))
    manager.finish_write(keys)
    return {"written": len(reserved)}


def load(manager, keys, seed):
    until = time.monotonic() + WAIT_S
    while manager.delete_l1_keys(keys)[1]:  # those that are still being stored
        assert time.monotonic() < until, "LMCache holds its objects"
    group = GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=LAYOUT)
    handle = manager.submit_prefetch_task(PrefetchTaskSpec([group], fetching_policy="prefix"))
    assert manager.wait_prefetch_status(handle, WAIT_S)
    result = manager.query_prefetch_status(handle)
    hits = result.hit_cells[0].get_indices_list()
    hit_keys = [keys[at] for at in hits]
    right = 0
    if hit_keys:
        with manager.read_prefetched_results(hit_keys, result.l1_owners) as objects:
            right = sum(torch.equal(flat(one), bytes_of(seed, at)) for at, one in zip(hits, objects))
        manager.finish_read_prefetched(hit_keys, l1_owners=result.l1_owners)
    return {"hits": len(hits), "from_l2": result.l2_hit_count, "right": right}


def main():
    adapter = json.loads(sys.argv[1])
    began = time.monotonic()
    manager = StorageManager(StorageManagerConfig(
        l1_manager_config=L1ManagerConfig(L1MemoryManagerConfig(64 << 20, use_lazy=False, shm_name="")),
        eviction_config=EvictionConfig("LRU"),
        l2_adapter_config=parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(adapter)]))))
    ANSWERS.write(json.dumps({"ready": time.monotonic() - began}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        keys = [key_of(asked["seed"], number) for number in range(asked["keys"])] if "keys" in asked else []
        if asked["do"] == "store":
            answer = store(manager, keys, asked["seed"])
        elif asked["do"] == "load":
            answer = load(manager, keys, asked["seed"])
        else:
            answer = manager.report_status()["l2_adapters"][0]
        ANSWERS.write(json.dumps(answer) + "\n")
    manager.close()


main()
