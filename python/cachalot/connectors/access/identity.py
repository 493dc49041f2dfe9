"""Which weights an engine has, and in which numbers its KV is."""

import hashlib
import json
import os
from typing import Any, Optional

from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.access.weights import digest_of_configs, digest_of_folder

DTYPES = {
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "f8",
    "torch.float8_e5m2": "f8",
    "torch.uint8": "f8",
    "torch.int8": "i8",
}
#: Of vLLM and SGLang: the weights come from a file of its own, or from another engine's memory.
_LOADED_FROM_ELSEWHERE = ("tensorizer", "remote_instance")


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _local_folder(model: str, revision: Optional[str]) -> Optional[str]:
    """Where the files of a model are on this machine."""
    if os.path.exists(model):
        return model
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(model, revision=revision, local_files_only=True)
    except Exception:
        return None


def model_identity(model: str, revision: Optional[str], every_byte: bool, load_format: str) -> str:
    """Of the weights. Raises UnsupportedCacheError: they have none."""
    if load_format == "dummy":
        raise UnsupportedCacheError("load_format dummy, whose weights have no identity,")
    if load_format in _LOADED_FROM_ELSEWHERE:
        raise UnsupportedCacheError(f"load_format {load_format}, whose weights are not those in the model's folder,")
    folder = _local_folder(model, revision)
    if folder is None:
        if not revision:
            raise UnsupportedCacheError(
                f"model: {model} has no files on this machine and no revision, so its weights have no identity; "
                "give --revision")
        return f"{model}@{revision}"
    try:
        return "files:" + digest_of_folder(folder, every_byte)[:32]
    except OSError as error:
        raise UnsupportedCacheError(f"model: weights that cannot be identified ({error})") from error


def config_identity(config: Optional[str], revision: Optional[str]) -> str:
    """Of a configuration that does not lie with the weights; "": there is none. Raises UnsupportedCacheError: it is not on
    this machine."""
    if config is None:
        return ""
    folder = _local_folder(config, revision)
    if folder is None or not os.path.isdir(folder):
        raise UnsupportedCacheError(f"hf_config_path: {config}, which has no files on this machine,")
    return digest_of_configs(folder)


def rope_limit(hf_config: Any, longest_prompt: int) -> str:
    """Long-context variants of RoPE choose their factors by the engine's longest prompt."""
    text = getattr(hf_config, "get_text_config", lambda: hf_config)()
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    return str(longest_prompt) if "longrope" in json.dumps(scaling, default=str) else "any"
