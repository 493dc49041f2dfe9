"""A group of layers whose blocks are shared as one: with the model, a namespace of the pool."""

from dataclasses import dataclass, replace
from typing import Tuple

from cachalot import KvGeometry


class UnsupportedCacheError(Exception):
    """The engine's cache is of a kind that the connector does not know: nothing is shared."""


def model_heads(geometry: KvGeometry) -> int:
    """KV heads of all ranks together; a latent counts as one."""
    return 1 if geometry.attention == "latent" else geometry.kv_heads * geometry.tp_size // geometry.tp_replicas


@dataclass(frozen=True)
class Group:
    """One group of layers that share a block table, on one rank: vLLM's KVCacheGroupSpec."""

    number: int  # in the engine
    layers: Tuple[str, ...]
    geometry: KvGeometry
    model: str  # with the geometry: the namespace
    window: int  # tokens; 0: all
    order: str = "layer_first"  # of a block in the pool
    share_tp: int = 0  # as Client takes it
    state_tokens: int = 0  # of a group with state: tokens of a block, at whose end the state is; 0: a token has its own KV

    @property
    def namespace(self) -> str:
        """Equal for groups and ranks whose blocks are the same; as Client.namespaces() names it. With share_tp those of
        all ranks."""
        return self.model + " | " + self.geometry.fingerprint(self.share_tp)

    @property
    def pool_block_bytes(self) -> int:
        return (self.geometry.head_group(self.share_tp) if self.share_tp else self.geometry).block_bytes

    def of_all_ranks(self) -> "Group":
        """What a lookup for all ranks of a namespace asks for: with share_tp the heads of all."""
        if not self.share_tp or self.is_latent:
            return self
        fields = {**self.geometry.__getstate__(), "kv_heads": model_heads(self.geometry), "tp_rank": 0, "tp_size": 1,
                  "tp_replicas": 1}
        return replace(self, geometry=KvGeometry(**fields))

    @property
    def is_latent(self) -> bool:
        return self.geometry.attention == "latent"

    @property
    def block_tokens(self) -> int:
        return self.state_tokens or self.geometry.block_tokens

    @property
    def has_state(self) -> bool:
        """Whether a block in the pool is what the layers keep of all tokens up to the block's end."""
        return self.state_tokens != 0
