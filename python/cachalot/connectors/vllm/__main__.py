"""Prints the `cachalot serve` line of a pool for a model: python -m cachalot.connectors.vllm MODEL"""

import argparse
import re
import shlex
import sys
from typing import List, Optional

from cachalot import Error
from cachalot.connectors.access.block_size import ConfigError, Parallel, geometry_of, read_config

_LINE_BYTES = 64


def _dtype_of(kv_cache_dtype: str, model_dtype: str) -> Optional[str]:
    """Raises ConfigError. None: one of 16 bits."""
    if kv_cache_dtype == "auto" and model_dtype in ("float", "float32"):
        return "f32"
    known = {"auto": None, "bfloat16": "bf16", "float16": "f16", "fp8": "f8", "fp8_e4m3": "f8", "fp8_e5m2": "f8", "fp8_inc": "f8"}
    if kv_cache_dtype in known:
        return known[kv_cache_dtype]
    raise ConfigError(f"--kv-cache-dtype: {kv_cache_dtype}, expected one of {', '.join(known)}; the engine alone can size blocks of "
                      "others: start it once, its log says how many bytes a block has")


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code: 0 done; 2 the model or a flag is wrong."""
    parser = argparse.ArgumentParser(prog="python -m cachalot.connectors.vllm", description=(
        "Prints the `cachalot serve` line of a pool for a model that vLLM serves with these flags."))
    parser.add_argument("model", metavar="MODEL", help="a config.json, the folder that has it, or a name of Hugging Face")
    parser.add_argument("--block-size", type=int, default=16, help="vLLM's --block-size, in tokens (default: 16; on the CPU 128)")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--dtype", default="auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
                        help="vLLM's --dtype; auto: 16 bits, also of a float32 model")
    parser.add_argument("--kv-cache-dtype", default="auto", help="vLLM's --kv-cache-dtype: auto, or fp8 and its kinds")
    parser.add_argument("--pool", default="/dev/shm/kv", help="the pool's path (default: %(default)s)")
    parser.add_argument("--size", default="64GiB", help="what the pool takes in all (default: %(default)s)")
    flags = parser.parse_args(arguments)
    try:
        dtype = _dtype_of(flags.kv_cache_dtype, flags.dtype)
        if not re.fullmatch(r"[1-9]\d*(\.\d+)?[KMGT]i?B", flags.size):
            raise ConfigError(f"--size: {flags.size}, expected a number and a unit, such as 64GiB")
        for name in ("block_size", "tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(flags, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}: {getattr(flags, name)}, expected at least 1")
        geometry = geometry_of(read_config(flags.model), flags.block_size,
                               Parallel(flags.tensor_parallel_size, flags.pipeline_parallel_size), dtype)
    except (ConfigError, Error) as error:
        print(f"cachalot: {error}", file=sys.stderr)
        return 2
    size = -(-geometry.block_bytes // _LINE_BYTES) * _LINE_BYTES
    print(f"cachalot serve --pool {shlex.quote(flags.pool)} --create --block-bytes {size} --size {shlex.quote(flags.size)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
