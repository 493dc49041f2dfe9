"""Notices that SGLang's weights are updated in place, with or without a flush of its cache; and that it releases its memory.

SGLang tells a linker of a flush, which an operator may ask for as well, and of no update. So the methods of its scheduler by
which every update begins are watched. The release takes the memory of the engine's pages away before the flush. So copies end
before it.
"""

import functools
import inspect
import weakref
from typing import Any, Callable, List

from cachalot.connectors.access import weight_updates
from cachalot.connectors.access.group import UnsupportedCacheError

#: update_weights_from_tensor and _from_distributed need a session, which begin_weight_update opens.
_BEGINNINGS = ("begin_weight_update", "update_weights_from_disk", "update_weights_from_ipc", "update_weights_from_tensor",
               "update_weights_from_distributed")
#: Any other method with "update" in its name begins one, too: later versions have more. But not these.
_PARTS = frozenset(("destroy_weights_update_group", "end_weight_update", "flush_cache_after_weight_update",
                    "init_weights_update_group", "iter_weight_update_workers", "prepare_weight_update",
                    "record_weight_version_after_update"))
#: Updates that have begun in this process since watch().
count = weight_updates.count
_copies: List["weakref.WeakMethod[Callable[[], None]]"] = []


def at_release(end_copies: Callable[[], None]) -> None:
    """A method to be called before SGLang releases the memory of its pages. This does not keep its object alive."""
    _copies.append(weakref.WeakMethod(end_copies))


def _watch_release(updater: type, keeps_weights: bool) -> None:
    method = updater.release_memory_occupation  # type: ignore[attr-defined]
    if getattr(method, "is_watched", False):
        return

    @functools.wraps(method)
    def release(self: Any, *arguments: Any, **options: Any) -> Any:
        for one in _copies:
            end_copies = one()
            if end_copies is not None:
                end_copies()
        return method(self, *arguments, **options)

    def update_of(request: Any) -> str:
        """Released weights come back with other bytes, if SGLang has kept no copy of them."""
        return "release" if not keeps_weights and (not request.tags or "weights" in request.tags) else ""

    updater.release_memory_occupation = release  # type: ignore[attr-defined]
    weight_updates.watch(updater, "release_memory_occupation", update_of)


def watch_updater(updater: type, keeps_weights: bool) -> None:
    """Raises AttributeError: it lacks a method."""
    others = [name for name, member in vars(updater).items()
              if inspect.isfunction(member) and "update" in name and not name.startswith("_") and name not in _PARTS]
    for name in sorted({*_BEGINNINGS, *others}):
        weight_updates.watch(updater, name)
    _watch_release(updater, keeps_weights)


def watch(server_args: Any) -> int:
    """Raises UnsupportedCacheError: this SGLang updates its weights in another way."""
    try:
        from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as updater

        watch_updater(updater, getattr(server_args, "enable_weights_cpu_backup", False))
    except (ImportError, AttributeError) as error:
        raise UnsupportedCacheError(f"this version of SGLang, whose updates of the weights go unnoticed ({error}),") from error
    return count()
