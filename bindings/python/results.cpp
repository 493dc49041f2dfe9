// What the calls of a Client return: stores, counters, a registered cache.
#include <cachalot/client.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "client_object.h"
#include "collected.h"
#include "module.h"

namespace cachalot::python {
namespace {

struct Counter {
  const char* name;
  std::uint64_t Statistics::*member;
};
constexpr Counter kCounters[] = {
    {"lookups", &Statistics::lookups},
    {"looked_up_blocks", &Statistics::looked_up_blocks},
    {"hit_blocks", &Statistics::hit_blocks},
    {"loads", &Statistics::loads},
    {"loaded_blocks", &Statistics::loaded_blocks},
    {"loaded_bytes", &Statistics::loaded_bytes},
    {"stores", &Statistics::stores},
    {"stored_blocks", &Statistics::stored_blocks},
    {"stored_bytes", &Statistics::stored_bytes},
    {"duplicate_blocks", &Statistics::duplicate_blocks},
    {"stale_blocks", &Statistics::stale_blocks},
    {"damaged_blocks", &Statistics::damaged_blocks},
    {"reattachments", &Statistics::reattachments},
    {"copied_bytes", &Statistics::copied_bytes},
    {"prompts", &Statistics::prompts},
    {"prompt_blocks", &Statistics::prompt_blocks},
    {"used_pool_blocks", &Statistics::used_pool_blocks},
    {"used_peer_blocks", &Statistics::used_peer_blocks},
    {"used_storage_blocks", &Statistics::used_storage_blocks},
    {"gpu_threads_bytes", &Statistics::gpu_threads_bytes},
    {"gpu_bulk_bytes", &Statistics::gpu_bulk_bytes},
    {"gpu_batch_bytes", &Statistics::gpu_batch_bytes},
    {"gpu_copy_engine_bytes", &Statistics::gpu_copy_engine_bytes},
};

}  // namespace

void add_results(nb::module_& module) {
  nb::class_<Stored>(module, "Stored", "The result of a store.")
      .def_ro("blocks", &Stored::blocks, "Leading blocks that are in the pool now.")
      .def_ro("written", &Stored::written, "Of these, blocks that this call wrote.")
      .def_prop_ro(
          "reason",
          [](const Stored& stored) -> std::optional<std::string> {
            if (!stored.reason) return std::nullopt;
            return code_name(*stored.reason);
          },
          "Why not all blocks are in the pool: 'no_space', or 'refused' (the parent is not in\n"
          "the pool). None: all are.")
      .def("__repr__", [](const Stored& stored) {
        return "Stored(blocks=" + std::to_string(stored.blocks) +
               ", written=" + std::to_string(stored.written) + ", reason=" +
               (stored.reason ? "'" + std::string(code_name(*stored.reason)) + "'" : "None") + ")";
      });

  nb::class_<Statistics> statistics(
      module, "Statistics",
      "Counts since the client attached. stale_blocks: changed during the read, so not\n"
      "counted as loaded. damaged_blocks: wrong checksum.\n"
      "\n"
      "loads, loaded_blocks: each call that loads layers or tokens counts its blocks again; a\n"
      "LayerLoad counts once, after its last layer.\n"
      "loaded_bytes, stored_bytes: of the blocks that loads returned and that stores wrote.\n"
      "Of layers and tokens only their own bytes count.\n"
      "copied_bytes: between pool and pages, in both directions, each layer when it is copied;\n"
      "also of blocks that did not count in the end.\n"
      "\n"
      "hit_rate: the used_..._blocks by prompt_blocks. Each prompt counts once: lookup() and\n"
      "prefetch() ask for their blocks, a load uses those that it returns, and asks for them\n"
      "if neither call did. lookups, looked_up_blocks and hit_blocks count each call.");
  for (const Counter& counter : kCounters) statistics.def_ro(counter.name, counter.member);
  statistics
      .def_prop_ro(
          "hit_rate",
          [](const Statistics& s) -> std::optional<double> {
            if (s.prompt_blocks == 0) return std::nullopt;
            return static_cast<double>(s.used_pool_blocks + s.used_peer_blocks +
                                       s.used_storage_blocks) /
                   static_cast<double>(s.prompt_blocks);
          },
          "Blocks that prompts used, by blocks that they asked for. None: no prompt yet.")
      .def(
          "as_dict",
          [](const Statistics& values) {
            nb::dict all;
            for (const Counter& counter : kCounters) all[counter.name] = values.*counter.member;
            return all;
          },
          nb::sig("def as_dict(self) -> dict[str, int]"))
      .def("__repr__", [](const Statistics& values) {
        std::string text = "Statistics(";
        for (const Counter& counter : kCounters) {
          text += (text.back() == '(' ? "" : ", ") + std::string(counter.name) + "=" +
                  std::to_string(values.*counter.member);
        }
        return text + ")";
      });

  nb::class_<CacheObject>(module, "Cache", nb::type_slots(kTraverse<CacheObject>),
                          "A registered paged cache, from Client.register_cache().")
      .def_prop_ro("number",
                   [](const CacheObject& cache) { return static_cast<std::uint32_t>(cache.id); })
      .def_prop_ro(
          "client", [](const CacheObject& cache) { return cache.owner; },
          nb::sig("def client(self) -> Client"));
}

}  // namespace cachalot::python
