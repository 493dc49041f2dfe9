// `bench transfer`: the transfer engine between two processes of this machine, beside what limits it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "measure.h"

namespace cachalot::apps::bench {

// Transfers of 4 KiB to 64 MiB, beside ucx_perftest.
Status bench_transfer_sizes(const Settings& settings, Report& report);
// Scattered pieces of 256 bytes to 144 KiB, beside one piece.
Status bench_transfer_fragments(const Settings& settings, Report& report);
// Out of the memory of a process of this machine, beside one plain copy of the same bytes.
Status bench_transfer_memory(const Settings& settings, Report& report);
// Bytes that are verified, beside the same ones without checksums.
Status bench_transfer_checksums(const Settings& settings, Report& report);
// A push for each layer while the next one is computed, beside one push after the last one.
Status bench_transfer_layers(const Settings& settings, Report& report);
// KV of one prefill rank for one of two decode ranks with another layout: converted before, while or after it is copied,
// or by an exchange among the decode ranks.
Status bench_transfer_convert(const Settings& settings, Report& report);
// KV of real models in one request or many, beside the formula bytes / (link * coefficient).
Status bench_transfer_formula(const Settings& settings, Report& report);

// "20Ki", "1Mi"
std::string size_name(std::uint64_t bytes);

}  // namespace cachalot::apps::bench
