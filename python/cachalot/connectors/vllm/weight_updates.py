"""Notices that vLLM's weights are updated in place, with or without a reset of its caches; and that vLLM sleeps.

vLLM tells a connector of a reset, which an operator may ask for as well, and of no update. All that it does to its workers
goes through one method of its executor, so each call that may write weights counts: also one of a user's function, or of a
method that a user has added to the workers. Trainers in the engine's process call the model's own method.

A sleep takes the memory of the engine's pages away. So copies end before it, and what the scheduler wanted to be stored
or offered after it is void: the pages have lost their bytes.
"""

import functools
import logging
import weakref
from collections import Counter
from typing import Any, Dict

from cachalot.connectors.access import weight_updates
from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.access.weights import state_of_folder

#: What vLLM calls on its workers that leaves the weights as they are; `sleep` of level 2 does not.
HARMLESS = frozenset((
    "add_lora", "adjust_rank", "check_health", "checkpoint_prepare", "checkpoint_restore", "compile_or_warm_up_model",
    "compute_weight_checksums", "determine_available_memory", "discard", "execute_dummy_batch", "execute_model",
    "get_encoder_timing_stats", "get_kv_cache_spec", "get_kv_connector_handshake_metadata", "get_model_inspection",
    "get_simple_cpu_offload_num_cpu_blocks", "get_supported_kv_cache_layouts", "get_supported_tasks", "handle_ft_command",
    "init_device", "init_weight_transfer_engine", "init_worker", "initialize_from_config", "list_loras", "pin_lora", "profile",
    "reinitialize_distributed", "release_late_interaction_query_cache", "remove_lora", "reset_encoder_cache",
    "reset_mm_cache", "sample_tokens", "save_sharded_state", "save_tensorized_model", "set_kv_cache_layout", "shutdown",
    "shutdown_weight_transfer_engine", "sleep", "supports_draft_weight_updates", "synchronize_device",
    "take_draft_token_ids", "update_environment_variables", "update_max_model_len", "wake_up"))
#: Updates that have begun in this process.
count = weight_updates.count
last = weight_updates.last
_sleeps = 0
#: Of a worker's process: what copies from and to the engine's pages.
_sides: "weakref.WeakSet[Any]" = weakref.WeakSet()
_reloads: "Counter[int]" = Counter()
_first_files: Dict[int, Any] = {}


def note_reload(adapter: int) -> None:
    """A worker replaces the adapter of this lora_int_id by what its path has now."""
    _reloads[adapter] += 1


def reloads(adapter: int) -> int:
    """How often an adapter was replaced in this process."""
    return _reloads[adapter]


def first_files(adapter: int) -> Any:
    """state_of_folder() of the adapter when the workers were told to load it. None: they load it with its first request."""
    return _first_files.get(adapter)


def sleeps() -> int:
    """How often vLLM has slept in this process, beginning with the one that is about to."""
    return _sleeps


def at_sleep(side: Any) -> None:
    """In a worker's process: side.end_copies() is called before the memory of the pages goes, between two steps."""
    _sides.add(side)


def end_copies(worker: Any) -> None:
    """vLLM calls it in each worker."""
    for side in list(_sides):
        side.end_copies()


def _watch_sleep(executor: type, name: str) -> None:
    sleep = getattr(executor, name)
    if getattr(sleep, "is_watched", False):
        return

    @functools.wraps(sleep)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        global _sleeps
        _sleeps += 1
        try:
            self.collective_rpc(end_copies)
        except Exception as error:  # the engine sleeps all the same
            logging.getLogger("vllm.cachalot").warning("cachalot: copies may not have ended before the engine sleeps: %s", error)
        return sleep(self, *arguments, **options)

    call.is_watched = True  # type: ignore[attr-defined]
    setattr(executor, name, call)


def _note_adapter(lora: Any) -> None:
    if getattr(lora, "load_inplace", False):
        note_reload(lora.lora_int_id)
    try:
        _first_files.setdefault(lora.lora_int_id, state_of_folder(lora.lora_path))
    except OSError:
        pass  # the load itself will tell


def _update_of(method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, *more: Any, **options: Any) -> str:
    if method == "add_lora":
        _note_adapter(args[0])
    if method is end_copies:
        return ""
    if method == "sleep" and (kwargs or {}).get("level", 1) > 1:
        return "sleep"  # without its weights: others may come
    return "" if method in HARMLESS else getattr(method, "__qualname__", str(method))


def _unnoticed(error: Exception) -> UnsupportedCacheError:
    return UnsupportedCacheError(f"a vLLM or a model whose updates of the weights go unnoticed ({error})")


def watch_workers(vllm_config: Any) -> None:
    """In the scheduler's process. Raises UnsupportedCacheError: this vLLM updates its weights in another way."""
    try:
        from vllm.v1.executor.abstract import Executor

        weight_updates.watch(Executor.get_class(vllm_config), "collective_rpc", _update_of)
        _watch_sleep(Executor.get_class(vllm_config), Executor.sleep.__name__)
    except Exception as error:  # whatever it is, the engine goes on without sharing
        raise _unnoticed(error) from error


def watch_model(model_config: Any) -> None:
    """In a worker's process, after the model is loaded. It counts for a scheduler in the same process.

    Raises UnsupportedCacheError: the model has no such method.
    """
    try:
        from vllm.model_executor.model_loader.utils import get_model_architecture

        weight_updates.watch(get_model_architecture(model_config)[0], "load_weights")
    except Exception as error:  # whatever it is, the engine goes on without sharing
        raise _unnoticed(error) from error
