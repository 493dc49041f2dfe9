#include "device_memory/model/costs.h"

#include <cmath>

namespace cachalot::device_memory {
namespace {

// GMLake, Table 1: the cost of 2 GiB in units, divided by the calls that make 2 GiB.
constexpr std::array<CallCosts, 3> kGmlakeUnits = {{
    {.reserve = 0.003, .create = 18.1 / 1024, .map = 0.70 / 1024, .set_access = 96.8 / 1024},
    {.reserve = 0.003, .create = 0.89 / 16, .map = 0.01 / 16, .set_access = 8.2 / 16},
    {.reserve = 0.002, .create = 0.79 / 2, .map = 0.002 / 2, .set_access = 0.7 / 2},
}};

constexpr CallCosts kVattention = {.reserve = 2e3,
                                   .free_range = 1e3,
                                   .create = 29e3,
                                   .release = 23e3,
                                   .map = 2e3,
                                   .set_access = 38e3,
                                   .unmap = 34e3};

constexpr CallCosts kKvcached = {.reserve = 19e3,
                                 .free_range = kVattention.free_range,
                                 .create = 193e3,
                                 .release = kVattention.release,
                                 .map = 1.45e3,
                                 .set_access = 36e3,
                                 .unmap = 25.6e3};

// Costs of 2 MiB, made to grow as GMLake's do.
constexpr CostTable grown(const char* name, const char* source, const CallCosts& small) {
  CostTable table{.name = name, .source = source};
  const CallCosts& unit = kGmlakeUnits[0];
  for (std::size_t i = 0; i < table.at.size(); ++i) {
    const CallCosts& size = kGmlakeUnits[i];
    table.at[i] = {.reserve = small.reserve,
                   .free_range = small.free_range,
                   .create = small.create * (size.create / unit.create),
                   .release = small.release * (size.create / unit.create),
                   .map = small.map * (size.map / unit.map),
                   .set_access = small.set_access * (size.set_access / unit.set_access),
                   .unmap = small.unmap * (size.set_access / unit.set_access)};
  }
  return table;
}

constexpr CostTable gmlake() {
  CostTable table = grown("gmlake_table1", "GMLake, ASPLOS 2024, Table 1", kVattention);
  for (std::size_t i = 0; i < table.at.size(); ++i) {
    table.at[i].reserve = kGmlakeUnits[i].reserve * kGmlakeUnitNs;
    table.at[i].create = kGmlakeUnits[i].create * kGmlakeUnitNs;
    table.at[i].map = kGmlakeUnits[i].map * kGmlakeUnitNs;
    table.at[i].set_access = kGmlakeUnits[i].set_access * kGmlakeUnitNs;
  }
  return table;
}

constexpr std::array<CostTable, 3> kTables = {
    gmlake(),
    grown("vattention_table3", "vAttention, ASPLOS 2025, Table 3", kVattention),
    grown("kvcached_bench", "kvcached, bench_vmm, A100, 4096 pages, means", kKvcached),
};

}  // namespace

std::span<const CostTable> cost_tables() {
  return kTables;
}

std::string cost_table_names(const char* separator) {
  std::string names;
  for (const CostTable& table : kTables)
    names += (names.empty() ? "" : separator) + std::string(table.name);
  return names;
}

const CostTable* find_cost_table(std::string_view name) {
  for (const CostTable& table : kTables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

double interpolate(const CostTable& table, double CallCosts::*call, std::uint64_t bytes) {
  const auto& sizes = CostTable::kBytes;
  if (bytes <= sizes.front()) return table.at.front().*call;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    if (bytes > sizes[i]) continue;
    const double low = table.at[i - 1].*call, high = table.at[i].*call;
    const auto from = static_cast<double>(sizes[i - 1]), to = static_cast<double>(sizes[i]);
    const double part = std::log(static_cast<double>(bytes) / from) / std::log(to / from);
    return low * std::pow(high / low, part);
  }
  return table.at.back().*call * static_cast<double>(bytes) / static_cast<double>(sizes.back());
}

}  // namespace cachalot::device_memory
