// Whole numbers: sums, products, quotients, the least and greatest.
#include <algorithm>

#include "ptx/operations.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

// Of twice the bits.
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
    std::conditional_t<sizeof(T) == 4,
                       std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>>;

// In arithmetic without a sign, where nothing overflows.
template <class T>
using Plain = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

constexpr auto kAdd = [](auto a, auto b) {
  return static_cast<Plain<decltype(a)>>(a) + static_cast<Plain<decltype(a)>>(b);
};
constexpr auto kSubtract = [](auto a, auto b) {
  return static_cast<Plain<decltype(a)>>(a) - static_cast<Plain<decltype(a)>>(b);
};
constexpr auto kMultiply = [](auto a, auto b) {
  return static_cast<Plain<decltype(a)>>(a) * static_cast<Plain<decltype(a)>>(b);
};
constexpr auto kMultiplyAdd = [](auto a, auto b, auto c) {
  using P = Plain<decltype(a)>;
  return static_cast<P>(a) * static_cast<P>(b) + static_cast<P>(c);
};
constexpr auto kHigh = [](auto a, auto b) {
  using T = decltype(a);
  return (static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (sizeof(T) * 8);
};
// A quotient by 0 is no error on a GPU, but never intended.
constexpr auto kDivide = [](auto a, auto b) {
  using T = decltype(a);
  if (b == 0) fail(Wrong::kRule, "divides by 0");
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(kSubtract(T{0}, a));
  return static_cast<T>(a / b);
};
constexpr auto kRemainder = [](auto a, auto b) {
  using T = decltype(a);
  if (b == 0) fail(Wrong::kRule, "divides by 0");
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return T{0};
  return static_cast<T>(a % b);
};
constexpr auto kLeast = [](auto a, auto b) { return std::min(a, b); };
constexpr auto kGreatest = [](auto a, auto b) { return std::max(a, b); };
constexpr auto kNegate = [](auto a) { return kSubtract(decltype(a){0}, a); };
constexpr auto kAbsolute = [](auto a) {
  return a < 0 ? kNegate(a) : static_cast<Plain<decltype(a)>>(a);
};

template <class T>
void multiply_wide(Thread& thread, const Instruction& i) {
  const Wide<T> a = thread.get<T>(i.operand[1]), b = thread.get<T>(i.operand[2]);
  thread.set<Wide<T>>(i.operand[0], a * b);
}
template <class T>
void multiply_add_wide(Thread& thread, const Instruction& i) {
  const Wide<T> a = thread.get<T>(i.operand[1]), b = thread.get<T>(i.operand[2]);
  const Wide<T> c = thread.get<Wide<T>>(i.operand[3]);
  thread.set<Wide<T>>(i.operand[0], static_cast<Wide<T>>(kAdd(static_cast<Wide<T>>(a * b), c)));
}

template <class T>
void add_type(Table& table, const std::string& type) {
  const std::string bits = std::to_string(sizeof(T) * 8), wide = std::to_string(sizeof(T) * 16);
  const std::string one = "d" + bits + " s" + bits;
  const std::string two = one + " s" + bits, three = two + " s" + bits;
  table.add("add." + type, two, binary<T, kAdd>);
  table.add("sub." + type, two, binary<T, kSubtract>);
  table.add("mul.lo." + type, two, binary<T, kMultiply>);
  table.add("mul.hi." + type, two, binary<T, kHigh>);
  table.add("mad.lo." + type, three, ternary<T, kMultiplyAdd>);
  table.add("div." + type, two, binary<T, kDivide>);
  table.add("rem." + type, two, binary<T, kRemainder>);
  table.add("min." + type, two, binary<T, kLeast>);
  table.add("max." + type, two, binary<T, kGreatest>);
  if constexpr (sizeof(T) < 8) {
    const std::string factors = "d" + wide + " s" + bits + " s" + bits;
    table.add("mul.wide." + type, factors, multiply_wide<T>);
    table.add("mad.wide." + type, factors + " s" + wide, multiply_add_wide<T>);
  }
  if constexpr (std::is_signed_v<T>) {
    table.add("neg." + type, one, unary<T, kNegate>);
    table.add("abs." + type, one, unary<T, kAbsolute>);
  }
}

}  // namespace

void add_integers(Table& table) {
  add_type<std::uint16_t>(table, "u16");
  add_type<std::int16_t>(table, "s16");
  add_type<std::uint32_t>(table, "u32");
  add_type<std::int32_t>(table, "s32");
  add_type<std::uint64_t>(table, "u64");
  add_type<std::int64_t>(table, "s64");
}

}  // namespace cachalot::ptx
