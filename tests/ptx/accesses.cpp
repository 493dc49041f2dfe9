// Loads and stores. Cache operators say where bytes are kept on their way: here there is no cache, so they
// change nothing, and a watcher of a launch is told.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ptx/block.h"
#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

using Space = Detail::Space;

constexpr std::size_t kMostBytes = 32;

void load(Thread& thread, const Instruction& i) {
  const Detail& detail = i.detail;
  std::byte in[kMostBytes];
  thread.block.load(thread, detail, thread.address(i, detail.count), in,
                    std::uint64_t{detail.bytes} * detail.count);
  for (std::size_t k = 0; k < detail.count; ++k) {
    std::uint64_t value = 0;
    std::memcpy(&value, in + k * detail.bytes, detail.bytes);
    const unsigned unused = 64 - detail.bytes * 8u;
    if (detail.is_signed) {
      value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
    }
    thread.write(i.operand[k], value);
  }
}

void store(Thread& thread, const Instruction& i) {
  const Detail& detail = i.detail;
  std::byte out[kMostBytes];
  for (std::size_t k = 0; k < detail.count; ++k) {
    const std::uint64_t value = thread.read(i.operand[2 + k]);
    std::memcpy(out + k * detail.bytes, &value, detail.bytes);
  }
  thread.block.store(thread, detail, thread.address(i, 0), out,
                     std::uint64_t{detail.bytes} * detail.count);
}

std::vector<std::string> parts_of(const std::string& mnemonic) {
  std::vector<std::string> out(1);
  for (const char c : mnemonic) {
    if (c == '.') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

}  // namespace

// ld{.volatile}{.space}{.cache}{.nc}{.L1::…}{.vector}.type, and st alike, in this order.
std::vector<Operation> find_access(const std::string& mnemonic) {
  const std::vector<std::string> parts = parts_of(mnemonic);
  const bool is_load = parts[0] == "ld";
  if ((!is_load && parts[0] != "st") || parts.size() < 2) return {};
  static const std::map<std::string, Space> kSpaces = {{"global", Space::kGlobal},
                                                       {"shared", Space::kShared},
                                                       {"shared::cta", Space::kShared},
                                                       {"local", Space::kLocal},
                                                       {"param", Space::kParameter}};
  static const std::set<std::string> kLoads = {"ca", "cg", "cs", "lu", "cv"};
  static const std::set<std::string> kStores = {"wb", "cg", "cs", "wt"};
  static const std::map<std::string, std::uint8_t> kVectors = {{"v2", 2}, {"v4", 4}, {"v8", 8}};
  Operation out;
  Detail& detail = out.detail;
  std::size_t at = 1;
  const auto take_if = [&](bool found) {
    if (found) ++at;
    return found;
  };
  take_if(parts[at] == "volatile");
  if (kSpaces.contains(parts[at])) detail.space = kSpaces.at(parts[at++]);
  const bool is_global = detail.space == Space::kGlobal;
  if (at < parts.size() && (is_load ? kLoads : kStores).contains(parts[at])) {
    parts[at++].copy(detail.cache.data(), 2);
  }
  take_if(at < parts.size() && is_load && is_global && parts[at] == "nc");
  take_if(at < parts.size() && is_global && parts[at] == "L1::no_allocate");
  if (at < parts.size() && kVectors.contains(parts[at])) detail.count = kVectors.at(parts[at++]);
  if (at + 1 != parts.size()) return {};
  const std::uint32_t bits = bits_of(parts[at]);
  detail.bytes = static_cast<std::uint8_t>(bits / 8);
  detail.is_signed = parts[at][0] == 's';
  const bool fits = detail.bytes * detail.count <= (detail.count == 8 ? kMostBytes : 16);
  if (bits < 8 || !fits || (detail.space == Space::kParameter && !is_load)) return {};
  out.mnemonic = mnemonic;
  out.run = is_load ? load : store;
  std::string value = (is_load ? "d" : "s") + std::to_string(bits) + "+";
  if (detail.count != 1) value = "{" + std::to_string(detail.count) + value + "}";
  out.shape = is_load ? value + " m" : "m " + value;
  return {out};
}

}  // namespace cachalot::ptx
