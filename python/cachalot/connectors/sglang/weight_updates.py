"""Notices that SGLang's weights are updated in place, with or without a flush of its cache.

SGLang tells a linker of a flush, which an operator may ask for as well, and of no update. So the methods of its scheduler by
which every update begins are wrapped. An update that is refused or fails counts, too: parts of it may have been written.
"""

import functools
from typing import Any

from cachalot.connectors.access.group import UnsupportedCacheError

#: update_weights_from_tensor and _from_distributed need a session, which begin_weight_update opens.
_BEGINNINGS = ("begin_weight_update", "update_weights_from_disk", "update_weights_from_ipc", "update_weights_from_tensor",
               "update_weights_from_distributed")
_count = 0


def count() -> int:
    """Updates that have begun in this process since watch()."""
    return _count


def _counted(method: Any) -> Any:
    @functools.wraps(method)
    def update(*arguments: Any, **options: Any) -> Any:
        global _count
        _count += 1
        return method(*arguments, **options)

    update.is_counted = True  # type: ignore[attr-defined]
    return update


def watch() -> int:
    """Raises UnsupportedCacheError: this SGLang updates its weights in another way."""
    try:
        from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as updater

        for name in _BEGINNINGS:
            method = getattr(updater, name)
            if not getattr(method, "is_counted", False):
                setattr(updater, name, _counted(method))
    except (ImportError, AttributeError) as error:
        raise UnsupportedCacheError(f"this version of SGLang, whose updates of the weights go unnoticed ({error}),") from error
    return _count
