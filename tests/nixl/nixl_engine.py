"""An engine that knows NIXL and not Cachalot: nixl_engine.py SEED HEADS ORDER FILE.

It prints one line of JSON: its agent's metadata and its tensors. When a notification has come, it writes its tensors to
FILE, and prints the notification. It ends with its input.
"""

import json
import os
import sys
import threading
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples/nixl"))
from nixl_bridge import RemoteTensor, open_agent  # noqa: E402

LAYERS, PAGES, TOKENS, DIM = 3, 16, 4, 32


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the wheel's libraries print, too
    seed, heads, order, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    inner = (TOKENS, heads, DIM) if order == "tokens_first" else (heads, TOKENS, DIM)
    random = np.random.default_rng(seed)
    tensors = [random.random((2, PAGES, *inner)).astype(np.float16) for _ in range(LAYERS)]
    agent = open_agent(f"engine-{os.getpid()}")
    agent.register_memory([(tensor.__array_interface__["data"][0], tensor.nbytes, 0, "") for tensor in tensors], "DRAM")
    np.save(file, np.stack(tensors))
    print(json.dumps({"metadata": agent.get_agent_metadata().hex(), "tensors": [RemoteTensor.describe(t) for t in tensors]}),
          file=answers, flush=True)
    # The wheel's libraries crash in a process that ends as usual.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        for notes in agent.get_new_notifs().values():
            for note in notes:
                np.save(file, np.stack(tensors))
                print(note.decode(), file=answers, flush=True)
        time.sleep(0.001)


main()
