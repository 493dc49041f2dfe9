"""What calls take, in types."""

import os
from typing import TYPE_CHECKING, Any, Sequence, Tuple, Union

if TYPE_CHECKING:
    from cachalot._cachalot import BlockHash, BlockHashes

#: Memory: anything with the buffer protocol (NumPy, array, memoryview, mmap) or, on the CPU, DLPack (torch).
#: A GPU's: by DLPack or __cuda_array_interface__, or a pair (address, bytes).
Memory = Any
#: A stream of a GPU: a cudaStream_t as an int, or an object with `cuda_stream` (torch.cuda.Stream); None: the cache's.
Stream = Any
#: A pool's path, or those of all its devices in order.
Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
#: Token ids: an array of integers or a sequence of int. uint32 is read as it lies there.
Tokens = Union[Memory, Sequence[int]]
#: Page ids: an array of integers or a sequence of int.
Pages = Union[Memory, Sequence[int]]
#: Hashes of blocks: what hash_tokens() returned or a slice of it, an array (n, 2) of uint64, or a sequence.
Hashes = Union["BlockHashes", Memory, Sequence["BlockHash"]]
#: A hash, a row of an array of hashes, or None: the chain starts a prompt.
Parent = Union["BlockHash", Memory, None]
#: Tokens [first, last) of one block, ascending and disjoint; None: all of them.
TokenRanges = Union[Sequence[Tuple[int, int]], None]
