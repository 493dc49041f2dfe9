"""Counts updates of an engine's weights in place, by the methods of the engine that make them.

An update that is refused or fails counts, too: parts of it may have been written.
"""

import functools
from typing import Any, Callable, Optional

_count, _last = 0, ""


def count() -> int:
    """Updates that have begun in this process since the first watch()."""
    return _count


def last() -> str:
    """What made the last one that has ended, in one word."""
    return _last


def watch(owner: type, name: str, update_of: Optional[Callable[..., str]] = None) -> None:
    """Counts calls of a method. To watch twice changes nothing.

    update_of: says in one word which update a call with these arguments is, "" if none; None: each call is one.
    Raises AttributeError: there is no such method.
    """
    method = getattr(owner, name)
    if getattr(method, "is_watched", False):
        return

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        global _count, _last
        update = name if update_of is None else update_of(*arguments, **options)
        if not update:
            return method(self, *arguments, **options)
        _count += 1
        try:
            return method(self, *arguments, **options)
        finally:
            _last = update  # after those that it has called itself

    call.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, call)
