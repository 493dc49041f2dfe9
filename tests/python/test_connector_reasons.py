"""Why a pool has no hits for a vLLM engine. Without vLLM: the module is loaded from its file."""

import importlib.util
from pathlib import Path

import cachalot

_FILE = Path(cachalot.__file__).parent / "connectors" / "vllm" / "reasons.py"
_SPEC = importlib.util.spec_from_file_location("reasons", _FILE)
reasons = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reasons)

OWN = "vllm/1 model=files:ab config=cd dtype=bfloat16 kv=auto layers=01 | kv1 layers=4 heads=2 shard=0/1 dtype=bf16 block_tokens=128"


def test_an_engine_alone_has_no_reason():
    assert reasons.why_no_hits([OWN], [OWN, "another program's blocks"]) is None


def test_the_most_similar_namespace_is_the_reason():
    other_model = OWN.replace("files:ab", "files:ff").replace("config=cd", "config=ee")
    fp8 = OWN.replace("kv=auto", "kv=fp8").replace("dtype=bf16", "dtype=f8")
    reason = reasons.why_no_hits([OWN], [other_model, OWN, fp8])
    assert reason == ("other engines of this pool have the same weights with other KV dtype (fp8, here auto); "
                      "other stored dtype (f8, here bf16)")


def test_other_weights_and_other_sizes_are_named():
    reason = reasons.why_no_hits([OWN], [OWN.replace("files:ab", "files:ff").replace("shard=0/1", "shard=0/2")])
    assert reason == ("other engines of this pool have other weights (files:ff, here files:ab); "
                      "other tensor parallel rank and size (0/2, here 0/1)")


def test_a_name_that_the_pool_has_cut_off_is_still_the_own_one():
    long = OWN + " extra=" + 500 * "x"
    assert reasons.why_no_hits([long], [long[:416]]) is None
