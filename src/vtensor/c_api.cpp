// The C ABI: include/cachalot/vmm.h over vTensors.
#include <cachalot/vmm.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cinttypes>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>

#include "base/c_boundary.h"
#include "device_memory/open/open_backend.h"
#include "os/file_descriptor.h"
#include "vtensor/c_copy.h"
#include "vtensor/shared_budget.h"
#include "vtensor/vtensor_set.h"

using namespace cachalot;  // NOLINT: this file is nothing but a translation
using namespace cachalot::device_memory;
using namespace cachalot::vtensor;  // NOLINT
using base::code_of;
using base::fail;
using base::guarded;
using base::missing;

struct cachalot_vmm_range {
  cachalot_vmm* vmm;
  VTensor* vtensor;
};

// In the order in which it can be taken apart, from the end.
struct cachalot_vmm {
  os::FileDescriptor event;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ChunkBudget> budget;
  std::unique_ptr<VTensorSet> set;
  std::uint64_t chunk_bytes = 0;
  std::mutex mutex;
  std::unordered_set<cachalot_vmm_range*> ranges;

  ~cachalot_vmm() {
    for (cachalot_vmm_range* const range : ranges) delete range;
  }
};

namespace {

constexpr std::uint64_t kDefaultChunkBytes = std::uint64_t{2} << 20;

Result<std::unique_ptr<ChunkBudget>> open_budget(const cachalot_vmm_options& options,
                                                 std::uint64_t chunk_bytes) {
  const std::uint64_t chunks = options.limit_bytes / chunk_bytes;
  if (options.limit_bytes != 0 && chunks == 0) {
    return Error::make(Code::kInvalidArgument,
                       "vmm options: limit_bytes %" PRIu64 ", expected a chunk of %" PRIu64
                       " at least",
                       options.limit_bytes, chunk_bytes);
  }
  if (options.budget != nullptr) {
    CACHALOT_TRY_ASSIGN(
        auto shared,
        SharedBudget::join({.path = options.budget,
                            .chunks = chunks,
                            .chunk_bytes = chunk_bytes,
                            .guaranteed_chunks = options.guaranteed_bytes / chunk_bytes}));
    return std::unique_ptr<ChunkBudget>(std::move(shared));
  }
  if (options.guaranteed_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "vmm options: guaranteed_bytes %" PRIu64
                       " without a budget to guarantee them",
                       options.guaranteed_bytes);
  }
  return std::unique_ptr<ChunkBudget>(
      std::make_unique<LocalBudget>(chunks == 0 ? LocalBudget::kNoLimit : chunks));
}

// An eventfd adds up unread values, and only the last ask is true: it is read first.
void notify(int fd, std::uint64_t bytes) {
  std::uint64_t old = 0;
  static_cast<void>(!read(fd, &old, sizeof old));
  static_cast<void>(!write(fd, &bytes, sizeof bytes));
}

Result<std::unique_ptr<cachalot_vmm>> open_vmm(const cachalot_vmm_options* given) {
  CACHALOT_TRY_ASSIGN(const cachalot_vmm_options options, base::read_struct(given, "vmm options"));
  auto vmm = std::make_unique<cachalot_vmm>();
  vmm->event = os::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!vmm->event) return Error::from_errno(errno, "vmm: an eventfd");
  const std::string_view device = options.device == nullptr ? "memfd" : options.device;
  vmm->chunk_bytes = options.chunk_bytes == 0 ? kDefaultChunkBytes : options.chunk_bytes;
  CACHALOT_TRY_ASSIGN(const KvLayout layout,
                      parse_kv_layout(options.layout == nullptr ? "folded" : options.layout));
  CACHALOT_TRY_ASSIGN(vmm->backend, open_backend(device));
  std::vector<std::uint64_t> parts = {options.part_bytes[0]};
  if (options.part_bytes[1] != 0) parts.push_back(options.part_bytes[1]);
  const std::uint64_t chunk_bytes = vmm->chunk_bytes;
  const VTensorOptions how{
      .shape = {.layers = options.layers, .part_bytes = parts},
      .layout = layout,
      .chunk_bytes = chunk_bytes,
      .max_tokens = options.max_tokens,
      .copy = copy_of(options.copy, options.copy_context, device),
      .ready_chunks = options.ready_bytes / chunk_bytes,
      .idle_chunks = options.idle_bytes == 0 ? ~std::uint64_t{0} : options.idle_bytes / chunk_bytes,
      .on_pressure = [fd = vmm->event.get(), chunk_bytes](std::uint64_t chunks) {
        notify(fd, chunks * chunk_bytes);
      }};
  CACHALOT_TRY(VTensorSet::check(*vmm->backend, how));  // before anything is made by these sizes
  CACHALOT_TRY_ASSIGN(vmm->budget, open_budget(options, chunk_bytes));
  CACHALOT_TRY_ASSIGN(vmm->set, VTensorSet::open(*vmm->backend, *vmm->budget, how));
  return vmm;
}

cachalot_vmm_statistics statistics_of(const cachalot_vmm& vmm) {
  const VTensorStats stats = vmm.set->stats();
  const CallCounts calls = vmm.backend->counts();
  const std::uint64_t chunk = vmm.chunk_bytes;
  cachalot_vmm_statistics out{};
  out.ranges = static_cast<std::uint32_t>(stats.live);
  out.physical_bytes = vmm.backend->physical_bytes();
  out.used_bytes = stats.chunks.used * chunk;
  out.idle_bytes = stats.idle_chunks * chunk;
  out.ready_bytes = stats.chunks.ready * chunk;
  out.stuck_bytes = stats.stuck_chunks * chunk;
  out.shared_bytes = stats.borrowed_chunks * chunk;
  out.shared_total_bytes = stats.borrowed_chunks_total * chunk;
  out.copied_bytes = stats.copied_bytes;
  out.asked_bytes = vmm.budget->asked() * chunk;
  out.prepared = stats.prepared;
  out.waits = stats.waits;
  out.wait_ns = stats.wait_ns;
  out.creates = calls.create;
  out.maps = calls.map;
  out.accesses = calls.set_access;
  out.unmaps = calls.unmap;
  return out;
}

}  // namespace

extern "C" {

cachalot_code cachalot_vmm_open(const cachalot_vmm_options* options, cachalot_vmm** vmm) {
  return guarded([&] {
    if (vmm == nullptr) return missing("vmm");
    *vmm = nullptr;
    Result<std::unique_ptr<cachalot_vmm>> opened = open_vmm(options);
    if (!opened) return fail(opened.error());
    *vmm = opened->release();
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_close(cachalot_vmm* vmm) {
  return guarded([&] {
    delete vmm;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_view(const cachalot_vmm* vmm, uint32_t layer, uint32_t part,
                                uint64_t* offset, uint64_t* stride) {
  return guarded([&] {
    if (vmm == nullptr) return missing("vmm");
    const KvShape& shape = vmm->set->layout().shape();
    if (layer >= shape.layers || part >= shape.part_bytes.size()) {
      return fail(Error::make(Code::kInvalidArgument,
                              "view: part %u of layer %u, expected one of %zu of %" PRIu64, part,
                              layer, shape.part_bytes.size(), shape.layers));
    }
    const RangeLayout::View view = vmm->set->layout().view(layer, part);
    if (offset != nullptr) *offset = view.offset;
    if (stride != nullptr) *stride = view.stride;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_reserve(cachalot_vmm* vmm, uint64_t tokens, uint64_t max_tokens,
                                   cachalot_vmm_range** range, uint64_t* address) {
  return guarded([&] {
    if (vmm == nullptr) return missing("vmm");
    if (range == nullptr) return missing("range");
    *range = nullptr;
    auto made =
        std::make_unique<cachalot_vmm_range>(cachalot_vmm_range{.vmm = vmm, .vtensor = nullptr});
    const Result<VTensorSet::Created> created = vmm->set->create(tokens, max_tokens);
    if (!created) return fail(created.error());
    made->vtensor = created->vtensor;
    if (address != nullptr) *address = made->vtensor->base();
    const std::lock_guard lock(vmm->mutex);
    *range = *vmm->ranges.insert(made.release()).first;
    return CACHALOT_OK;
  });
}

void cachalot_vmm_release(cachalot_vmm_range* range) {
  if (range == nullptr) return;
  static_cast<void>(guarded([&] {
    cachalot_vmm& vmm = *range->vmm;
    vmm.set->release(range->vtensor);
    {
      const std::lock_guard lock(vmm.mutex);
      vmm.ranges.erase(range);
    }
    delete range;
    return CACHALOT_OK;
  }));
}

cachalot_code cachalot_vmm_commit(cachalot_vmm_range* range, uint64_t tokens) {
  if (range != nullptr && tokens <= range->vtensor->ready_tokens()) return CACHALOT_OK;
  return guarded([&] {
    if (range == nullptr) return missing("range");
    return code_of(range->vmm->set->wait_ready(*range->vtensor, tokens));
  });
}

cachalot_code cachalot_vmm_prepare(cachalot_vmm_range* range, uint64_t tokens) {
  return guarded([&] {
    if (range == nullptr) return missing("range");
    range->vmm->set->prepare(*range->vtensor, tokens);
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_decommit(cachalot_vmm_range* range, uint64_t tokens) {
  return guarded([&] {
    if (range == nullptr) return missing("range");
    return code_of(range->vmm->set->shrink(*range->vtensor, tokens));
  });
}

cachalot_code cachalot_vmm_alias(cachalot_vmm_range* to, cachalot_vmm_range* from, uint64_t tokens,
                                 uint64_t* shared) {
  return guarded([&] {
    if (to == nullptr || from == nullptr) return missing("range");
    if (to->vmm != from->vmm) {
      return fail(Error::make(Code::kInvalidArgument, "alias: ranges of two vmms, expected one"));
    }
    const Result<std::uint64_t> done = to->vmm->set->alias(*to->vtensor, *from->vtensor, tokens);
    if (!done) return fail(done.error());
    if (shared != nullptr) *shared = *done;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_get_statistics(const cachalot_vmm* vmm,
                                          cachalot_vmm_statistics* statistics) {
  return guarded([&] {
    if (vmm == nullptr) return missing("vmm");
    const auto known = base::read_struct(statistics, "vmm statistics");
    if (!known) return fail(known.error());
    base::write_struct(statistics_of(*vmm), statistics);
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_vmm_notify(cachalot_vmm* vmm, int* fd) {
  return guarded([&] {
    if (vmm == nullptr) return missing("vmm");
    if (fd == nullptr) return missing("fd");
    *fd = vmm->event.get();
    return CACHALOT_OK;
  });
}

}  // extern "C"
