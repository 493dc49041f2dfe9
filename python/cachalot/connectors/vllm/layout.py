"""Where a group's KV cache lies in vLLM's tensors: any of its layouts, on the CPU or a GPU."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from cachalot import PartStrides
from cachalot.connectors.access.group import Group, UnsupportedCacheError

#: Offset, page, head and token stride, in elements.
_Part = Tuple[int, int, int, int]


@dataclass(frozen=True)
class Cache:
    """A group's tensors, as Client.register_cache() and TransferRank take them."""

    arguments: Dict[str, Any]
    split: int = 1  # consecutive pages that make one block of vLLM's tables: kernels may have smaller blocks

    @property
    def device(self) -> Optional[int]:
        """CUDA's number; None: memory of the CPU."""
        return self.arguments.get("device")


class _GpuMemory:
    """Consecutive bytes of a GPU's tensors, which it keeps alive."""

    def __init__(self, address: int, size: int, item: int, tensors: List[Any]) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size // item,), "typestr": f"<u{item}",
                                         "strides": None, "version": 3}
        self._tensors = tensors


def device_of(tensor: Any) -> Optional[int]:
    """CUDA's number of its GPU; None: it is in memory of the CPU. Raises UnsupportedCacheError."""
    if tensor.device.type == "cpu":
        return None
    if tensor.device.type != "cuda" or tensor.device.index is None:
        raise UnsupportedCacheError(f"a KV cache on {tensor.device}")
    return tensor.device.index


def _grouped(group: Group, tensor: Any) -> Tuple[Tuple[_Part, ...], int, int]:
    """Of keys and of values; the number of pages; the tokens of one."""
    g = group.geometry
    heads, size = g.kv_heads, g.head_dim
    shape, stride = tuple(tensor.shape), tensor.stride()
    # vLLM since 0.30, each layout: [page, head, token, key and value], permuted in memory.
    if len(shape) == 4 and (shape[1], shape[3]) == (heads, 2 * size) and stride[3] == 1:
        return tuple((part * size, stride[0], stride[1], stride[2]) for part in range(2)), shape[0], shape[2]
    if len(shape) == 5 and shape[0] == 2 and shape[3:] == (heads, size) and stride[4] == 1:
        return tuple((part * stride[0], stride[1], stride[3], stride[2]) for part in range(2)), shape[1], shape[2]
    if len(shape) == 5 and shape[1] == 2 and shape[3:] == (heads, size) and stride[4] == 1:
        return tuple((part * stride[1], stride[0], stride[3], stride[2]) for part in range(2)), shape[0], shape[2]
    if len(shape) == 5 and (shape[0], shape[2], shape[4]) == (2, heads, size) and stride[4] == 1:
        return tuple((part * stride[0], stride[1], stride[2], stride[3]) for part in range(2)), shape[1], shape[3]
    raise UnsupportedCacheError(f"tensors of shape {shape} and strides {stride}, "
                                f"for {heads} heads of {size} and blocks of {g.block_tokens}")


def _latent(group: Group, tensor: Any) -> Tuple[Tuple[_Part, ...], int, int]:
    g = group.geometry
    width = g.kv_lora_rank + g.qk_rope_head_dim
    shape, stride = tuple(tensor.shape), tensor.stride()
    if len(shape) == 4 and shape[1] == 1:
        shape, stride = (shape[0], *shape[2:]), (stride[0], *stride[2:])
    if len(shape) != 3 or shape[2] != width or stride[2] != 1:
        raise UnsupportedCacheError(f"tensors of shape {shape} and strides {stride}, "
                                    f"for latents of {width} and blocks of {g.block_tokens}")
    return tuple((offset, stride[0], 0, stride[1]) for offset in (0, g.kv_lora_rank)), shape[0], shape[1]


def _extent(tensor: Any) -> Tuple[int, int]:
    """Of its elements: the first byte, and the one after the last."""
    item, first = tensor.element_size(), tensor.data_ptr()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return first, first + (last + 1) * item


def _layer_stride(tensors: List[Any]) -> int:
    """Bytes from one layer to the next, where all of them lie at one distance in one storage; 0: they do not."""
    if len(tensors) == 1 or len({tensor.untyped_storage().data_ptr() for tensor in tensors}) != 1:
        return 0
    at = [tensor.data_ptr() for tensor in tensors]
    distance = at[1] - at[0]
    is_even = all(here + distance == then for here, then in zip(at, at[1:]))
    return distance if is_even and distance > 0 else 0


def _blocks(group: Group, parts: Tuple[_Part, ...], tokens: int, shape: Any) -> Tuple[Tuple[_Part, ...], int]:
    """The parts with vLLM's blocks as pages, and pages of a block where that cannot be."""
    if tokens == group.block_tokens:
        return parts, 1
    if tokens == 0 or group.block_tokens % tokens != 0:
        raise UnsupportedCacheError(f"tensors of shape {tuple(shape)}, for blocks of {group.block_tokens}")
    split = group.block_tokens // tokens
    if all(page == tokens * token for _, page, _, token in parts):  # tokens go on in the next page
        return tuple((offset, page * split, head, token) for offset, page, head, token in parts), 1
    return parts, split


def _describe_states(group: Group, states: List[List[Any]]) -> Cache:
    """states: the tensors of each layer, whose page lies in one piece: [page, ...] each."""
    half, layers = group.geometry.head_dim, []
    page = states[0][0].stride(0) * states[0][0].element_size()
    for tensors in states:
        if any(device_of(tensor) is not None for tensor in tensors):
            raise UnsupportedCacheError("a model with state layers on a GPU")
        at = tensors[0].data_ptr()
        for tensor in tensors:
            item = tensor.element_size()
            if (tensor.data_ptr(), tensor.stride(0) * item) != (at, page) or not tensor[0].is_contiguous():
                raise UnsupportedCacheError("a state whose tensors do not follow each other")
            at += tensor[0].numel() * item
        size = at - tensors[0].data_ptr()
        if size != 2 * half and not (len(tensors) == 1 and 2 * half < size <= page):  # one tensor may have the padding
            raise UnsupportedCacheError(f"a state of {size} bytes in tensors of shape {tuple(tensors[0].shape)}, "
                                        f"expected {2 * half},")
        layers.append(_bytes_from(tensors[0], (len(tensors[0]) - 1) * page + 2 * half))
    strides = [PartStrides(tensor=0, layer_tensors=1 if len(layers) > 1 else 0, offset=offset, page=page, head=half,
                           token=half) for offset in (0, half)]
    return Cache(dict(layout=None, tensors=layers, pages=len(states[0][0]), strides=strides))


def _tensors_of(cache: Any) -> List[Any]:
    """vLLM gives one tensor or several for a layer's state."""
    return list(cache) if isinstance(cache, (list, tuple)) else [cache]


def _bytes_from(tensor: Any, size: int) -> Any:
    """So many bytes of a tensor's storage, from its first element on."""
    import torch

    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.int8).set_(storage)
    return whole[tensor.data_ptr() - storage.data_ptr() :][:size]


def describe(group: Group, caches: Dict[str, Any]) -> Cache:
    """caches: vLLM's tensor of each layer. Raises UnsupportedCacheError."""
    if group.has_state:
        return _describe_states(group, [_tensors_of(caches[name]) for name in group.layers])
    tensors: List[Any] = [caches[name] for name in group.layers]
    device = device_of(tensors[0])
    if any(device_of(tensor) != device for tensor in tensors):
        raise UnsupportedCacheError("layers of one group on several devices")
    found = [(_latent if group.is_latent else _grouped)(group, tensor) for tensor in tensors]
    if any(one != found[0] for one in found):
        raise UnsupportedCacheError("tensors of one group with different strides")
    parts, pages, tokens = found[0]
    blocks, split = _blocks(group, parts, tokens, tensors[0].shape)
    if split == 1 and tokens != group.block_tokens:
        pages //= group.block_tokens // tokens
    item, layer = tensors[0].element_size(), _layer_stride(tensors)
    strides = [
        PartStrides(tensor=0, layer_tensors=1 if len(tensors) > 1 and not layer else 0, offset=offset * item,
                    layer=layer, page=page * item, head=head * item, token=token * item)
        for offset, page, head, token in blocks
    ]
    memory = _memory(tensors, device, layer)
    arguments: Dict[str, Any] = dict(layout=None, tensors=memory, pages=pages, strides=strides)
    if split > 1:
        arguments["page_tokens"] = tokens
    if device is not None:
        arguments["device"] = device
    return Cache(arguments, split)


def _memory(tensors: List[Any], device: Optional[int], layer: int) -> List[Any]:
    """What holds the elements: the tensors, or their bytes as one array where the layers have a stride."""
    item = tensors[0].element_size()
    if layer:
        first, last = _extent(tensors[0])[0], _extent(tensors[-1])[1]
        if device is not None:
            return [_GpuMemory(first, last - first, item, tensors)]
        whole = tensors[0].as_strided(((last - first) // item,), (1,))
        return [whole]
    if device is None:
        return tensors
    return [_GpuMemory(first, last - first, item, [tensor]) for tensor in tensors for first, last in [_extent(tensor)]]
