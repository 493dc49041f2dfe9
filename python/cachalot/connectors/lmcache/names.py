"""Names of LMCache's objects in a pool."""

import hashlib
from typing import Any

from cachalot import KvGeometry
from cachalot.connectors.access.group import Group

#: Changes with each change of what name_of() hashes.
_FORMAT = "lmcache 1"
#: The bytes of an object are LMCache's own. A fixed geometry gives all of them one namespace; it says nothing about their size.
_GEOMETRY = KvGeometry(layers=1, block_tokens=1, kv_heads=1, head_dim=1, dtype="i8")

GROUP = Group(number=0, layers=(), geometry=_GEOMETRY, model=_FORMAT, window=0)


def name_of(key: Any) -> bytes:
    """Of an ObjectKey, with all its fields.

    A digest that cannot be forged: cache_salt separates tenants, and the pool's own hash of names is not made for that.
    """
    digest = hashlib.sha256()
    for field in (key.chunk_hash, key.model_name.encode(), b"%d" % key.kv_rank, b"%d" % key.object_group_id,
                  key.cache_salt.encode()):
        digest.update(b"%d:" % len(field))
        digest.update(field)
    return digest.digest()
