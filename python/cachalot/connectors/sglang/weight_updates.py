"""Notices that SGLang's weights are updated in place, with or without a flush of its cache.

SGLang tells a linker of a flush, which an operator may ask for as well, and of no update. So the methods of its scheduler by
which every update begins are watched.
"""

from cachalot.connectors.access import weight_updates
from cachalot.connectors.access.group import UnsupportedCacheError

#: update_weights_from_tensor and _from_distributed need a session, which begin_weight_update opens.
_BEGINNINGS = ("begin_weight_update", "update_weights_from_disk", "update_weights_from_ipc", "update_weights_from_tensor",
               "update_weights_from_distributed")
#: Updates that have begun in this process since watch().
count = weight_updates.count


def watch() -> int:
    """Raises UnsupportedCacheError: this SGLang updates its weights in another way."""
    try:
        from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as updater

        for name in _BEGINNINGS:
            weight_updates.watch(updater, name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedCacheError(f"this version of SGLang, whose updates of the weights go unnoticed ({error}),") from error
    return count()
