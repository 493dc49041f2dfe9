"""vLLM engines as processes, and pools for them."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
from engine_process import DEADLINE_S, PROGRAM, EngineProcess, Pool  # noqa: E402, F401


def has_avx512():
    return " avx512f " in Path("/proc/cpuinfo").read_text().replace("\n", " ")


class Engine(EngineProcess):
    """A vLLM engine. `answer` sends prompts and returns what engine.py says."""

    def __init__(self, model, connector=None, in_process=True, environment=None, transfer=None, place=None, **arguments):
        """connector: options of CachalotConnector, or of the one that `transfer` names; None: there is none."""
        if arguments.get("kv_cache_dtype") == "fp8" and not has_avx512():
            pytest.skip("vLLM's FP8 KV cache on a CPU needs AVX-512")
        given = {"model": str(model), **arguments}
        if connector is not None and "CACHALOT_FAKE_LIBCUDA" in os.environ:  # make test-vllm-gpu
            given["worker_cls"] = ("emulated_gpu.EmulatedGpuPipelineWorker" if "worker_cls" in arguments else
                                   "emulated_gpu.EmulatedGpuWorker")
        if connector is not None:
            given["kv_transfer_config"] = {"kv_connector": "CachalotConnector", "kv_role": "kv_both",
                                           "kv_connector_extra_config": connector, **(transfer or {})}
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                     "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1", **(environment or {})}
        super().__init__(HERE / "engine.py", given, variables, place=place)
