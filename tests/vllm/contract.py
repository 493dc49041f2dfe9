"""What the connector and the tier need of vLLM, read from their sources, beside what a version of vLLM has."""

import ast
from pathlib import Path

from wheel import own_members, statements

PACKAGE = Path(__file__).resolve().parents[2] / "python/cachalot/connectors"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
TIER = "vllm.v1.kv_offload.tiering.base"

#: What an expression in a source file is in vLLM. Each attribute that is read from it must exist; an attribute that is
#: read by getattr() with a default may be missing.
OBJECTS = {
    "vllm/scheduler.py": {
        "request": "vllm.v1.request:Request",
        "self.request": "vllm.v1.request:Request",
        "lora": "vllm.lora.request:LoRARequest",
        "blocks": "vllm.v1.core.kv_cache_manager:KVCacheBlocks",
        "output": "vllm.v1.core.sched.output:SchedulerOutput",
        "new": "vllm.v1.core.sched.output:NewRequestData",
        "cached": "vllm.v1.core.sched.output:CachedRequestData",
    },
    "vllm/held_pages.py": {"self._pool": "vllm.v1.core.block_pool:BlockPool"},
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
    folders = ["vllm/tier"] if part == "tier" else ["vllm", "vllm/transfer", "."]
    files = sorted(path for folder in folders for path in PACKAGE.glob(f"{folder}/*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in files}


def imports_of(tree):
    """(module, name, whether it may be missing) of each import from vLLM."""
    optional = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers
                for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                yield node.module, alias.name, id(node) in optional


def check_imports(wheel, part):
    for file, tree in sources(part).items():
        for module, name, is_optional in imports_of(tree):
            if not is_optional and not wheel.defines(module, name):
                yield f"{file}: vLLM has no {module}.{name}"


def check_signature(file, ours, theirs):
    """Whether vLLM's calls of a hook fit ours."""
    if theirs.function is None or ours.function is None:
        return
    if ours.is_property != theirs.is_property:
        yield f"{file}: {ours.name}: a property in one, a method in the other"
        return
    (named, takes_all), (wanted, _) = ours.parameters(), theirs.parameters()
    missing = [name for name in wanted if name not in named]
    if missing and not takes_all:
        yield f"{file}: {ours.name}: vLLM gives {', '.join(missing)}"
    elif named[: len(wanted)] != [name for name in wanted if name not in missing]:
        yield f"{file}: {ours.name}: vLLM gives ({', '.join(wanted)}), ours takes ({', '.join(named)})"
    defaults = ours.function.args.defaults
    needed = [name for name in named[: len(named) - len(defaults)] if name not in wanted]
    if needed:
        yield f"{file}: {ours.name}: vLLM does not give {', '.join(needed)}"


def check_classes(wheel, part):
    """Each of our classes with bases in vLLM: nothing abstract is left, overrides fit, and hooks exist."""
    for file, tree in sources(part).items():
        origin = {name: module for module, name, _ in imports_of(tree)}
        for node in statements(tree.body):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [wheel.find_class(origin[name], name) for name in map(ast.unparse, node.bases) if name in origin]
            if not bases or None in bases:
                continue  # no base in vLLM, or one that check_imports() misses
            theirs = {name: member for base in reversed(bases) for name, member in base.members.items()}
            ours = own_members(node)
            for name, member in theirs.items():
                if member.is_abstract and name not in ours:
                    yield f"{file}: {node.name} lacks the abstract {name}()"
            for name, member in ours.items():
                if name in theirs and name != "__init__":
                    yield from check_signature(file, member, theirs[name])
                elif member.function is not None and not name.startswith("_") and are_hooks(node.name):
                    yield f"{file}: vLLM never calls {node.name}.{name}()"


def check_arguments(call, wanted, takes_all):
    """Arguments of a call that a function of these parameters does not take."""
    surplus = [ast.unparse(one) for one in call.args[len(wanted):] if not isinstance(one, ast.Starred)]
    return surplus + [one.arg for one in call.keywords if one.arg and one.arg not in wanted and not takes_all]


def check_calls(wheel, part):
    """What we call in vLLM takes what we give: base classes' methods by super(), and classes that we make."""
    for file, tree in sources(part).items():
        origin = {name: module for module, name, _ in imports_of(tree)}
        found = {name: wheel.find_class(module, name) for name, module in origin.items()}
        for node in statements(tree.body):
            bases = [found.get(ast.unparse(base)) for base in getattr(node, "bases", [])]
            for call in ast.walk(node):
                if not isinstance(call, ast.Call):
                    continue
                function = ast.unparse(call.func)
                if function.startswith("super()."):
                    named = [base.members[function[8:]] for base in bases if base and function[8:] in base.members]
                    for wanted, takes_all in [one.parameters() for one in named if one.function is not None][:1]:
                        for surplus in check_arguments(call, wanted, takes_all):
                            yield f"{file}: {node.name}: {function}() does not take {surplus}"
                elif found.get(function) is not None and "__init__" not in found[function].members:
                    fields = [name for name, one in found[function].members.items() if one.function is None]
                    for surplus in check_arguments(call, fields, False):
                        yield f"{file}: {function} has no {surplus}"


def are_hooks(name):
    """Whether all public methods of this class are called by vLLM only."""
    return name in ("CachalotConnector", "CachalotTier")


def attributes_of(tree, expression):
    return {node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == expression}


def check_attributes(wheel, part):
    trees = sources(part)
    for file, expressions in OBJECTS.items():
        if file not in trees:
            continue
        for expression, place in expressions.items():
            module, name = place.split(":")
            read = attributes_of(trees[file], expression)
            found = wheel.find_class(module, name)
            if not read:
                yield f"{file}: reads nothing from {expression}: correct OBJECTS in contract.py"
            elif found is None:
                yield f"{file}: vLLM has no {module}.{name}"
            else:
                for attribute in sorted(read - set(found.members)):
                    yield f"{file}: {name} has no {attribute}"


def check_runner(wheel):
    """The results of loads come from the hook that vLLM asks."""
    runner = "vllm.v1.worker.kv_connector_model_runner_mixin"
    ours = own_members(next(node for node in sources("connector")["vllm/connector.py"].body
                            if isinstance(node, ast.ClassDef)))
    asked = "get_transfer_results" if wheel.calls(runner, "get_transfer_results") else "get_finished"
    if asked not in ours:
        yield f"vllm/connector.py: the runner asks {asked}()"


def check_tier_caller(wheel):
    """The tier finds the engine's configuration in the function that makes it."""
    found = wheel.find_class("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler",
                             "OffloadingConnectorScheduler")
    names = found.members["__init__"].parameters()[0] if found is not None else []
    if "vllm_config" not in names:
        yield "vllm/tier/names.py: OffloadingConnectorScheduler.__init__ has no vllm_config"


def problems(wheel, part):
    """Everything that a version of vLLM lacks for the connector or for the tier, one line each."""
    checks = (check_imports, check_classes, check_calls, check_attributes)
    found = [problem for check in checks for problem in check(wheel, part)]
    return found + list(check_runner(wheel) if part == "connector" else check_tier_caller(wheel))
