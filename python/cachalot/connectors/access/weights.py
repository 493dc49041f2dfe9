"""The identity of a model: what its files contain, not what they are called."""

import hashlib
import os
from typing import Iterable, List, Tuple

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
#: Small files that change what a model computes.
_CONFIGS = ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json", "params.json",
            "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_EDGE_BYTES = 1 << 20
_PAGE_BYTES = 4096
_PAGES = 1024


def _add_sample(digest: "hashlib._Hash", path: str) -> None:
    size = os.path.getsize(path)
    digest.update(size.to_bytes(8, "little"))
    with open(path, "rb") as file:
        if size <= 2 * _EDGE_BYTES + _PAGES * _PAGE_BYTES:
            digest.update(file.read())
            return
        digest.update(file.read(_EDGE_BYTES))
        between = size - 2 * _EDGE_BYTES - _PAGE_BYTES
        for i in range(_PAGES):
            file.seek(_EDGE_BYTES + between * i // (_PAGES - 1))
            digest.update(file.read(_PAGE_BYTES))
        file.seek(size - _EDGE_BYTES)
        digest.update(file.read(_EDGE_BYTES))


def _add_all(digest: "hashlib._Hash", path: str) -> None:
    digest.update(os.path.getsize(path).to_bytes(8, "little"))
    with open(path, "rb") as file:
        while part := file.read(_EDGE_BYTES):
            digest.update(part)


def _files(folder: str) -> List[str]:
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_WEIGHTS) or name in _CONFIGS:
                found.append(os.path.relpath(os.path.join(place, name), folder))
    return sorted(found)


def state_of_folder(folder: str) -> List[Tuple[str, int, int, int]]:
    """Changes when a file of digest_of_folder() does: name, size, time of the last change, inode. Cheap."""
    names = [""] if os.path.isfile(folder) else _files(folder)
    found = [(name, os.stat(os.path.join(folder, name) if name else folder)) for name in names]
    return [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in found]


def digest_of_files(root: str, names: Iterable[str], every_byte: bool) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0")
        path = os.path.join(root, name)
        is_weights = name.endswith(_WEIGHTS)
        (_add_sample if is_weights and not every_byte else _add_all)(digest, path)
    return digest.hexdigest()


def digest_of_configs(folder: str) -> str:
    """As digest_of_folder(), of the configuration alone."""
    return digest_of_files(folder, [name for name in _files(folder) if not name.endswith(_WEIGHTS)], True)


def digest_of_folder(folder: str, every_byte: bool = False) -> str:
    """A digest of the configuration and of the weights in a folder or one file.

    Of each weight file: its size, its first and last MiB, and 1,024 pages between. `every_byte`: all of it.
    Two trainings of one model differ in nearly all numbers, so samples tell them apart; one changed number in a
    large file may be missed.

    Raises FileNotFoundError: there is no weight file.
    """
    if os.path.isfile(folder):
        return digest_of_files(os.path.dirname(folder), [os.path.basename(folder)], every_byte)
    names = _files(folder)
    if not any(name.endswith(_WEIGHTS) for name in names):
        raise FileNotFoundError(f"model: {folder} has no weights ({', '.join(_WEIGHTS)})")
    return digest_of_files(folder, names, every_byte)
