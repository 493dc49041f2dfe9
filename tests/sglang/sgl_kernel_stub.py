"""Stands in for sgl_kernel, SGLang's package of GPU kernels, where there is no GPU.

Every name of it raises when it is called: SGLang computes with PyTorch on a CPU, and only imports them. The copies between
HiCache's host pages and the engine's are here, as PyTorch's indexing.
"""

import builtins
import importlib.abc
import importlib.machinery
import sys
import types

import torch

__version__ = "0.4.10"
__path__ = []


class _Missing:
    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __call__(self, *arguments, **options):
        raise NotImplementedError("no GPU: " + self.__name__)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(self.__name__ + "." + name)


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Missing(self.__name__ + "." + name))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing("sgl_kernel." + name)


class _Cudart:
    """cudaHostRegister, which SGLang calls for host pages of a CPU engine too, does nothing."""

    def __getattr__(self, name):
        return lambda *arguments, **options: 0


_zeros = torch.zeros


def _pageable_zeros(*arguments, pin_memory=False, **options):
    """HiCache's own storages read into page-locked memory, which needs a GPU's driver."""
    return _zeros(*arguments, **options)


# SGLang gives all arguments by name.
def _copy(src_layers, dst_layers, src_indices, dst_indices, page_size, **_):
    for source, target in zip(src_layers, dst_layers):
        target[dst_indices.long()] = source[src_indices.long()].to(target.device)


def _load_layer(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size, **_):
    host_slots = src_indices.long()
    for host, device in zip(src_ptrs, dst_ptrs):  # [pages, layers, tokens, …], [slots, …]
        device[dst_indices.long()] = host[host_slots // page_size, layer_id, host_slots % page_size]


def _store_layers(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size, **_):
    host_slots, layers = dst_indices.long(), len(src_ptrs) // len(dst_ptrs)
    for part, host in enumerate(dst_ptrs):
        for layer in range(layers):
            host[host_slots // page_size, layer, host_slots % page_size] = src_ptrs[part * layers + layer][src_indices.long()]


sys.meta_path.insert(0, _Finder())
torch.cuda.cudart = lambda: _Cudart()
torch.zeros = _pageable_zeros
# SGLang imports these by name on a GPU only.
builtins.transfer_kv_direct = _copy
builtins.transfer_kv_per_layer_direct_pf_lf = _load_layer
builtins.transfer_kv_all_layer_direct_lf_pf = _store_layers
