"""One SGLang engine in a process of its own, driven by lines of JSON.

stdin, one object a line; an empty line or the end stops it:
    {"prompts": [[token…]…], "max_tokens": n, "salt": text}    answers {"tokens": [[…]…], "cached": [n…], "details": [{…}…]}
        "stream": true, with one prompt: answers first_s as well, seconds to the first token
    {"flush": true}    flushes the cache; answers {"flush": whether it did}
    {"update": FOLDER, "flush": bool}    updates the weights in place; answers {"update": whether it did}
    {"metrics": true}    of an engine with enable_metrics; answers {"metrics": {name: sum over its processes, …}}
stdout, one line each. The first line says {"ready": seconds}.

usage: engine.py '{"model_path": FOLDER, …}'    arguments of sglang.Engine
"""

import json
import os
import sys
import time

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def generate(engine, asked) -> dict:
    sampling = {"temperature": 0, "max_new_tokens": asked.get("max_tokens", 16), "ignore_eos": True}
    began = time.monotonic()
    options = {"cache_salt": asked["salt"]} if "salt" in asked else {}
    done = engine.generate(input_ids=asked["prompts"], sampling_params=sampling, **options)
    return {"tokens": [one["output_ids"] for one in done],
            "cached": [one["meta_info"]["cached_tokens"] for one in done],
            "details": [one["meta_info"].get("cached_tokens_details") for one in done],
            "reasons": [one["meta_info"]["finish_reason"]["type"] for one in done],
            "seconds": time.monotonic() - began}


def stream(engine, asked) -> dict:
    """Of one prompt."""
    sampling = {"temperature": 0, "max_new_tokens": asked.get("max_tokens", 16), "ignore_eos": True}
    began, first, last = time.monotonic(), None, None
    for last in engine.generate(input_ids=asked["prompts"][0], sampling_params=sampling, stream=True):
        first = first or time.monotonic() - began
    seen = last["meta_info"]
    return {"first_s": first, "seconds": time.monotonic() - began, "cached": [seen["cached_tokens"]],
            "details": [seen.get("cached_tokens_details")]}


def update(engine, folder, flush) -> bool:
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    asked = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=flush)
    success, message = engine.loop.run_until_complete(engine.tokenizer_manager.update_weights_from_disk(asked, None))[:2]
    print(message, file=sys.stderr)
    return success


def metrics() -> dict:
    from prometheus_client import CollectorRegistry, multiprocess

    registry, found = CollectorRegistry(), {}
    multiprocess.MultiProcessCollector(registry)
    for metric in registry.collect():
        for sample in metric.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return {"metrics": found}


def main() -> None:
    # SGLang prints to stdout; what the test reads goes another way.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.monotonic()
    import sglang

    arguments = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch", "skip_tokenizer_init": True,
                 "dtype": "float32", "max_total_tokens": 8192, "page_size": 16, "disable_cuda_graph": True, "log_level": "info",
                 "mem_fraction_static": 0.3, "context_length": 4096, "skip_server_warmup": True, "random_seed": 0, "sleep_on_idle": True,
                 **json.loads(sys.argv[1])}
    engine = sglang.Engine(**arguments)

    def say(value) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    say({"ready": time.monotonic() - began})
    for line in sys.stdin:
        if not line.strip():
            break
        asked = json.loads(line)
        if "update" in asked:
            say({"update": update(engine, asked["update"], asked["flush"])})
        elif "metrics" in asked:
            say(metrics())
        elif "flush" in asked:
            say({"flush": bool(engine.flush_cache().success)})
        else:
            say((stream if asked.get("stream") else generate)(engine, asked))
    engine.shutdown()


if __name__ == "__main__":
    main()
