"""The layouts of docs/extend/layout.md once more, as shapes of NumPy arrays: a reference that shares
nothing with the library. K part, L layer, B page, H head, N token, C content of a head; the letters
of `order` are the dimensions of a tensor, those of `tensors` number them."""

import itertools

import numpy as np

# name: (order, tensors) for grouped attention, then for a latent; None: not for it.
FORMS = {
    "vllm_kbnhc": (("KBNHC", "L"), None),
    "vllm_kbhnc": (("KBHNC", "L"), None),
    "vllm_bknhc": (("BKNHC", "L"), None),
    "vllm_bkhnc": (("BKHNC", "L"), None),
    "vllm_bnhkc": (("BNHKC", "L"), None),
    "vllm_bhnkc": (("BHNKC", "L"), None),
    "split_bnhc": (("BNHC", "LK"), None),
    "split_bhnc": (("BHNC", "LK"), None),
    "vllm_lbhnc": (("LBHNKC", ""), ("LBNKC", "")),
    "vllm_lbnhc": (("LBNHKC", ""), ("LBNKC", "")),
    "vllm_lhbnc": (("LHBNKC", ""), ("LBNKC", "")),
    "vllm_blhnc": (("BLHNKC", ""), ("BLNKC", "")),
    "vllm_blnhc": (("BLNHKC", ""), ("BLNKC", "")),
    "vllm_bhlnc": (("BHLNKC", ""), ("BLNKC", "")),
    "mla_joint": (None, ("BNKC", "L")),
    "mla_split": (None, ("BNC", "LK")),
    "sglang_device": (("BNHC", "KL"), ("BNKC", "L")),
    "sglang_layer_first": (("KLBNHC", ""), ("LBNKC", "")),
    "sglang_page_first": (("KBNLHC", ""), ("BNLKC", "")),
    "sglang_page_first_direct": (("KBLNHC", ""), ("BLNKC", "")),
    "sglang_page_head": (("KBHNLC", ""), None),
    "sglang_kv_split": (None, ("BNLC", "K")),
    "llama_rows": (("BNHC", "LK"), None),
}
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "f8": np.uint8, "i8": np.int8}
CASES = [(name, attention) for name, forms in FORMS.items() for attention, form in zip(("grouped", "latent"), forms) if form]


class Paged:
    """A paged cache in a layout, full of random bytes."""

    def __init__(self, name, geometry, pages, page_tokens, seed):
        self.geometry, self.page_tokens = geometry, page_tokens
        latent = geometry.attention == "latent"
        self.order, self.numbered = FORMS[name][latent]
        self.parts = (geometry.kv_lora_rank, geometry.qk_rope_head_dim) if latent else (geometry.head_dim,) * 2
        self.sizes = {"K": 2, "L": geometry.layers, "B": pages, "H": geometry.kv_heads, "N": page_tokens}
        random = np.random.default_rng(seed)
        dtype = np.dtype(DTYPES[geometry.dtype])
        self.tensors = []
        for numbers in itertools.product(*(range(self.sizes[letter]) for letter in self.numbered)):
            shape = self._shape(dict(zip(self.numbered, numbers)))
            count = int(np.prod(shape)) * dtype.itemsize
            self.tensors.append(np.frombuffer(random.bytes(count), dtype).copy().reshape(shape))

    def _shape(self, numbers):
        if "K" in self.order and self.parts[0] != self.parts[1]:  # parts of two sizes, side by side
            assert self.order.endswith("KC")
            return tuple(self.sizes[letter] for letter in self.order[:-2]) + (sum(self.parts),)
        content = self.parts[numbers.get("K", 0)]
        return tuple(content if letter == "C" else self.sizes[letter] for letter in self.order)

    def token(self, part, layer, page, token):
        """What all heads keep of a token, as bytes."""
        at = {"K": part, "L": layer, "B": page, "N": token}
        number = 0
        for letter in self.numbered:
            number = number * self.sizes[letter] + at[letter]
        tensor, order = self.tensors[number], self.order
        if "K" in order and self.parts[0] != self.parts[1]:
            start = part * self.parts[0]
            index = tuple(at[letter] for letter in order[:-2]) + (slice(start, start + self.parts[part]),)
        else:
            index = tuple(at.get(letter, slice(None)) for letter in order)
        return tensor[index].tobytes()

    def block(self, pages):
        return [
            self.token(part, layer, page, token)
            for part in range(2)
            for layer in range(self.geometry.layers)
            for page in pages
            for token in range(self.page_tokens)
        ]
