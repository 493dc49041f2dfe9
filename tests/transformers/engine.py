"""One transformers engine in a process of its own, driven by lines of JSON.

stdin, one object a line; an empty line or the end stops it:
    {"prompts": [[token…]…], "max_tokens": n}    answers {"tokens": [[…]…], "counts": statistics of the client}
stdout, one line each. The first line says {"ready": seconds}.

usage: engine.py '{"model": FOLDER, "pool": PATH or null, "config": {…}, …}'
    config: arguments of ContinuousBatchingConfig
    dtype: of the model
    fault: "short", "timeout": each load ends after 2 blocks, without or with an error
"""

import json
import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/transformers"))


class FaultyClient:
    """A client whose loads end early."""

    def __init__(self, client, raises):
        self._client, self._raises = client, raises

    def __getattr__(self, name):
        return getattr(self._client, name)

    def load(self, pages, hashes, places, timeout):
        import cachalot

        loaded = self._client.load(pages, hashes[:2], places[:2], timeout=timeout)
        if not self._raises:
            return loaded
        error = cachalot.TimeoutError("injected")
        error.detail = loaded
        raise error


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    import shared_prefix
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    given = json.loads(sys.argv[1])
    shared_prefix.RETRY_S = 0.1
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, given.get("dtype", "float32")))
    config = ContinuousBatchingConfig(**{"page_size": 16, "num_blocks": 512, "max_batch_tokens": 512, **given.get("config", {})})
    manager = model.init_continuous_batching(GenerationConfig(do_sample=False, eos_token_id=-1), config)
    shared = shared_prefix.SharedPrefixes(manager, given["model"], given["pool"]) if given["pool"] else None
    if "fault" in given:
        shared.client = FaultyClient(shared.client, given["fault"] == "timeout")
    manager.start()

    def say(value):
        out.write(json.dumps(value) + "\n")
        out.flush()

    say({"ready": time.monotonic() - began})
    for line in sys.stdin:
        if not line.strip():
            break
        asked = json.loads(line)
        names = [manager.add_request(prompt, max_new_tokens=asked.get("max_tokens", 16)) for prompt in asked["prompts"]]
        done = {}
        while len(done) < len(names):
            result = manager.get_result(timeout=300)
            assert result is not None and result.error is None, result and result.error
            done[result.request_id] = result.generated_tokens
        counts = shared.client.statistics.as_dict() if shared and shared.client else {}
        say({"tokens": [done[name] for name in names], "counts": counts})
    manager.stop()


if __name__ == "__main__":
    main()
