// Arithmetic of floats. What PTX calls approximate is here as exact as a float: a kernel may rely on no more
// than the ISA's bounds.
#include <cfenv>
#include <cmath>

#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kSubtract = [](auto a, auto b) { return a - b; };
constexpr auto kMultiply = [](auto a, auto b) { return a * b; };
constexpr auto kDivide = [](auto a, auto b) { return a / b; };
constexpr auto kMultiplyAdd = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
// Of a number and what is none, the number; +0 is greater than -0.
constexpr auto kLeast = [](auto a, auto b) {
  return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
};
constexpr auto kGreatest = [](auto a, auto b) {
  return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b);
};
constexpr auto kNegate = [](auto a) { return -a; };
constexpr auto kAbsolute = [](auto a) { return std::fabs(a); };
constexpr auto kSquareRoot = [](auto a) { return std::sqrt(a); };
constexpr auto kReciprocal = [](auto a) { return decltype(a){1} / a; };
constexpr auto kReciprocalRoot = [](float a) {
  return static_cast<float>(1 / std::sqrt(double{a}));
};
constexpr auto kPowerOfTwo = [](float a) { return static_cast<float>(std::exp2(double{a})); };
constexpr auto kLogarithm = [](float a) { return static_cast<float>(std::log2(double{a})); };
constexpr auto kTanh = [](float a) { return static_cast<float>(std::tanh(double{a})); };
constexpr auto kSine = [](float a) { return static_cast<float>(std::sin(double{a})); };
constexpr auto kCosine = [](float a) { return static_cast<float>(std::cos(double{a})); };

template <bool kFlush, class T>
T flushed(T value) {
  if (!kFlush || std::fpclassify(value) != FP_SUBNORMAL) return value;
  return std::copysign(T{0}, value);
}

// The operands are read as volatile so that nothing is computed before the mode is set.
template <class T, auto kFunction, bool kFlush, int kMode, std::size_t kOperands>
void calculate(Thread& thread, const Instruction& i) {
  volatile T in[3] = {};
  for (std::size_t k = 0; k < kOperands; ++k) {
    in[k] = flushed<kFlush>(thread.get<T>(i.operand[k + 1]));
  }
  if (kMode != FE_TONEAREST) std::fesetround(kMode);
  volatile T out = 0;
  if constexpr (kOperands == 1) {
    out = kFunction(T{in[0]});
  } else if constexpr (kOperands == 2) {
    out = kFunction(T{in[0]}, T{in[1]});
  } else {
    out = kFunction(T{in[0]}, T{in[1]}, T{in[2]});
  }
  if (kMode != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  thread.set<T>(i.operand[0], flushed<kFlush>(T{out}));
}

template <class T, auto kFunction, std::size_t kOperands, int kMode = FE_TONEAREST>
void add_one(Table& table, const std::string& name) {
  const std::string bits = std::to_string(sizeof(T) * 8);
  std::string shape = "d" + bits;
  for (std::size_t k = 0; k < kOperands; ++k) shape += " s" + bits;
  const std::string type = sizeof(T) == 8 ? ".f64" : ".f32";
  table.add(name + type, shape, calculate<T, kFunction, false, kMode, kOperands>);
  if (sizeof(T) == 4) {
    table.add(name + ".ftz" + type, shape, calculate<T, kFunction, true, kMode, kOperands>);
  }
}
template <class T, auto kFunction, std::size_t kOperands>
void add_rounding(Table& table, const std::string& name) {
  add_one<T, kFunction, kOperands, FE_TONEAREST>(table, name + ".rn");
  add_one<T, kFunction, kOperands, FE_TOWARDZERO>(table, name + ".rz");
  add_one<T, kFunction, kOperands, FE_DOWNWARD>(table, name + ".rm");
  add_one<T, kFunction, kOperands, FE_UPWARD>(table, name + ".rp");
}

template <class T>
void add_type(Table& table) {
  add_one<T, kAdd, 2>(table, "add");
  add_one<T, kSubtract, 2>(table, "sub");
  add_one<T, kMultiply, 2>(table, "mul");
  add_rounding<T, kAdd, 2>(table, "add");
  add_rounding<T, kSubtract, 2>(table, "sub");
  add_rounding<T, kMultiply, 2>(table, "mul");
  add_rounding<T, kMultiplyAdd, 3>(table, "fma");
  add_rounding<T, kDivide, 2>(table, "div");
  add_rounding<T, kReciprocal, 1>(table, "rcp");
  add_rounding<T, kSquareRoot, 1>(table, "sqrt");
  add_one<T, kLeast, 2>(table, "min");
  add_one<T, kGreatest, 2>(table, "max");
  add_one<T, kNegate, 1>(table, "neg");
  add_one<T, kAbsolute, 1>(table, "abs");
}

}  // namespace

void add_floats(Table& table) {
  add_type<float>(table);
  add_type<double>(table);
  add_one<float, kDivide, 2>(table, "div.full");
  add_one<float, kDivide, 2>(table, "div.approx");
  add_one<float, kReciprocal, 1>(table, "rcp.approx");
  add_one<float, kSquareRoot, 1>(table, "sqrt.approx");
  add_one<float, kReciprocalRoot, 1>(table, "rsqrt.approx");
  add_one<float, kPowerOfTwo, 1>(table, "ex2.approx");
  add_one<float, kLogarithm, 1>(table, "lg2.approx");
  add_one<float, kTanh, 1>(table, "tanh.approx");
  add_one<float, kSine, 1>(table, "sin.approx");
  add_one<float, kCosine, 1>(table, "cos.approx");
}

}  // namespace cachalot::ptx
