// Bits: logic, shifts, fields, moves, packing.
#include <bit>

#include "ptx/operations.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNot = [](auto a) {
  if constexpr (std::is_same_v<decltype(a), bool>) {
    return !a;
  } else {
    return ~a;
  }
};
constexpr auto kSame = [](auto a) { return a; };

// Shifts by more than there are bits leave nothing, or only the sign.
template <class T>
void shift_left(Thread& thread, const Instruction& i) {
  const T a = thread.get<T>(i.operand[1]);
  const std::uint32_t by = thread.get<std::uint32_t>(i.operand[2]);
  thread.set<T>(i.operand[0], by >= sizeof(T) * 8 ? T{0} : static_cast<T>(a << by));
}
template <class T>
void shift_right(Thread& thread, const Instruction& i) {
  const T a = thread.get<T>(i.operand[1]);
  const std::uint32_t by = thread.get<std::uint32_t>(i.operand[2]);
  const T none = a < 0 ? static_cast<T>(-1) : T{0};
  thread.set<T>(i.operand[0], by >= sizeof(T) * 8 ? none : static_cast<T>(a >> by));
}

// The two words side by side, shifted: shf.{l,r}.{wrap,clamp}.
template <bool kLeft, bool kWraps>
void shift_funnel(Thread& thread, const Instruction& i) {
  const std::uint64_t both = thread.get<std::uint32_t>(i.operand[1]) |
                             std::uint64_t{thread.get<std::uint32_t>(i.operand[2])} << 32;
  std::uint32_t by = thread.get<std::uint32_t>(i.operand[3]);
  by = kWraps ? by % 32 : (by > 32 ? 32 : by);
  thread.set<std::uint32_t>(i.operand[0],
                            static_cast<std::uint32_t>(kLeft ? (both << by) >> 32 : both >> by));
}

// `length` bits of the second from `at` on are the first's.
template <class T>
void insert_field(Thread& thread, const Instruction& i) {
  const T a = thread.get<T>(i.operand[1]), b = thread.get<T>(i.operand[2]);
  const std::uint32_t at = thread.get<std::uint32_t>(i.operand[3]) & 0xff;
  const std::uint32_t length = thread.get<std::uint32_t>(i.operand[4]) & 0xff;
  constexpr std::uint32_t kBits = sizeof(T) * 8;
  const T ones = length >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  const T mask = at >= kBits ? T{0} : static_cast<T>(ones << at);
  const T moved = at >= kBits ? T{0} : static_cast<T>(a << at);
  thread.set<T>(i.operand[0], static_cast<T>((b & ~mask) | (moved & mask)));
}
template <class T>
void extract_field(Thread& thread, const Instruction& i) {
  using U = std::make_unsigned_t<T>;
  const U a = thread.get<U>(i.operand[1]);
  const std::uint32_t at = thread.get<std::uint32_t>(i.operand[2]) & 0xff;
  const std::uint32_t length = thread.get<std::uint32_t>(i.operand[3]) & 0xff;
  constexpr std::uint32_t kBits = sizeof(T) * 8;
  const std::uint32_t last = length == 0 ? 0 : std::min(at + length - 1, kBits - 1);
  const bool sign = std::is_signed_v<T> && length != 0 && (a >> last & 1) != 0;
  const U ones = length >= kBits ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << length) - 1);
  U field = at >= kBits ? U{0} : static_cast<U>(a >> at & ones);
  const std::uint32_t there = length == 0 ? 0 : at >= kBits ? 0 : last - at + 1;
  if (sign && there < kBits) field |= static_cast<U>(~U{0} << there);
  thread.set<T>(i.operand[0], static_cast<T>(field));
}

// Each nibble of the third chooses a byte of the two words, or its sign.
void permute(Thread& thread, const Instruction& i) {
  const std::uint64_t both = thread.get<std::uint32_t>(i.operand[1]) |
                             std::uint64_t{thread.get<std::uint32_t>(i.operand[2])} << 32;
  const std::uint32_t chosen = thread.get<std::uint32_t>(i.operand[3]);
  std::uint32_t out = 0;
  for (std::uint32_t k = 0; k < 4; ++k) {
    const std::uint32_t nibble = chosen >> (4 * k) & 0xf;
    std::uint32_t byte = static_cast<std::uint32_t>(both >> (8 * (nibble & 7))) & 0xff;
    if (nibble >= 8) byte = (byte & 0x80) != 0 ? 0xff : 0;
    out |= byte << (8 * k);
  }
  thread.set<std::uint32_t>(i.operand[0], out);
}

// Any function of three bits, by its table.
void look_up(Thread& thread, const Instruction& i) {
  const std::uint32_t a = thread.get<std::uint32_t>(i.operand[1]),
                      b = thread.get<std::uint32_t>(i.operand[2]),
                      c = thread.get<std::uint32_t>(i.operand[3]),
                      table = thread.get<std::uint32_t>(i.operand[4]);
  std::uint32_t out = 0;
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    const std::uint32_t row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
    out |= (table >> row & 1) << bit;
  }
  thread.set<std::uint32_t>(i.operand[0], out);
}

template <class T>
void count_ones(Thread& thread, const Instruction& i) {
  thread.set<std::uint32_t>(i.operand[0],
                            static_cast<std::uint32_t>(std::popcount(thread.get<T>(i.operand[1]))));
}
template <class T>
void count_leading_zeros(Thread& thread, const Instruction& i) {
  thread.set<std::uint32_t>(
      i.operand[0], static_cast<std::uint32_t>(std::countl_zero(thread.get<T>(i.operand[1]))));
}
void reverse(Thread& thread, const Instruction& i) {
  std::uint32_t a = thread.get<std::uint32_t>(i.operand[1]), out = 0;
  for (std::uint32_t bit = 0; bit < 32; ++bit) out |= (a >> bit & 1) << (31 - bit);
  thread.set<std::uint32_t>(i.operand[0], out);
}

// {low, high} and one register of all their bits. One of T, kCount of Part.
template <class T, class Part>
void pack(Thread& thread, const Instruction& i) {
  T out = 0;
  for (std::size_t k = 0; k < sizeof(T) / sizeof(Part); ++k) {
    out = static_cast<T>(out | static_cast<T>(thread.get<Part>(i.operand[k + 1]))
                                   << (k * sizeof(Part) * 8));
  }
  thread.set<T>(i.operand[0], out);
}
template <class T, class Part>
void unpack(Thread& thread, const Instruction& i) {
  constexpr std::size_t kCount = sizeof(T) / sizeof(Part);
  const T in = thread.get<T>(i.operand[kCount]);
  for (std::size_t k = 0; k < kCount; ++k) {
    thread.set<Part>(i.operand[k], static_cast<Part>(in >> (k * sizeof(Part) * 8)));
  }
}
template <class T, class Part>
void add_packing(Table& table, const std::string& type) {
  const std::string bits = std::to_string(sizeof(T) * 8), part = std::to_string(sizeof(Part) * 8);
  const std::string count = std::to_string(sizeof(T) / sizeof(Part));
  table.add("mov." + type, "d" + bits + " {" + count + "s" + part + "}", pack<T, Part>);
  table.add("mov." + type, "{" + count + "d" + part + "?} s" + bits, unpack<T, Part>);
}

template <class T>
void add_logic(Table& table, const std::string& type) {
  const std::string bits = std::is_same_v<T, bool> ? "1" : std::to_string(sizeof(T) * 8);
  const std::string one = "d" + bits + " s" + bits, two = one + " s" + bits;
  table.add("and." + type, two, binary<T, kAnd>);
  table.add("or." + type, two, binary<T, kOr>);
  table.add("xor." + type, two, binary<T, kXor>);
  table.add("not." + type, one, unary<T, kNot>);
}

template <class T>
void add_shifts(Table& table, const std::string& bits) {
  const std::string shape = "d" + bits + " s" + bits + " s32";
  table.add("shl.b" + bits, shape, shift_left<T>);
  table.add("shr.b" + bits, shape, shift_right<T>);
  table.add("shr.u" + bits, shape, shift_right<T>);
  table.add("shr.s" + bits, shape, shift_right<std::make_signed_t<T>>);
}

template <class T>
void add_moves(Table& table, const std::string& bits) {
  const std::string shape = "d" + bits + " s" + bits;
  for (const char* const kind : {"mov.b", "mov.u", "mov.s", "mov.f"}) {
    table.add(kind + bits, shape, unary<T, kSame>);
  }
}

template <class T>
void add_fields(Table& table, const std::string& bits) {
  const std::string value = "d" + bits + " s" + bits;
  table.add("bfi.b" + bits, value + " s" + bits + " s32 s32", insert_field<T>);
  table.add("bfe.u" + bits, value + " s32 s32", extract_field<T>);
  table.add("bfe.s" + bits, value + " s32 s32", extract_field<std::make_signed_t<T>>);
  table.add("popc.b" + bits, "d32 s" + bits, count_ones<T>);
  table.add("clz.b" + bits, "d32 s" + bits, count_leading_zeros<T>);
}

}  // namespace

void add_bits(Table& table) {
  add_logic<bool>(table, "pred");
  add_logic<std::uint16_t>(table, "b16");
  add_logic<std::uint32_t>(table, "b32");
  add_logic<std::uint64_t>(table, "b64");
  add_shifts<std::uint16_t>(table, "16");
  add_shifts<std::uint32_t>(table, "32");
  add_shifts<std::uint64_t>(table, "64");
  table.add("mov.pred", "d1 s1", unary<bool, kSame>);
  add_moves<std::uint16_t>(table, "16");
  add_moves<std::uint32_t>(table, "32");
  add_moves<std::uint64_t>(table, "64");
  add_packing<std::uint32_t, std::uint16_t>(table, "b32");
  add_packing<std::uint64_t, std::uint32_t>(table, "b64");
  add_packing<std::uint64_t, std::uint16_t>(table, "b64");
  add_fields<std::uint32_t>(table, "32");
  add_fields<std::uint64_t>(table, "64");
  table.add("prmt.b32", "d32 s32 s32 s32", permute);
  table.add("lop3.b32", "d32 s32 s32 s32 s32", look_up);
  table.add("brev.b32", "d32 s32", reverse);
  table.add("shf.l.wrap.b32", "d32 s32 s32 s32", shift_funnel<true, true>);
  table.add("shf.r.wrap.b32", "d32 s32 s32 s32", shift_funnel<false, true>);
  table.add("shf.l.clamp.b32", "d32 s32 s32 s32", shift_funnel<true, false>);
  table.add("shf.r.clamp.b32", "d32 s32 s32 s32", shift_funnel<false, false>);
}

}  // namespace cachalot::ptx
