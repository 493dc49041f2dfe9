"""Fixtures: engines, pools and models, which end with the test."""

import pytest
from processes import Engine
import fixtures

models = pytest.fixture(fixtures.models_in("CACHALOT_VLLM_MODELS"), scope="session")
engines = pytest.fixture(fixtures.closed_at_the_end(Engine))
#: For all tests of a module, for example engines without a connector.
lasting_engines = pytest.fixture(fixtures.closed_at_the_end(Engine), scope="module")
pools = pytest.fixture(fixtures.pools_of("vllm"))
lasting_pools = pytest.fixture(fixtures.pools_of("vllm_lasting"), scope="module")
prompt = pytest.fixture(fixtures.prompt)


@pytest.fixture(scope="module")
def stage(request, models, tmp_path_factory):
    """The `Stage` of the test's module: servers that all its tests use. Made with a folder for logs and a model."""
    made = request.module.Stage(tmp_path_factory.mktemp("servers"), models())
    yield made
    made.close()
