#!/usr/bin/env python3
"""Makes the memory snapshots beside it, in the shape that torch.cuda.memory._dump_snapshot() gives them.

usage: make_snapshots.py [FOLDER]    default: the one this file is in

They are small and made up: every kind of event, blocks from before the recording, two devices, two
streams, and the stack frames that PyTorch repeats. One file for each protocol of pickle, all of the
same snapshot; and one that would run code, which readers must refuse. The same files come out each time.
"""
import os
import pickle
import sys

BASE = 0x7F3A_4000_0000
SIDE_STREAM = 94_371_840_123_456
MIB = 1 << 20

FRAMES = [{"name": "forward", "filename": "/home/user/größe.py", "line": 12},
          {"name": "<module>", "filename": "C:\\train.py", "line": 345}]


class Recording:
    def __init__(self):
        self.events = []

    def add(self, action, address, size, stream=0):
        where = "device_free" if action == "oom" else "addr"
        self.events.append({"action": action, where: address, "size": size, "stream": stream,
                            "time_us": 1_700_000_000_000_000 + len(self.events),
                            "frames": FRAMES})

    def free(self, address, size, stream=0):
        self.add("free_requested", address, size, stream)
        self.add("free_completed", address, size, stream)


def block(size, state, requested=0):
    return {"size": size, "requested_size": requested, "state": state, "frames": FRAMES}


def segment(address, blocks, device=0, stream=0, kind="large"):
    return {"device": device, "address": address, "total_size": sum(b["size"] for b in blocks),
            "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
            "stream": stream, "segment_type": kind, "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": [], "blocks": blocks}


def snapshot():
    small, large, side = BASE, BASE + 32 * MIB, BASE + 64 * MIB
    events = Recording()
    events.add("segment_alloc", large, 20 * MIB)
    events.add("alloc", large, 5_000_000)
    events.free(small + 512, 400)                       # was there before the recording
    events.add("alloc", small + 512, 77)                # and another comes in its place
    events.add("segment_alloc", side, 20 * MIB, SIDE_STREAM)
    events.add("alloc", side, 3 * MIB, SIDE_STREAM)
    events.add("free_requested", large, 5_000_000)      # the other stream still uses it
    events.add("alloc", large + 5 * MIB, 6_000_000)
    events.add("free_completed", large, 5_000_000)
    events.add("oom", 4096, 1 << 40)
    events.add("user_defined", 0, 0)
    events.add("free_requested", large + 5 * MIB, 6_000_000)  # and is not completed
    events.add("snapshot", 0, 0)
    other = Recording()
    other.add("alloc", BASE, 1024)
    other.free(BASE, 1024)
    return {
        "segments": [
            segment(small, [block(512, "active_allocated", 300),    # was there all the time
                            block(512, "active_allocated", 77),
                            block(2 * MIB - 1024, "inactive")], kind="small"),
            segment(large, [block(5 * MIB, "inactive"),
                            block(6 * MIB, "active_pending_free", 6_000_000),
                            block(9 * MIB, "inactive")]),
            segment(side, [block(3 * MIB, "active_allocated", 3 * MIB),
                           block(17 * MIB, "inactive")], stream=SIDE_STREAM),
            segment(BASE, [block(2 * MIB, "active_allocated", 9)], device=1, kind="small"),
        ],
        "device_traces": [events.events, other.events, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
                               "garbage_collection_threshold": 0.0, "expandable_segments": False,
                               "roundup_power2_divisions": {"1": 0, "64": 0, ">": None}},
        "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": 1 << 70}],
    }


class Command:
    def __reduce__(self):
        return (os.system, ("echo this must never run",))


def main(folder):
    for protocol in range(6):
        with open(os.path.join(folder, f"snapshot_p{protocol}.pickle"), "wb") as file:
            pickle.dump(snapshot(), file, protocol)
    with open(os.path.join(folder, "command.pickle"), "wb") as file:
        pickle.dump({"segments": [], "device_traces": [[Command()]]}, file, 4)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
