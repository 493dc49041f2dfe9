// Functions that a GPU's kernels run, too: compiled for both where nvcc compiles them.
#pragma once

#ifdef __CUDACC__
#define CACHALOT_HOST_DEVICE __host__ __device__
#define CACHALOT_UNROLL _Pragma("unroll")
#else
#define CACHALOT_HOST_DEVICE
#define CACHALOT_UNROLL
#endif
