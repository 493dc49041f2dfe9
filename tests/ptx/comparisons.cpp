// Predicates: comparisons, and choices by them.
#include <cmath>

#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

constexpr auto kEqual = [](auto a, auto b) { return a == b; };
constexpr auto kUnequal = [](auto a, auto b) {
  return a < b || a > b;
};  // not of what is no number
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kLessOrEqual = [](auto a, auto b) { return a <= b; };
constexpr auto kGreater = [](auto a, auto b) { return a > b; };
constexpr auto kGreaterOrEqual = [](auto a, auto b) { return a >= b; };
constexpr auto kUnordered = [](auto a, auto b) { return std::isnan(a) || std::isnan(b); };
// As another one, or what is no number.
template <auto kCompare>
constexpr auto kOrUnordered = [](auto a, auto b) { return kUnordered(a, b) || kCompare(a, b); };

constexpr auto kFirst = [](bool a, bool) { return a; };
constexpr auto kBoth = [](bool a, bool b) { return a && b; };
constexpr auto kEither = [](bool a, bool b) { return a || b; };
constexpr auto kOne = [](bool a, bool b) { return a != b; };

template <class T>
T flushed(T value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(T{0}, value) : value;
}

template <class T, auto kCompare, auto kCombine, bool kFlush>
void compare(Thread& thread, const Instruction& i) {
  T a = thread.get<T>(i.operand[2]), b = thread.get<T>(i.operand[3]);
  if constexpr (kFlush) {
    a = flushed(a);
    b = flushed(b);
  }
  const bool is = kCompare(a, b);
  const bool with = i.detail.mode == 0 || thread.get<bool>(i.operand[4]);
  thread.set<bool>(i.operand[0], kCombine(is, with));
  thread.set<bool>(i.operand[1], kCombine(!is, with));
}

template <class T, auto kCompare, bool kFlush = false>
void add_one(Table& table, const std::string& name, const std::string& type) {
  const std::string bits = std::to_string(sizeof(T) * 8);
  const std::string shape = "d1|d1 s" + bits + " s" + bits;
  Detail with;
  with.mode = 1;
  const std::string head = "setp." + name + ".";
  table.add(head + type, shape, compare<T, kCompare, kFirst, kFlush>);
  table.add(head + "and." + type, shape + " s1", compare<T, kCompare, kBoth, kFlush>, with);
  table.add(head + "or." + type, shape + " s1", compare<T, kCompare, kEither, kFlush>, with);
  table.add(head + "xor." + type, shape + " s1", compare<T, kCompare, kOne, kFlush>, with);
}

template <class T, bool kFlush = false>
void add_ordered(Table& table, const std::string& type) {
  add_one<T, kEqual, kFlush>(table, "eq", type);
  add_one<T, kUnequal, kFlush>(table, "ne", type);
  add_one<T, kLess, kFlush>(table, "lt", type);
  add_one<T, kLessOrEqual, kFlush>(table, "le", type);
  add_one<T, kGreater, kFlush>(table, "gt", type);
  add_one<T, kGreaterOrEqual, kFlush>(table, "ge", type);
}
template <class T>
void add_unsigned(Table& table, const std::string& type) {
  add_ordered<T>(table, type);
  add_one<T, kLess>(table, "lo", type);
  add_one<T, kLessOrEqual>(table, "ls", type);
  add_one<T, kGreater>(table, "hi", type);
  add_one<T, kGreaterOrEqual>(table, "hs", type);
}
template <class T>
void add_plain(Table& table, const std::string& type) {
  add_one<T, kEqual>(table, "eq", type);
  add_one<T, kUnequal>(table, "ne", type);
}
template <class T, bool kFlush>
void add_float(Table& table, const std::string& type) {
  add_ordered<T, kFlush>(table, type);
  add_one<T, kOrUnordered<kEqual>, kFlush>(table, "equ", type);
  add_one<T, kOrUnordered<kUnequal>, kFlush>(table, "neu", type);
  add_one<T, kOrUnordered<kLess>, kFlush>(table, "ltu", type);
  add_one<T, kOrUnordered<kLessOrEqual>, kFlush>(table, "leu", type);
  add_one<T, kOrUnordered<kGreater>, kFlush>(table, "gtu", type);
  add_one<T, kOrUnordered<kGreaterOrEqual>, kFlush>(table, "geu", type);
  add_one<T, kUnordered, kFlush>(table, "nan", type);
}

// Which of both is read: the other may be anything.
template <class T>
void select(Thread& thread, const Instruction& i) {
  const bool first = thread.get<bool>(i.operand[3]);
  thread.set<T>(i.operand[0], thread.get<T>(i.operand[first ? 1 : 2]));
}
template <class T>
void add_select(Table& table, const std::string& bits) {
  const std::string shape = "d" + bits + " s" + bits + " s" + bits + " s1";
  for (const char* const kind : {"selp.b", "selp.u", "selp.s", "selp.f"}) {
    table.add(kind + bits, shape, select<T>);
  }
}

}  // namespace

void add_comparisons(Table& table) {
  add_plain<std::uint16_t>(table, "b16");
  add_plain<std::uint32_t>(table, "b32");
  add_plain<std::uint64_t>(table, "b64");
  add_unsigned<std::uint16_t>(table, "u16");
  add_unsigned<std::uint32_t>(table, "u32");
  add_unsigned<std::uint64_t>(table, "u64");
  add_ordered<std::int16_t>(table, "s16");
  add_ordered<std::int32_t>(table, "s32");
  add_ordered<std::int64_t>(table, "s64");
  add_float<float, false>(table, "f32");
  add_float<float, true>(table, "ftz.f32");
  add_float<double, false>(table, "f64");
  add_select<std::uint16_t>(table, "16");
  add_select<std::uint32_t>(table, "32");
  add_select<std::uint64_t>(table, "64");
}

}  // namespace cachalot::ptx
