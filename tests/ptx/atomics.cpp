// Read-modify-write of global and shared memory. A thread's turn ends between instructions, so each is one
// step for all others.
#include <cstring>

#include "ptx/block.h"
#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

template <class T>
void add(Thread& thread, const Instruction& i) {
  const std::uint64_t at = thread.address(i, 1);
  T before{};
  thread.block.load(thread, i.detail, at, &before, sizeof before);
  const T after = static_cast<T>(before + thread.get<T>(i.operand[3]));
  thread.block.store(thread, i.detail, at, &after, sizeof after);
  thread.set<T>(i.operand[0], before);
}

template <class T>
void add_type(Table& table, const std::string& space, Detail::Space where, const char* type) {
  const std::string bits = std::to_string(sizeof(T) * 8);
  const Detail detail{.space = where, .bytes = sizeof(T), .is_atomic = true};
  for (const char* const order : {"", ".relaxed"}) {
    for (const char* const scope : {"", ".cta", ".gpu", ".sys"}) {
      if (*order != 0 && *scope == 0) continue;
      table.add(std::string("atom") + order + scope + space + ".add." + type,
                "d" + bits + " m s" + bits, add<T>, detail);
    }
  }
}

}  // namespace

void add_atomics(Table& table) {
  for (const auto& [space, where] :
       {std::pair<const char*, Detail::Space>{"", Detail::Space::kGeneric},
        {".global", Detail::Space::kGlobal},
        {".shared", Detail::Space::kShared}}) {
    add_type<std::uint32_t>(table, space, where, "u32");
    add_type<std::uint64_t>(table, space, where, "u64");
  }
}

}  // namespace cachalot::ptx
