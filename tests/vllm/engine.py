"""One vLLM engine in a process of its own, driven by lines of JSON.

stdin, one object a line; an empty line or the end stops it:
    {"prompts": [[token…]…], "max_tokens": n, "adapter": FOLDER, "salt": text, "image": seed, "params": kv_transfer_params}
        answers {"tokens": [[…]…], "cached": [n…], "metrics": {…}}
    {"prompts": […], "abort_after": n}    aborts them after n steps of the engine; answers {}
    {"copy": FILE, "bytes": n}    copies bytes of a file; answers {"seconds": s}
    {"reset": true, "connector": false}    resets all caches, or all but the connector's; answers {"reset": whether it did}
    {"update": FOLDER, "by": "rpc" | "function" | "trainer"}    loads other weights in place; answers {}
    {"adapter": FOLDER, "reload": true}    loads the adapter in place over the one before; answers {}
    {"fork": true}    a child shuts its copies of the connector down and exits; answers {"exit": its code}
stdout, one line each. The first line says {"ready": seconds}.

usage: engine.py '{"model": FOLDER, "kv_transfer_config": {…}, …}'    arguments of vllm.LLM
"""

import functools
import json
import os
import random
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")


def metrics_of(llm) -> dict:
    values = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        if value is not None and ("prefix_cache" in metric.name or "connector" in metric.name or
                                  "cachalot" in metric.name or "by_source" in metric.name or
                                  "spec_decode" in metric.name):
            labels = {k: v for k, v in (metric.labels or {}).items() if k not in ("model_name", "engine")}
            name = metric.name + ("{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}" if labels else "")
            values[name] = values.get(name, 0) + value
    return {**values, **seconds()}


def seconds() -> dict:
    """The connector's counters of seconds: get_metrics() makes whole numbers of them."""
    from prometheus_client import REGISTRY

    found = {}
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if metric.name.startswith("vllm:cachalot") and sample.name.endswith("_seconds_total"):
                found[metric.name] = found.get(metric.name, 0) + sample.value
    return found


def abort(llm, asked, sampling) -> dict:
    names = [f"aborted-{i}-{time.monotonic_ns()}" for i in range(len(asked["prompts"]))]
    engine = llm.llm_engine
    for name, prompt in zip(names, asked["prompts"]):
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    for _ in range(asked["abort_after"]):
        engine.step()
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return {}


class Copies:
    """Plain copies out of a mapped file, from and to memory that no cache holds."""

    def __init__(self, path: str) -> None:
        import numpy as np

        self.source = np.memmap(path, np.uint8, "r")
        self.target = np.ones(256 << 20, np.uint8)
        int(self.source.sum())  # the process's first access of a page costs more

    def seconds(self, size: int) -> float:
        source = self.source[random.randrange(0, len(self.source) - size, 4096) :][:size]
        target = self.target[random.randrange(0, len(self.target) - size, 4096) :][:size]
        began = time.perf_counter()
        target[:] = source
        return time.perf_counter() - began


@functools.lru_cache
def copies(path: str) -> Copies:
    return Copies(path)


def fork(llm) -> dict:
    child = os.fork()
    if child == 0:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().shutdown()
        llm.llm_engine.engine_core.engine_core.scheduler.connector.shutdown()
        os._exit(0)
    return {"exit": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def update(llm, folder: str, by: str) -> dict:
    if by == "rpc":
        llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        return {}
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload.inplace import reload_weights

    def load(model) -> None:
        with set_current_vllm_config(llm.llm_engine.vllm_config):
            reload_weights(llm.llm_engine.vllm_config, model, None, folder, True)

    if by == "function":
        llm.apply_model(load)
    else:  # a trainer in the engine's process
        load(llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.get_model())
    return {}


def adapter_of(asked):
    from vllm.lora.request import LoRARequest

    folder = asked.get("adapter")
    return LoRARequest("tuned", 1, folder, load_inplace=asked.get("reload", False)) if folder else None


def image(seed: int):
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (28, 28, 3), dtype=np.uint8))


def generate(llm, asked, sampling) -> dict:
    more = {"cache_salt": asked["salt"]} if "salt" in asked else {}
    if "image" in asked:
        more["multi_modal_data"] = {"image": image(asked["image"])}
    began = time.monotonic()
    done = llm.generate([{"prompt_token_ids": prompt, **more} for prompt in asked["prompts"]], sampling, use_tqdm=False,
                        lora_request=adapter_of(asked))
    return {"tokens": [list(one.outputs[0].token_ids) for one in done],
            "cached": [one.num_cached_tokens for one in done],
            "reasons": [one.outputs[0].finish_reason for one in done],
            "seconds": time.monotonic() - began, "metrics": metrics_of(llm)}


def main() -> None:
    # vLLM prints to stdout; what the test reads goes another way.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.monotonic()
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    arguments = json.loads(sys.argv[1])
    if arguments.get("kv_transfer_config"):
        arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
    arguments = {"enforce_eager": True, "kv_cache_memory_bytes": 64 << 20, "max_model_len": 4096,
                 "disable_log_stats": False, "seed": 0, **arguments}
    llm = LLM(**arguments)

    def say(value) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    say({"ready": time.monotonic() - began})
    for line in sys.stdin:
        if not line.strip():
            break
        asked = json.loads(line)
        params = {"extra_args": {"kv_transfer_params": asked["params"]}} if "params" in asked else {}
        sampling = SamplingParams(temperature=0, max_tokens=asked.get("max_tokens", 16), ignore_eos=True, **params)
        if "copy" in asked:
            say({"seconds": copies(asked["copy"]).seconds(asked["bytes"])})
        elif asked.get("reset"):
            say({"reset": llm.reset_prefix_cache(reset_connector=asked.get("connector", True))})
        elif "update" in asked:
            say(update(llm, asked["update"], asked["by"]))
        elif asked.get("reload"):
            llm.llm_engine.add_lora(adapter_of(asked))
            say({})
        elif asked.get("fork"):
            say(fork(llm))
        elif "abort_after" in asked:
            say(abort(llm, asked, sampling))
        else:
            say(generate(llm, asked, sampling))
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)  # vLLM's threads may keep the process


if __name__ == "__main__":
    main()
