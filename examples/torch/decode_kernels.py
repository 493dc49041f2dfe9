"""Flash decoding in Triton for contiguous_attention.py: one kernel that finds a token either by a product or by a page table; nothing
else differs.
"""

import os

import torch
import triton
import triton.language as tl


@triton.jit
def decode(query, memory, bases, offsets, table, lengths, partial, sums, scale, row, table_row, span,
           IS_PAGED: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
           DOT: tl.constexpr):
    """One program: the heads of a group of one request, over `span` tokens. All distances are in numbers of bfloat16, and multiples of 8:
    `bases` from `memory` to each request, `offsets` from there to keys and values, `row` from token to token."""
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    end = tl.minimum(tl.load(lengths + request), (part + 1) * span)
    if IS_PAGED:
        base = tl.load(bases)  # of all pages
    else:
        base = tl.load(bases + request)
    # Said, because it cannot be seen in numbers that are loaded: without it every number is read by itself.
    keys = memory + tl.multiple_of(base + tl.load(offsets), 8)
    values = memory + tl.multiple_of(base + tl.load(offsets + 1), 8)
    head = tl.arange(0, PADDED)
    dim = tl.arange(0, HEAD)
    first = (request * tl.num_programs(1) + kv_head) * GROUP
    q = tl.load(query + (first + head)[:, None] * HEAD + dim[None, :], mask=head[:, None] < GROUP, other=0.0).to(DOT)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    result = tl.zeros([PADDED, HEAD], tl.float32)
    for at in range(part * span, end, BLOCK):
        token = at + tl.arange(0, BLOCK)
        is_there = token < end
        if IS_PAGED:
            page = tl.load(table + request * table_row + token // PAGE, mask=is_there, other=0)
            place = page.to(tl.int64) * PAGE + token % PAGE
        else:
            place = token.to(tl.int64)
        where = place[:, None] * row + (kv_head * HEAD + dim)[None, :]
        k = tl.load(keys + where, mask=is_there[:, None], other=0.0)
        score = tl.where(is_there[None, :], tl.dot(q, tl.trans(k.to(DOT))) * scale, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(best - higher)
        v = tl.load(values + where, mask=is_there[:, None], other=0.0)
        result = result * fade[:, None] + tl.dot(weight.to(tl.bfloat16).to(DOT), v.to(DOT))
        total = total * fade + tl.sum(weight, 1)
        best = higher
    place = part * tl.num_programs(0) * tl.num_programs(1) * GROUP + first + head
    tl.store(partial + place[:, None] * HEAD + dim[None, :], result, mask=head[:, None] < GROUP)
    tl.store(sums + place * 2, best, mask=head < GROUP)
    tl.store(sums + place * 2 + 1, total, mask=head < GROUP)


@triton.jit
def merge(partial, sums, out, parts, PARTS: tl.constexpr, HEAD: tl.constexpr):
    """One program: a head of a request. A part after the request's end has a total of 0 and no weight."""
    head = tl.program_id(0)
    part = tl.arange(0, PARTS)
    dim = tl.arange(0, HEAD)
    place = part * tl.num_programs(0) + head
    best = tl.load(sums + place * 2, mask=part < parts, other=float("-inf"))
    total = tl.load(sums + place * 2 + 1, mask=part < parts, other=0.0)
    weight = tl.where(total > 0, tl.exp2(best - tl.max(best, 0)), 0.0)
    result = tl.load(partial + place[:, None] * HEAD + dim[None, :], mask=(part < parts)[:, None], other=0.0)
    result = tl.sum(result * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + head * HEAD + dim, result.to(tl.bfloat16))


@triton.jit
def nothing(number):
    """A trivial kernel: shows whether this machine can run Triton."""
    tl.store(number, 1)


def probe(device):
    """Raises Triton's own exception if it cannot run: it needs a C compiler and the headers of Python, which a machine that only
    runs PyTorch may lack."""
    number = torch.zeros(1, dtype=torch.int32, device=device)
    nothing[(1,)](number)


class Decode:
    """Both forms over the KV of contiguous_attention.py. Calling it makes a step of all layers: (layers, requests, heads, dim)."""

    BLOCK = 64

    def __init__(self, options, contiguous, paged):
        self.options, self.paged = options, paged
        device, requests, heads = options.device, len(contiguous.ranges), options.heads
        views = [[contiguous.memory.view(layer, part) for part in range(2)] for layer in range(options.layers)]
        cache = paged.cache

        def numbers(values):
            return torch.tensor(values, dtype=torch.int64, device=device)

        # (memory, from there to each request or to all pages, from there to each layer's keys and values, from row to row)
        first, cache_strides = contiguous.tensors[0], cache.stride()
        self.forms = {
            False: (first, numbers([(held.base + views[0][0][0] - first.data_ptr()) // 2 for held in contiguous.ranges]),
                    numbers([[(offset - views[0][0][0]) // 2 for offset, _ in row] for row in views]), views[0][0][1] // 2),
            True: (cache, numbers([0]), numbers([[layer * cache_strides[0] + part * cache_strides[1] for part in range(2)]
                                                 for layer in range(options.layers)]), cache_strides[3])}
        # The interpreter's products of bfloat16 are not what a GPU's are: of the same numbers, in float32.
        self.dot = tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16
        # So many parts that a GPU is full: some six programs for each of its multiprocessors.
        wanted = 6 * torch.cuda.get_device_properties(device).multi_processor_count if options.is_cuda else 3 * requests * options.kv_heads
        blocks = -(-options.most // self.BLOCK)
        self.parts = max(1, min(blocks, wanted // (requests * options.kv_heads)))
        self.span = -(-blocks // self.parts) * self.BLOCK
        self.parts = -(-options.most // self.span)
        self.partial = torch.empty(self.parts, requests * heads, options.head_dim, device=device)
        self.sums = torch.empty(self.parts, requests * heads, 2, device=device)
        self.lengths = torch.empty(requests, dtype=torch.int32, device=device)
        self.out = torch.empty(options.layers, requests, heads, options.head_dim, dtype=torch.bfloat16, device=device)

    def __call__(self, queries, lengths, is_paged):
        o = self.options
        memory, bases, offsets, row = self.forms[is_paged]
        self.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        requests, group = len(lengths), o.heads // o.kv_heads
        scale = o.head_dim**-0.5 * 1.4426950408889634  # exp2 in the place of exp
        out = torch.empty_like(self.out)
        for layer in range(o.layers):
            decode[(requests, o.kv_heads, self.parts)](
                queries[layer], memory, bases, offsets[layer], self.paged.table, self.lengths, self.partial, self.sums, scale, row,
                self.paged.table.stride(0), self.span, IS_PAGED=is_paged, PAGE=o.page_tokens, GROUP=group,
                PADDED=max(16, triton.next_power_of_2(group)), HEAD=o.head_dim, BLOCK=self.BLOCK, DOT=self.dot)
            merge[(requests * o.heads,)](self.partial, self.sums, out[layer], self.parts, PARTS=triton.next_power_of_2(self.parts), HEAD=o.head_dim)
        return [[each] for each in out]
