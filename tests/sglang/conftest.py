"""Fixtures: SGLang engines, pools and models, which end with the test."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
import fixtures  # noqa: E402
from engine_process import EngineProcess, Pool  # noqa: E402,F401


class Engine(EngineProcess):
    """An SGLang engine. `answer` sends prompts and returns what engine.py says."""

    def __init__(self, model, linker=None, environment=None, **arguments):
        """linker: options of CachalotLinker; None: there is none."""
        given = {"model_path": str(model), **arguments}
        if linker is not None:
            given.update(enable_unified_cache_external_linker=True, unified_cache_external_linker_backend="dynamic",
                         unified_cache_external_linker_config={
                             "linker": "CachalotLinker", "linker_module_path": "cachalot.connectors.sglang",
                             "linker_extra_config": linker})
        super().__init__(HERE / "engine.py", given, {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})


models = pytest.fixture(fixtures.models_in("CACHALOT_SGLANG_MODELS"), scope="session")
engines = pytest.fixture(fixtures.closed_at_the_end(Engine))
pools = pytest.fixture(fixtures.pools_of("sglang"))
prompt = pytest.fixture(fixtures.prompt)
