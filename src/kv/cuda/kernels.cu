// The fused copies on a GPU: kv/fused with a GPU's memory. Four kernels, found by name:
//
//   cachalot_gather, cachalot_scatter             threads copy; sm_80 and later
//   cachalot_gather_bulk, cachalot_scatter_bulk   bulk transfers; sm_90 and later, one warp a thread
//                                                 block, kStages * item_bytes of shared memory
//
// Nothing of CUDA's runtime is used, so nothing of it is linked.
//
// @source CUDA C++ programming guide and PTX ISA: cache operators, cp.async.bulk, mbarrier
#include "kv/fused/copy_bulk.h"
#include "kv/fused/copy_thread.h"

namespace {

using namespace cachalot::kv;

// The type of a load or store of so many bytes that the intrinsics know.
template <std::uint32_t kBytes>
struct AccessOf;
template <>
struct AccessOf<16> {
  using Type = ulonglong2;
};
template <>
struct AccessOf<8> {
  using Type = unsigned long long;
};
template <>
struct AccessOf<4> {
  using Type = unsigned int;
};
template <>
struct AccessOf<2> {
  using Type = unsigned short;
};
template <>
struct AccessOf<1> {
  using Type = unsigned char;
};

__device__ Unit value_of(const ulonglong2& access) {
  return {access.x, access.y};
}
template <class T>
__device__ T value_of(const T& access) {
  return access;
}
__device__ ulonglong2 access_of(const Unit& value) {
  return {value.low, value.high};
}
template <class T>
__device__ T access_of(const T& value) {
  return value;
}

// The pool's side: reads fetch again what the second-level cache may have of it, writes go through
// (ld.cv, st.wt). The engine's side leaves the first-level cache alone.
struct DeviceMemory {
  template <class T>
  __device__ T load_pool(std::uint64_t at) {
    using A = typename AccessOf<sizeof(T)>::Type;
    return static_cast<T>(value_of(__ldcv(reinterpret_cast<const A*>(at))));
  }
  template <class T>
  __device__ void store_pool(std::uint64_t at, T value) {
    using A = typename AccessOf<sizeof(T)>::Type;
    __stwt(reinterpret_cast<A*>(at), static_cast<A>(access_of(value)));
  }
  template <class T>
  __device__ T load_engine(std::uint64_t at) {
    using A = typename AccessOf<sizeof(T)>::Type;
    return static_cast<T>(value_of(__ldcg(reinterpret_cast<const A*>(at))));
  }
  template <class T>
  __device__ void store_engine(std::uint64_t at, T value) {
    using A = typename AccessOf<sizeof(T)>::Type;
    __stcg(reinterpret_cast<A*>(at), static_cast<A>(access_of(value)));
  }
};

template <Direction kDirection>
__device__ void copy_by_threads(const FusedLaunch& launch) {
  const CallView call(launch);
  DeviceMemory memory;
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  fused::copy_thread<kDirection>(call, thread, std::uint64_t{gridDim.x} * blockDim.x, memory);
}

#if __CUDA_ARCH__ >= 900

// A warp's bulk transfers through its thread block's shared memory, set going by its first thread. All that
// touches the stages is the transfer engine itself, so only the barriers, which that thread writes, need a
// proxy fence.
class BulkChannel {
 public:
  __device__ BulkChannel(std::byte* stages, std::uint64_t* barriers, fused::ItemEntry* entries,
                         std::uint32_t stage_bytes)
      : stages_(address(stages)),
        barriers_(address(barriers)),
        entries_(entries),
        stage_bytes_(stage_bytes) {
    if (!leads()) return;
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(stage)) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  // The leader may still read the batch before.
  template <class EntryOf>
  __device__ void look_up(EntryOf entry_of) {
    const fused::ItemEntry entry = entry_of(threadIdx.x);
    __syncwarp();
    entries_[threadIdx.x] = entry;
    __syncwarp();
  }
  __device__ const fused::ItemEntry* entries() const { return entries_; }
  __device__ bool leads() const { return threadIdx.x == 0; }

  __device__ void load(std::uint32_t stage, std::uint64_t from, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(stage)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(place(stage)),
        "l"(global(from)), "r"(bytes), "r"(barrier(stage))
        : "memory");
  }

  __device__ void wait_loaded(std::uint32_t stage, std::uint64_t use) {
    const auto parity = static_cast<std::uint32_t>(use & 1);
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(barrier(stage)), "r"(parity)
          : "memory");
    }
  }

  __device__ void store(std::uint32_t stage, std::uint64_t to, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global(to)),
                 "r"(place(stage)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  __device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
  __device__ void drain() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

  __device__ void zero(std::uint64_t to, std::uint32_t bytes) {
    DeviceMemory memory;
    for (std::uint32_t i = 0; i < bytes; i += kUnitBytes) memory.store_pool(to + i, Unit{0, 0});
  }

 private:
  __device__ static std::uint32_t address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ static std::uint64_t global(std::uint64_t at) {
    return __cvta_generic_to_global(reinterpret_cast<const void*>(at));
  }
  __device__ std::uint32_t barrier(std::uint32_t stage) const { return barriers_ + stage * 8; }
  __device__ std::uint32_t place(std::uint32_t stage) const {
    return stages_ + stage * stage_bytes_;
  }

  std::uint32_t stages_, barriers_;
  fused::ItemEntry* entries_;
  std::uint32_t stage_bytes_;
};

template <Direction kDirection>
__device__ void copy_in_bulk(const FusedLaunch& launch) {
  const CallView call(launch);
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ std::uint64_t barriers[kStages];
  __shared__ fused::ItemEntry entries[kItemsAtOnce];
  BulkChannel channel(stages, barriers, entries, call->item_bytes);
  fused::copy_bulk<kDirection>(call, blockIdx.x, gridDim.x, channel);
}

#else

// The host does not launch it on such a GPU.
template <Direction kDirection>
__device__ void copy_in_bulk(const FusedLaunch&) {
  __trap();
}

#endif

}  // namespace

extern "C" {

__global__ void __launch_bounds__(512) cachalot_gather(const __grid_constant__ FusedLaunch launch) {
  copy_by_threads<Direction::kGather>(launch);
}
__global__ void __launch_bounds__(512)
    cachalot_scatter(const __grid_constant__ FusedLaunch launch) {
  copy_by_threads<Direction::kScatter>(launch);
}
__global__ void __launch_bounds__(32)
    cachalot_gather_bulk(const __grid_constant__ FusedLaunch launch) {
  copy_in_bulk<Direction::kGather>(launch);
}
__global__ void __launch_bounds__(32)
    cachalot_scatter_bulk(const __grid_constant__ FusedLaunch launch) {
  copy_in_bulk<Direction::kScatter>(launch);
}

}  // extern "C"
