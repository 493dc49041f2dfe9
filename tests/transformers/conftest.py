"""Fixtures: transformers engines, pools and models, which end with the test."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
import fixtures  # noqa: E402
from engine_process import EngineProcess  # noqa: E402

BLOCK_BYTES = 4 * 2 * 2 * 64 * 4 * 16  # of the model "llama": 16 tokens, f32


class Engine(EngineProcess):
    """`take_blocks` sends prompts, and returns how many blocks the engine asked of the pool, and used."""

    def __init__(self, model, pool=None, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        super().__init__(HERE / "engine.py", {"model": str(model), "pool": pool, **options}, environment)
        self.counts = {}

    def answer(self, prompts, **options):
        """Adds "asked" and "used": what the client's counts have grown by."""
        said = super().answer(prompts, **options)
        before, self.counts = self.counts, said["counts"]
        for name, count in (("asked", "prompt_blocks"), ("used", "used_pool_blocks"), ("prompts", "prompts")):
            said[name] = self.counts.get(count, 0) - before.get(count, 0)
        return said


def whole_blocks(tokens, block_tokens=16):
    """Blocks that a prompt can take: its last token is computed."""
    return (tokens - 1) // block_tokens


models = pytest.fixture(fixtures.models_in("CACHALOT_TRANSFORMERS_MODELS"), scope="session")
engines = pytest.fixture(fixtures.closed_at_the_end(Engine))
pools = pytest.fixture(fixtures.pools_of("transformers", BLOCK_BYTES, 512))
prompt = pytest.fixture(fixtures.prompt, scope="session")


@pytest.fixture(scope="module")
def alone(models):
    engine = Engine(models())
    yield engine
    engine.close()
