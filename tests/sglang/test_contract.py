"""What the linker and HiCache's storage use of SGLang, beside the sources of its last versions. Nothing of SGLang runs.

The wheels are downloaded once (40 MB each). CACHALOT_SGLANG_WHEELS: the folder to keep them in, default build/sglang/wheels.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE
from source_contract import Contract, attributes_of, trees_of
from wheel import Changed, Wheel

ROOT = HERE.parents[1]
PACKAGE = ROOT / "python/cachalot/connectors"
FOLDER = Path(os.environ.get("CACHALOT_SGLANG_WHEELS") or ROOT / "build/sglang/wheels")
NEWEST = "0.5.23"
#: Their linkers are SGLang's own only: no flag takes another one. HiCache takes a storage of any package.
OLDER = ["0.5.22", "0.5.21"]
OBJECTS = {
    "sglang/linker.py": {"params": "sglang.srt.mem_cache.cache_init_params:CacheInitParams"},
    "sglang/hicache.py": {
        "storage_config": "sglang.srt.mem_cache.hicache_storage:HiCacheStorageConfig",
        "config": "sglang.srt.mem_cache.hicache_storage:HiCacheStorageConfig",
        "one": "sglang.srt.mem_cache.hicache_storage:PoolTransfer",
    },
    "sglang/namespace.py": {"model": "sglang.srt.configs.model_config:ModelConfig"},
}
#: What has the user's arguments. SGLang assembles their class from fields, one a line, in a folder.
ARGUMENTS = {"sglang/linker.py": "server_args", "sglang/hicache.py": "args", "sglang/namespace.py": "args"}
FIELDS = "sglang/srt/arg_groups/fields/"


def wheel_of(version):
    pattern = f"sglang-{version}-*.whl"
    if not any(FOLDER.glob(pattern)):
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                        f"sglang=={version}", "-d", str(FOLDER)], check=True, timeout=900)
    return Wheel(next(FOLDER.glob(pattern)), "sglang")


def problems(wheel, without=()):
    """Everything that a version of SGLang lacks, one line each. without: files of ours that it does not use."""
    trees = {file: tree for file, tree in trees_of(PACKAGE, ["sglang"]).items() if file not in without}
    found = Contract("SGLang", trees, OBJECTS, ("CachalotLinker",)).problems(wheel)
    for file, expression in ARGUMENTS.items():
        if file in trees:
            read = attributes_of(trees[file], expression)
            assert read, file
            found += [f"{file}: no argument {name}" for name in sorted(read) if not wheel.has_text(FIELDS, f"    {name}: A[")]
    updater = wheel.find_class("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager")
    beginnings = next(node.value for node in trees["sglang/weight_updates.py"].body
                      if isinstance(node, ast.Assign) and node.targets[0].id == "_BEGINNINGS")
    for place, name in (("unified_cache_linker:UnifiedCacheLinkerWrapper", "_offload_node"),
                        ("unified_tree_core_interface:UnifiedTreeCoreInterface", "get_prefix_hash_values")):
        module, _, owner = place.partition(":")
        told = wheel.find_class("sglang.srt.mem_cache.unified_cache." + module, owner)
        if "sglang/linker.py" in trees and (told is None or name not in told.members):
            found.append(f"no method {name}, by which the parents of offloads are told")
    if updater is None or "release_memory_occupation" not in updater.members:
        found.append("no method release_memory_occupation, before which copies end")
    return found + [f"no method {name}, with which updates of the weights begin" for name in ast.literal_eval(beginnings)
                    if updater is None or name not in updater.members]


def test_the_newest_version_has_what_we_use():
    assert problems(wheel_of(NEWEST)) == []


@pytest.mark.parametrize("version", OLDER)
def test_an_older_version_has_what_the_storage_of_hicache_uses(version):
    assert problems(wheel_of(version), without=["sglang/linker.py"]) == []


@pytest.mark.parametrize("version", [NEWEST, *OLDER])
def test_whether_a_flag_takes_our_linker_is_known(version):
    assert wheel_of(version).has_text(FIELDS, "unified_cache_external_linker_config") == (version == NEWEST)


CHANGES = {
    "a hook": ("def start_layer_wise_loading", "def begin_loading", "lacks the abstract begin_loading"),
    "a parameter": ("session_id: Optional[str] = None\n    ) -> bool:", "session_id: Optional[str] = None, tenant: str = None\n    ) -> bool:",
                    "SGLang gives tenant"),
    "an import": ("class PoolTransferResult", "class TransferResult", "has no sglang.srt.mem_cache.hicache_storage.PoolTransferResult"),
    "a field": ("attn_tp_cache_group:", "cache_group_of_ranks:", "CacheInitParams has no attn_tp_cache_group"),
    "an argument": ("    json_model_override_args: A[", "    model_overrides: A[", "no argument json_model_override_args"),
    "how offloads are told": ("def _offload_node(", "def _queue_offload(", "no method _offload_node"),
    "the tree's question": ("def get_prefix_hash_values", "def prefix_hash_values", "no method get_prefix_hash_values"),
    "how an update begins": ("def begin_weight_update", "def open_weight_update", "no method begin_weight_update"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_sglang_is_seen(change):
    old, new, expected = CHANGES[change]
    seen = problems(Changed(wheel_of(NEWEST), old, new))
    assert any(expected in line for line in seen), seen
