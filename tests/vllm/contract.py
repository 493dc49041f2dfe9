"""What the connector and the tier need of vLLM, read from their sources, beside what a version of vLLM has."""

import ast
from pathlib import Path

from source_contract import Contract, trees_of
from wheel import own_members

PACKAGE = Path(__file__).resolve().parents[2] / "python/cachalot/connectors"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
TIER = "vllm.v1.kv_offload.tiering.base"

#: What an expression in a source file is in vLLM.
OBJECTS = {
    "vllm/scheduler.py": {
        "request": "vllm.v1.request:Request",
        "self.request": "vllm.v1.request:Request",
        "lora": "vllm.lora.request:LoRARequest",
        "blocks": "vllm.v1.core.kv_cache_manager:KVCacheBlocks",
        "output": "vllm.v1.core.sched.output:SchedulerOutput",
        "output.kv_connector_block_state": "vllm.v1.core.sched.output:KVConnectorBlockState",
        "new": "vllm.v1.core.sched.output:NewRequestData",
        "cached": "vllm.v1.core.sched.output:CachedRequestData",
    },
    "vllm/held_pages.py": {"self._pool": "vllm.v1.core.block_pool:BlockPool"},
    "vllm/prefill_times.py": {
        "request": "vllm.v1.request:Request",
        "output": "vllm.v1.core.sched.output:SchedulerOutput",
        "new": "vllm.v1.core.sched.output:NewRequestData",
    },
    "vllm/weight_updates.py": {
        "Executor": "vllm.v1.executor.abstract:Executor",
        "lora": "vllm.lora.request:LoRARequest",
    },
    "vllm/transfer/scheduler.py": {
        "request": "vllm.v1.request:Request",
        "blocks": "vllm.v1.core.kv_cache_manager:KVCacheBlocks",
        "output": "vllm.v1.core.sched.output:SchedulerOutput",
        "new": "vllm.v1.core.sched.output:NewRequestData",
    },
    "vllm/transfer/worker.py": {"parallel": "vllm.config:ParallelConfig"},
    "vllm/connector.py": {
        "connector_output": "vllm.v1.outputs:KVConnectorOutput",
        "transfer": "vllm.config:KVTransferConfig",
        "vllm_config": "vllm.config:VllmConfig",
        "parallel": "vllm.config:ParallelConfig",
    },
    "vllm/namespace.py": {
        "vllm_config": "vllm.config:VllmConfig",
        "model_config": "vllm.config:ModelConfig",
        "cache_config": "vllm.config:CacheConfig",
        "kv_cache_config": "vllm.v1.kv_cache_interface:KVCacheConfig",
        "group": "vllm.v1.kv_cache_interface:KVCacheGroupSpec",
        "spec": "vllm.v1.kv_cache_interface:FullAttentionSpec",
        "state": "vllm.v1.kv_cache_interface:MambaSpec",
        "several": "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs",
    },
    "vllm/tier/cachalot_tier.py": {
        "job_metadata": "vllm.v1.kv_offload.tiering.base:TransferJob",
        "given": "vllm.v1.kv_offload.tiering.base:TransferJob",
        "req_context": "vllm.v1.kv_offload.base:ReqContext",
        "offloading_spec": "vllm.v1.kv_offload.base:OffloadingSpec",
        "group": "vllm.v1.kv_offload.config:OffloadingGroupConfig",
        "self._stats": "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics:OffloadingConnectorStats",
    },
    "vllm/tier/names.py": {
        "config": "vllm.v1.kv_offload.config:OffloadingConfig",
        "config.cache": "vllm.v1.kv_offload.config:OffloadingCacheConfig",
        "group": "vllm.v1.kv_offload.config:OffloadingGroupConfig",
        "parallel": "vllm.v1.kv_offload.config:OffloadingParallelConfig",
        "transfer": "vllm.config:KVTransferConfig",
    },
}


def sources(part):
    """The files of the connector ("connector") or of the tier."""
    return trees_of(PACKAGE, ["vllm/tier"] if part == "tier" else ["vllm", "vllm/transfer", "."])


def check_runner(wheel):
    """The results of loads come from the hook that vLLM asks."""
    runner = "vllm.v1.worker.kv_connector_model_runner_mixin"
    ours = own_members(next(node for node in sources("connector")["vllm/connector.py"].body
                            if isinstance(node, ast.ClassDef)))
    asked = "get_transfer_results" if wheel.calls(runner, "get_transfer_results") else "get_finished"
    if asked not in ours:
        yield f"vllm/connector.py: the runner asks {asked}()"


def check_states(wheel):
    """Of a state that a step completes, vLLM names the group, the page and the tokens before it, in this order."""
    if not wheel.has_text("vllm/v1/core/", "(group_id, block.block_id, boundary_tokens)"):
        yield "vllm/scheduler.py: boundary_state_offloads has no (group_id, block_id, boundary_tokens)"


def check_tier_caller(wheel):
    """The tier finds the engine's configuration in the function that makes it."""
    found = wheel.find_class("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler",
                             "OffloadingConnectorScheduler")
    names = found.members["__init__"].parameters()[0] if found is not None else []
    if "vllm_config" not in names:
        yield "vllm/tier/names.py: OffloadingConnectorScheduler.__init__ has no vllm_config"


def problems(wheel, part):
    """Everything that a version of vLLM lacks for the connector or for the tier, one line each."""
    found = Contract("vLLM", sources(part), OBJECTS, ("CachalotConnector", "CachalotTier")).problems(wheel)
    checks = (check_runner, check_states) if part == "connector" else (check_tier_caller,)
    return found + [problem for check in checks for problem in check(wheel)]
