"""Types of arguments."""

import os
from typing import TYPE_CHECKING, Any, Sequence, Tuple, Union

if TYPE_CHECKING:
    from cachalot._cachalot import BlockHash, BlockHashes

#: Memory: anything with the buffer protocol (NumPy, array, memoryview, mmap) or, on the CPU, DLPack (torch).
#: On a GPU: DLPack, __cuda_array_interface__, or a pair (address, bytes).
Memory = Any
#: A GPU stream: a cudaStream_t as an int, or an object with `cuda_stream` (torch.cuda.Stream); None: the cache's.
Stream = Any
#: A pool's path, or the paths of all its devices in order.
Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
#: Token ids: an array of integers or a sequence of int. uint32 is not copied.
Tokens = Union[Memory, Sequence[int]]
#: For each of the first blocks what distinguishes it besides its tokens: None, or tuples as vLLM's
#: ("lora", name, path), ("mm", identifier, offset), ("cache_salt", salt), ("prompt_embeds", digest).
ExtraKeys = Union[Sequence[Union[Sequence[Tuple[Union[str, bytes, int], ...]], None]], None]
#: Page ids: an array of integers or a sequence of int.
Pages = Union[Memory, Sequence[int]]
#: Hashes of blocks: the result of hash_tokens() or a slice of it, an array (n, 2) of uint64, or a sequence.
Hashes = Union["BlockHashes", Memory, Sequence["BlockHash"]]
#: A hash, a row of an array of hashes, or None: the chain starts a prompt.
Parent = Union["BlockHash", Memory, None]
#: Ranges of tokens [first, last) of one block, ascending and disjoint; None: all tokens.
TokenRanges = Union[Sequence[Tuple[int, int]], None]
#: Of each layer and head the tokens that it has chosen, ascending: an array of integers [layers, heads, k], or lists
#: of any lengths.
HeadTokens = Union[Memory, Sequence[Sequence[Tokens]]]
