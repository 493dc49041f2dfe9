// From one type to another.
#include <cfenv>
#include <cmath>
#include <limits>

#include "ptx/half.h"
#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

// The destination may be a wider register, which then has the sign, or zeros.
template <class To, class From>
void convert(Thread& thread, const Instruction& i) {
  thread.set<To>(i.operand[0], static_cast<To>(thread.get<From>(i.operand[1])));
}

template <class T>
T rounded(T value, std::uint8_t mode) {
  switch (mode) {
    case FE_DOWNWARD / 1024:
      return std::floor(value);
    case FE_UPWARD / 1024:
      return std::ceil(value);
    case FE_TOWARDZERO / 1024:
      return std::trunc(value);
    default:
      return std::nearbyint(value);
  }
}

// What lies outside becomes the nearest there is; what is no number, 0.
template <class To, class From>
void to_integer(Thread& thread, const Instruction& i) {
  const From value = rounded(thread.get<From>(i.operand[1]), i.detail.mode);
  using Limits = std::numeric_limits<To>;
  To out = 0;
  if (value >= std::ldexp(From{1}, Limits::digits)) {
    out = Limits::max();
  } else if (value <= static_cast<From>(Limits::min())) {
    out = Limits::min();
  } else if (!std::isnan(value)) {
    out = static_cast<To>(value);
  }
  thread.set<To>(i.operand[0], out);
}
template <class T>
void to_whole(Thread& thread, const Instruction& i) {
  thread.set<T>(i.operand[0], rounded(thread.get<T>(i.operand[1]), i.detail.mode));
}
template <class To, class From>
void to_float(Thread& thread, const Instruction& i) {
  volatile From value = thread.get<From>(i.operand[1]);  // not before the mode is set
  std::fesetround(i.detail.mode * 1024);
  volatile To out = static_cast<To>(value);
  std::fesetround(FE_TONEAREST);
  thread.set<To>(i.operand[0], out);
}

template <std::uint16_t (*kTo)(float)>
void to_half(Thread& thread, const Instruction& i) {
  thread.set<std::uint16_t>(i.operand[0], kTo(thread.get<float>(i.operand[1])));
}
// The first is the upper one.
template <std::uint16_t (*kTo)(float)>
void to_halves(Thread& thread, const Instruction& i) {
  const std::uint32_t upper = kTo(thread.get<float>(i.operand[1]));
  thread.set<std::uint32_t>(i.operand[0], upper << 16 | kTo(thread.get<float>(i.operand[2])));
}
template <float (*kFrom)(std::uint16_t)>
void from_half(Thread& thread, const Instruction& i) {
  thread.set<float>(i.operand[0], kFrom(thread.get<std::uint16_t>(i.operand[1])));
}
void saturate(Thread& thread, const Instruction& i) {
  const float value = thread.get<float>(i.operand[1]);
  thread.set<float>(i.operand[0], value >= 1 ? 1 : value > 0 ? value : 0);  // no number: 0
}

template <class T>
std::string bits() {
  return std::to_string(sizeof(T) * 8);
}

template <class To, class From>
void add_integer(Table& table, const std::string& to, const std::string& from) {
  table.add("cvt." + to + "." + from, "d" + bits<To>() + "+ s" + bits<From>() + "+",
            convert<To, From>);
}
struct Mode {
  const char* name;
  int mode;
};
constexpr Mode kModes[] = {
    {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};

template <class Integer, class Float>
void add_mixed(Table& table, const std::string& integer, const std::string& real) {
  const std::string to_integer_types = "i." + integer + "." + real;
  const std::string to_integer_shape = "d" + bits<Integer>() + " s" + bits<Float>();
  const std::string to_float_types = "." + real + "." + integer;
  const std::string to_float_shape = "d" + bits<Float>() + " s" + bits<Integer>() + "+";
  for (const Mode& mode : kModes) {
    Detail detail;
    detail.mode = static_cast<std::uint8_t>(mode.mode / 1024);
    const std::string head = std::string("cvt.") + mode.name;
    table.add(head + to_integer_types, to_integer_shape, to_integer<Integer, Float>, detail);
    table.add(head + to_float_types, to_float_shape, to_float<Float, Integer>, detail);
  }
}
template <class T>
void add_mixed(Table& table, const std::string& type) {
  add_mixed<T, float>(table, type, "f32");
  add_mixed<T, double>(table, type, "f64");
}

template <class From>
void add_from(Table& table, const std::string& from) {
  add_integer<std::uint8_t, From>(table, "u8", from);
  add_integer<std::int8_t, From>(table, "s8", from);
  add_integer<std::uint16_t, From>(table, "u16", from);
  add_integer<std::int16_t, From>(table, "s16", from);
  add_integer<std::uint32_t, From>(table, "u32", from);
  add_integer<std::int32_t, From>(table, "s32", from);
  add_integer<std::uint64_t, From>(table, "u64", from);
  add_integer<std::int64_t, From>(table, "s64", from);
}

void add_between_floats(Table& table) {
  for (const Mode& mode : kModes) {
    Detail detail;
    detail.mode = static_cast<std::uint8_t>(mode.mode / 1024);
    const std::string head = std::string("cvt.") + mode.name;
    table.add(head + ".f32.f64", "d32 s64", to_float<float, double>, detail);
    table.add(head + "i.f32.f32", "d32 s32", to_whole<float>, detail);
    table.add(head + "i.f64.f64", "d64 s64", to_whole<double>, detail);
  }
  table.add("cvt.f64.f32", "d64 s32", convert<double, float>);
  table.add("cvt.sat.f32.f32", "d32 s32", saturate);
  table.add("cvt.rn.bf16.f32", "d16 s32", to_half<to_bf16>);
  table.add("cvt.rn.f16.f32", "d16 s32", to_half<to_f16>);
  table.add("cvt.rn.bf16x2.f32", "d32 s32 s32", to_halves<to_bf16>);
  table.add("cvt.rn.f16x2.f32", "d32 s32 s32", to_halves<to_f16>);
  table.add("cvt.f32.bf16", "d32 s16", from_half<from_bf16>);
  table.add("cvt.f32.f16", "d32 s16", from_half<from_f16>);
}

}  // namespace

void add_conversions(Table& table) {
  add_from<std::uint8_t>(table, "u8");
  add_from<std::int8_t>(table, "s8");
  add_from<std::uint16_t>(table, "u16");
  add_from<std::int16_t>(table, "s16");
  add_from<std::uint32_t>(table, "u32");
  add_from<std::int32_t>(table, "s32");
  add_from<std::uint64_t>(table, "u64");
  add_from<std::int64_t>(table, "s64");
  add_mixed<std::uint16_t>(table, "u16");
  add_mixed<std::int16_t>(table, "s16");
  add_mixed<std::uint32_t>(table, "u32");
  add_mixed<std::int32_t>(table, "s32");
  add_mixed<std::uint64_t>(table, "u64");
  add_mixed<std::int64_t>(table, "s64");
  add_between_floats(table);
}

}  // namespace cachalot::ptx
