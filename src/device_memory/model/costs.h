// What a GPU's driver takes for a call, as published, for handles of any size.
//
// Three sizes are measured (GMLake, Table 1); between them a cost is interpolated in log-log, where
// the three points are far from a line but monotone pieces are the least that can be assumed. Above
// the largest a call costs in proportion to its bytes.
//
// The cost of one set_access() or unmap() over many mappings is unpublished. `Spanning`
// says which of two answers is charged; the truth lies between them until a GPU has been measured.
//
// | table              | machine | says about                        | unit                           |
// | ------------------ | ------- | --------------------------------- | ------------------------------ |
// | gmlake_table1      | A100    | reserve, create, map, set_access; 2 MiB, 128 MiB, 1 GiB | one cuMemAlloc of 2 GiB |
// | vattention_table3  | A100    | all seven; 2 MiB                  | us                             |
// | kvcached_bench     | A100    | reserve, create, map, set_access, unmap; 2 MiB | us                |
//
// GMLake gives ratios only. Its unit is taken to be 402 us, so that one set_access() of 2 MiB is the
// 38 us of vAttention's table; kvcached measured 36 us on a machine of its own. (GMLake's own log of a
// run, 82 us a chunk mapped, would make the unit 861 us: all costs 2.1 times as high.)
//
// What a table does not say is filled in: other sizes grow as GMLake's do, unmap as set_access and
// release as create; calls that are missing cost what vAttention says. reserve and free_range cost
// the same for any size: the three figures agree within a third.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::device_memory {

enum class Spanning : std::uint8_t {
  kEachMapping,  // as if each mapping had been named by a call of its own: what is published
  kByBytes,      // as one mapping of all the bytes: the best that one call can do
};

// Nanoseconds of one call.
struct CallCosts {
  double reserve = 0;
  double free_range = 0;
  double create = 0;
  double release = 0;
  double map = 0;
  double set_access = 0;
  double unmap = 0;
};

struct CostTable {
  static constexpr std::array<std::uint64_t, 3> kBytes = {
      std::uint64_t{2} << 20, std::uint64_t{128} << 20, std::uint64_t{1} << 30};

  const char* name = "";
  const char* source = "";
  std::array<CallCosts, 3> at = {};  // for handles of kBytes
  Spanning spanning = Spanning::kEachMapping;
};

// One cuMemAlloc of 2 GiB, GMLake's unit.
inline constexpr double kGmlakeUnitNs = 402e3;

std::span<const CostTable> cost_tables();
// "gmlake_table1, …"
std::string cost_table_names(const char* separator = ", ");
// Null: there is none of that name.
const CostTable* find_cost_table(std::string_view name);

// The cost of one call that handles `bytes`.
double interpolate(const CostTable& table, double CallCosts::*call, std::uint64_t bytes);

}  // namespace cachalot::device_memory
