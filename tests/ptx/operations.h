// For tests: tables of what a mnemonic does. Each is one file's; find_operations() looks in all.
#pragma once

#include <string>
#include <unordered_map>

#include "ptx/program.h"
#include "ptx/thread.h"

namespace cachalot::ptx {

class Table {
 public:
  void add(const std::string& mnemonic, const std::string& shape, Run run,
           const Detail& detail = {}) {
    rows_.insert({mnemonic, {mnemonic, shape, run, detail}});
  }
  std::vector<Operation> find(const std::string& mnemonic) const {
    std::vector<Operation> out;
    const auto [first, last] = rows_.equal_range(mnemonic);
    for (auto row = first; row != last; ++row) out.push_back(row->second);
    return out;
  }

 private:
  std::unordered_multimap<std::string, Operation> rows_;
};

void add_integers(Table& table);
void add_bits(Table& table);
void add_comparisons(Table& table);
void add_conversions(Table& table);
void add_floats(Table& table);
void add_control(Table& table);
void add_atomics(Table& table);
void add_bulk(Table& table);
// Loads and stores have too many names for a table.
std::vector<Operation> find_access(const std::string& mnemonic);

// d = f(a), f(a, b), f(a, b, c), of one type.
template <class T, auto kFunction>
void unary(Thread& thread, const Instruction& i) {
  thread.set<T>(i.operand[0], static_cast<T>(kFunction(thread.get<T>(i.operand[1]))));
}
template <class T, auto kFunction>
void binary(Thread& thread, const Instruction& i) {
  const T a = thread.get<T>(i.operand[1]), b = thread.get<T>(i.operand[2]);
  thread.set<T>(i.operand[0], static_cast<T>(kFunction(a, b)));
}
template <class T, auto kFunction>
void ternary(Thread& thread, const Instruction& i) {
  const T a = thread.get<T>(i.operand[1]), b = thread.get<T>(i.operand[2]),
          c = thread.get<T>(i.operand[3]);
  thread.set<T>(i.operand[0], static_cast<T>(kFunction(a, b, c)));
}

}  // namespace cachalot::ptx
