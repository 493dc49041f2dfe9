"""Which shapes and types of tensors are taken for a cache: wrong ones would give other engines wrong blocks."""

from pathlib import Path

import numpy as np
import pytest

import cachalot
from conftest import GEOMETRY, attach, tokens_of
from layouts import CASES, Paged
from test_dlpack import Counted
from test_gpu import CudaArray

PAGES = 16
LATENT = cachalot.KvGeometry(layers=3, attention="latent", kv_lora_rank=64, qk_rope_head_dim=16, dtype="bf16", block_tokens=4)
BFLOAT, FLOAT, FLOAT8_E4M3FN = 4, 2, 10  # DLPack's types


def of(**fields):
    return cachalot.KvGeometry(**{**GEOMETRY.__getstate__(), **fields})


def zeros(*shape, dtype=np.float16, count=3):
    return [np.zeros(shape, dtype) for _ in range(count)]


def typed(array, code):
    """The array by DLPack, under another type."""
    tensor = Counted(array, bits=8 * array.itemsize)
    tensor._tensor.code = code
    return tensor


@pytest.fixture
def register(pool):
    """Registers a cache with a client of a geometry, and says what the error was, if any."""

    def register(layout, tensors, geometry=GEOMETRY, **more):
        with attach(pool, geometry=geometry) as client:
            try:
                client.register_cache(layout, tensors, **{"pages": PAGES, **more})
            except cachalot.InvalidArgumentError as error:
                return str(error)
            return None

    return register


@pytest.mark.parametrize("layout, shape", [
    ("vllm_kbnhc", (PAGES, 2, 4, 2, 32)),  # vllm_bknhc
    ("vllm_kbnhc", (2, PAGES, 2, 4, 32)),  # vllm_kbhnc
    ("vllm_bknhc", (2, PAGES, 4, 2, 32)),
    ("vllm_bnhkc", (PAGES, 2, 4, 64)),
    ("vllm_bnhkc", (PAGES, 4, 2, 32, 2)),
    ("vllm_bnhkc", (PAGES, 2, 4, 2, 32)),
])
def test_axes_in_another_order_are_refused(register, layout, shape):
    error = register(layout, zeros(*shape))
    assert error.startswith(f"tensor 0: does not have the axes of its layout: is an array {shape} of float16, expected for layer 0 (")


def test_the_error_names_the_layer_what_is_given_and_what_is_expected(register):
    tensors = zeros(2, PAGES, 4, 2, 32)
    tensors[2] = tensors[2].reshape(PAGES, 2, 4, 2, 32)
    assert register("vllm_kbnhc", tensors) == (
        "tensor 2: does not have the axes of its layout: is an array (16, 2, 4, 2, 32) of float16, expected for layer 2 "
        "(2, 16, 4, 2, 32): keys/values, pages, tokens, heads, head_dim")
    tensors[2] = np.zeros((2, PAGES, 4, 2, 32), np.float16).swapaxes(2, 3)
    assert register("vllm_kbnhc", tensors) == (
        "tensor 2: is not contiguous, expected C order without gaps: is an array (2, 16, 2, 4, 32) of float16, not contiguous, "
        "expected for layer 2 (2, 16, 4, 2, 32): keys/values, pages, tokens, heads, head_dim")
    assert "values of layer 0" in register("split_bnhc", zeros(PAGES, 4, 2, 32, count=1) + zeros(PAGES, 2, 4, 32, count=5))
    assert register("mla_joint", zeros(PAGES, 80, 4, dtype=np.uint16), LATENT).endswith("layer 0 (16, 4, 80): pages, tokens, latent+rope")


def test_another_number_of_pages_or_of_heads_is_named_by_its_axis(register):
    assert "(2, 17, 4, 2, 32): keys/values, pages" in register("vllm_kbnhc", zeros(2, PAGES, 4, 2, 32), pages=17)
    assert "expected for layer 0 (2, 16, 4, 2, 32)" in register("vllm_kbnhc", zeros(2, PAGES, 4, 1, 32))
    assert "(2, 16, 2, 2, 32)" in register("vllm_kbnhc", zeros(2, PAGES, 4, 2, 32), page_tokens=2)


@pytest.mark.parametrize("layout, shape", [
    ("vllm_kbnhc", (2, PAGES * 4, 2, 32)),  # slots
    ("vllm_kbnhc", (2, PAGES, 4, 64)),  # flattened heads
    ("vllm_kbnhc", (2 * PAGES * 4 * 64,)),  # no axes
    ("vllm_bnhkc", (PAGES, 4, 2, 64)),
    ("vllm_bnhkc", (PAGES, 4, 2, 2, 32)),
    ("vllm_bnhkc", (PAGES, 1, 4, 2, 64)),
])
def test_neighbouring_axes_may_be_one(register, layout, shape):
    assert register(layout, zeros(*shape)) is None


@pytest.mark.parametrize("layout, attention", CASES)
def test_each_layout_takes_its_own_shape_and_no_reversed_one(register, layout, attention):
    geometry = LATENT if attention == "latent" else GEOMETRY
    tensors = Paged(layout, geometry, PAGES, 4, seed=1).tensors
    assert register(layout, tensors, geometry) is None
    reversed_axes = [np.ascontiguousarray(tensor.transpose()) for tensor in tensors]
    assert register(layout, reversed_axes, geometry).startswith("tensor 0: does not have the axes of its layout")


@pytest.mark.parametrize("dtype, array, words", [
    ("f16", np.float16, None), ("f16", np.uint16, None), ("f16", np.int16, None),
    ("bf16", np.uint16, None), ("bf16", np.int16, None),
    ("bf16", np.float16, "has numbers of float16, expected bf16, or uint16 for its bytes"),
    ("f32", np.float32, None), ("f32", np.uint32, None),
    ("f8", np.uint8, None), ("f8", np.int8, "has numbers of int8, expected f8, or uint8 for its bytes"),
    ("i8", np.int8, None), ("i8", np.uint8, None),
])
def test_numbers_of_another_kind_are_refused(register, dtype, array, words):
    error = register("vllm_kbnhc", zeros(2, PAGES, 4, 2, 16, dtype=array), of(dtype=dtype, head_dim=16))
    assert (error is None) == (words is None) and (words is None or words in error), error


@pytest.mark.parametrize("dtype, array, code, words", [
    ("bf16", np.uint16, BFLOAT, None),
    ("f16", np.uint16, BFLOAT, "has numbers of bfloat16, expected f16, or uint16 for its bytes"),
    ("bf16", np.uint16, FLOAT, "has numbers of float16, expected bf16"),
    ("f8", np.uint8, FLOAT8_E4M3FN, None),
    ("i8", np.uint8, FLOAT8_E4M3FN, "has numbers of float8, expected i8"),
])
def test_types_that_only_dlpack_has(register, dtype, array, code, words):
    tensors = [typed(one, code) for one in zeros(2, PAGES, 4, 2, 32, dtype=array)]
    error = register("vllm_kbnhc", tensors, of(dtype=dtype))
    assert (error is None) == (words is None) and (words is None or words in error), error


def test_axes_of_a_gpus_tensors_are_looked_at_too(register):
    swapped = [CudaArray(array) for array in zeros(PAGES, 2, 4, 2, 32)]
    assert "expected for layer 0 (2, 16, 4, 2, 32)" in register("vllm_kbnhc", swapped, device=0)


def test_gaps_between_pages_leave_the_shape_open(register):
    page = 2 * 4 * 2 * 32
    padded = zeros(PAGES, page + 32)
    assert register("vllm_bknhc", padded, page_stride_bytes=2 * (page + 32)) is None
    assert "expected for layer 0" in register("vllm_bknhc", padded)


def part(array, axes, offset=0, **more):
    """Strides of a numpy array, by the names of its axes."""
    named = {name: step for name, step in zip(axes.split(), array.strides) if name in ("page", "head", "token", "layer")}
    return cachalot.PartStrides(offset=offset, **named, **more)


def test_what_the_connectors_give_is_taken(pool):
    """Their shapes, without the engines: they give strides, so shapes say nothing; types are looked at."""
    geometry = of(dtype="bf16")
    vllm = np.zeros((PAGES, 4, 2, 64), np.uint16).transpose(0, 2, 1, 3)  # [page, head, token, key and value] of NHD
    slots = [np.zeros((PAGES * 4, 2, 32), np.uint16) for _ in range(6)]  # SGLang's device pool
    host = np.zeros((2, 3, PAGES * 4, 2, 32), np.uint16)  # HiCache, layer_first
    whole = np.zeros(3 * PAGES * 4 * 2 * 64, np.uint16)  # vLLM's layers at one distance: one flat array
    token, head, _ = slots[0].strides
    flat = dict(layer=whole.nbytes // 3, page=whole.nbytes // 3 // PAGES, token=256, head=128)
    keys, values, layer, slot = 0, host.strides[0], host.strides[1], host.strides[2]
    caches = {
        "vllm": ([vllm, vllm.copy().transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), np.zeros((PAGES, 4, 2, 64), np.uint16).transpose(0, 2, 1, 3)],
                 [part(vllm, "page head token", offset, layer_tensors=1) for offset in (0, 64)]),
        "one array": ([whole], [cachalot.PartStrides(offset=offset, **flat) for offset in (0, 64)]),
        "SGLang": (slots, [cachalot.PartStrides(tensor=k, layer_tensors=1, page=4 * token, head=head, token=token) for k in (0, 3)]),
        "HiCache": ([host], [cachalot.PartStrides(offset=at, layer=layer, page=4 * slot, head=host.strides[3], token=slot)
                             for at in (keys, values)]),
    }
    with attach(pool, geometry=geometry) as client:
        hashes = client.hash_tokens(tokens_of(1, 8))
        for name, (tensors, strides) in caches.items():
            cache = client.register_cache(None, tensors, pages=PAGES, strides=strides)
            assert client.store(cache, hashes, [1, 2]).blocks == 2, name
            assert client.load(cache, hashes, [5, 9]) == 2, name
            floats = [tensor.view(np.float16) for tensor in tensors]
            with pytest.raises(cachalot.InvalidArgumentError, match="has numbers of float16, expected bf16"):
                client.register_cache(None, floats, pages=PAGES, strides=strides)
        # A state of vLLM: bytes of a layer's pages, flat, by strides.
        state = of(dtype="i8", layers=2, kv_heads=1, head_dim=96, block_tokens=1)
        with attach(pool, geometry=state, model="state@1") as other:
            rows = [np.zeros(PAGES * 256, np.int8) for _ in range(2)]
            parts = [cachalot.PartStrides(layer_tensors=1, offset=at, page=256, head=96, token=96) for at in (0, 96)]
            other.register_cache(None, rows, pages=PAGES, strides=parts)


def test_the_legend_explains_each_layout_and_the_page_has_it():
    words = cachalot.layout_names.__doc__
    legend = words[words.index("Axes of a tensor"):]
    assert "vllm_kbnhc                [K, B, N, H, C], a tensor per layer" in legend
    for name in cachalot.layout_names():
        assert f"\n{name} " in legend, name
    page = (Path(__file__).parents[2] / "docs/extend/layout.md").read_text()
    for line in legend.strip().splitlines():
        assert line.strip() in page, line
