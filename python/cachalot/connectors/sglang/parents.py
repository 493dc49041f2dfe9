"""Tells a linker which page comes before those of an offload: the pool evicts from a prompt's end, if it knows its order.

SGLang gives a linker the pages of one node of its tree. Its wrapper knows the node, so the wrapper's method is wrapped.
"""

import functools
from typing import Any


def watch() -> None:
    """To call it twice changes nothing. In an SGLang without this method no parent is told."""
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper as wrapper

    method = getattr(wrapper, "_offload_node", None)
    if method is None or getattr(method, "is_watched", False):
        return

    @functools.wraps(method)
    def offload(self: Any, node_id: Any, *arguments: Any, **options: Any) -> Any:
        before = self.cache.tree_core.get_prefix_hash_values(node_id)
        self.cache_linker.parent = before[-1] if before else None
        return method(self, node_id, *arguments, **options)

    offload.is_watched = True  # type: ignore[attr-defined]
    wrapper._offload_node = offload
