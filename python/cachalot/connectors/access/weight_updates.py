"""Counts updates of an engine's weights in place, by the methods of the engine that make them.

An update that is refused or fails counts, too: parts of it may have been written.
"""

import functools
from typing import Any, Callable

_count = 0


def count() -> int:
    """Updates that have begun in this process since the first watch()."""
    return _count


def _always(*arguments: Any, **options: Any) -> bool:
    return True


def watch(owner: type, name: str, is_update: Callable[..., bool] = _always) -> None:
    """Counts calls of a method, of those for whose arguments is_update() is true. To watch twice changes nothing.

    Raises AttributeError: there is no such method.
    """
    method = getattr(owner, name)
    if getattr(method, "is_watched", False):
        return

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        global _count
        _count += is_update(*arguments, **options)
        return method(self, *arguments, **options)

    call.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, call)
