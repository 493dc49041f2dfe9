"""Where a group's KV cache lies in vLLM's tensors."""

from typing import Any, Dict, List, Tuple

from cachalot import PartStrides
from cachalot.connectors.vllm.namespace import Group, UnsupportedCacheError


def _grouped(group: Group, tensor: Any) -> Tuple[Tuple[int, ...], ...]:
    """Of keys and of values: offset, page, head and token stride, in elements."""
    g = group.geometry
    heads, tokens, size = g.kv_heads, g.block_tokens, g.head_dim
    shape, stride = tuple(tensor.shape), tensor.stride()
    if len(shape) == 4 and shape[1:] == (heads, tokens, 2 * size) and stride[3] == 1:
        return tuple((part * size, stride[0], stride[1], stride[2]) for part in range(2))
    if len(shape) == 5 and shape[0] == 2 and shape[2:] == (tokens, heads, size) and stride[4] == 1:
        return tuple((part * stride[0], stride[1], stride[3], stride[2]) for part in range(2))
    if len(shape) == 5 and shape[1:] == (2, tokens, heads, size) and stride[4] == 1:
        return tuple((part * stride[1], stride[0], stride[3], stride[2]) for part in range(2))
    if len(shape) == 5 and shape[0] == 2 and shape[2:] == (heads, tokens, size) and stride[4] == 1:
        return tuple((part * stride[0], stride[1], stride[2], stride[3]) for part in range(2))
    raise UnsupportedCacheError(f"tensors of shape {shape} and strides {stride}, "
                                f"for {heads} heads of {size} and blocks of {tokens}")


def _latent(group: Group, tensor: Any) -> Tuple[Tuple[int, ...], ...]:
    g = group.geometry
    width = g.kv_lora_rank + g.qk_rope_head_dim
    shape, stride = tuple(tensor.shape), tensor.stride()
    if len(shape) == 4 and shape[1] == 1:
        shape, stride = (shape[0], *shape[2:]), (stride[0], *stride[2:])
    if len(shape) != 3 or shape[1:] != (g.block_tokens, width) or stride[2] != 1:
        raise UnsupportedCacheError(f"tensors of shape {shape} and strides {stride}, "
                                    f"for latents of {width} and blocks of {g.block_tokens}")
    return tuple((offset, stride[0], 0, stride[1]) for offset in (0, g.kv_lora_rank))


def describe(group: Group, caches: Dict[str, Any]) -> Dict[str, Any]:
    """Arguments of Client.register_cache(). Raises UnsupportedCacheError."""
    tensors: List[Any] = [caches[name] for name in group.layers]
    if tensors[0].device.type != "cpu":
        # A copy must follow vLLM's stream; that has not been written, for want of a GPU to try it on.
        raise UnsupportedCacheError(f"a KV cache on {tensors[0].device}")
    parts = [(_latent if group.is_latent else _grouped)(group, tensor) for tensor in tensors]
    if any(part != parts[0] for part in parts):
        raise UnsupportedCacheError("tensors of one group with different strides")
    item = tensors[0].element_size()
    strides = [
        PartStrides(tensor=0, layer_tensors=1 if len(tensors) > 1 else 0, offset=offset * item, page=page * item,
                    head=head * item, token=token * item) for offset, page, head, token in parts[0]
    ]
    return dict(layout=None, tensors=tensors, pages=_pages(tensors[0]), strides=strides)


def _pages(tensor: Any) -> int:
    shape = tuple(tensor.shape)
    return shape[1] if len(shape) == 5 and shape[0] == 2 else shape[0]
