// What instructions compute, where PTX and C++ are not the same, and what a thread may not do.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ptx/half.h"
#include "ptx/run_text.h"

namespace cachalot::ptx {
namespace {

// The result of an instruction whose destination is %r0, %d0, %h0 or %p0.
std::uint64_t value_of(const std::string& instruction) {
  if (instruction.find("%p0,") != std::string::npos) {
    return result_of<std::uint32_t>(instruction +
                                    "selp.u32 %r0, 1, 0, %p0; st.global.u32 [%d9], %r0;");
  }
  if (instruction.find("%d0,") != std::string::npos) {
    return result_of<std::uint64_t>(instruction + "st.global.u64 [%d9], %d0;");
  }
  if (instruction.find("%h0,") != std::string::npos) {
    return result_of<std::uint16_t>(instruction + "st.global.u16 [%d9], %h0;");
  }
  return result_of<std::uint32_t>(instruction + "st.global.u32 [%d9], %r0;");
}
std::string hex(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "0f%08X", std::bit_cast<std::uint32_t>(value));
  return text;
}
float float_of(const std::string& instruction) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value_of(instruction)));
}

TEST(PtxOperations, OnWholeNumbers) {
  const std::pair<const char*, std::uint64_t> kCases[] = {
      {"add.s32 %r0, 2147483647, 1;", 0x80000000},
      {"sub.s64 %d0, 1, 2;", ~std::uint64_t{0}},
      {"mul.lo.s32 %r0, 65537, 65537;", 131073},
      {"mul.hi.u32 %r0, -1, -1;", 0xfffffffe},
      {"mul.hi.s32 %r0, -1, -1;", 0},
      {"mul.hi.u64 %d0, -1, 2;", 1},
      {"mul.wide.u32 %d0, -1, 2;", 0x1fffffffe},
      {"mul.wide.s32 %d0, -1, 2;", ~std::uint64_t{1}},
      {"mad.lo.s32 %r0, 3, -4, 5;", 0xfffffff9},
      {"mad.wide.u32 %d0, -1, -1, 1;", 0xfffffffe00000002},
      {"div.s32 %r0, -7, 2;", 0xfffffffd},
      {"rem.s32 %r0, -7, 2;", 0xffffffff},
      {"div.u32 %r0, -7, 2;", 0x7ffffffc},
      {"div.s32 %r0, -2147483648, -1;", 0x80000000},
      {"rem.u64 %d0, 17, 5;", 2},
      {"min.s32 %r0, -1, 1;", 0xffffffff},
      {"min.u32 %r0, -1, 1;", 1},
      {"max.u64 %d0, -1, 1;", ~std::uint64_t{0}},
      {"abs.s32 %r0, -5;", 5},
      {"neg.s32 %r0, 5;", 0xfffffffb},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(value_of(text), expected) << text;
}

TEST(PtxOperations, OnBits) {
  const std::pair<const char*, std::uint64_t> kCases[] = {
      {"shl.b32 %r0, 1, 31;", 0x80000000},
      {"shl.b32 %r0, 1, 32;", 0},
      {"shr.u32 %r0, -1, 33;", 0},
      {"shr.s32 %r0, -16, 2;", 0xfffffffc},
      {"shr.s32 %r0, -16, 99;", 0xffffffff},
      {"shr.u64 %d0, -1, 60;", 15},
      {"not.b32 %r0, 5;", 0xfffffffa},
      {"xor.b64 %d0, 5, 3;", 6},
      {"bfi.b32 %r0, 0xab, 0x11223344, 8, 8;", 0x1122ab44},
      {"bfi.b64 %d0, -1, 0, 32, 32;", 0xffffffff00000000},
      {"bfi.b32 %r0, -1, 7, 40, 8;", 7},
      {"bfe.u32 %r0, 0x12345678, 8, 12;", 0x456},
      {"bfe.s32 %r0, 0x00000f00, 8, 4;", 0xffffffff},
      {"bfe.s32 %r0, 0x80000000, 28, 12;", 0xfffffff8},
      {"bfe.u32 %r0, -1, 4, 0;", 0},
      {"prmt.b32 %r0, 0x33221100, 0x77665544, 0x7520;", 0x77552200},
      {"prmt.b32 %r0, 0x00008000, 0, 0x9999;", 0xffffffff},
      {"lop3.b32 %r0, 0xf0, 0xcc, 0xaa, 0xe8;", 0xe8},
      {"popc.b32 %r0, 0xf0f;", 8},
      {"clz.b32 %r0, 1;", 31},
      {"brev.b32 %r0, 1;", 0x80000000},
      {"shf.l.wrap.b32 %r0, 0x80000000, 1, 33;", 3},
      {"shf.r.clamp.b32 %r0, 1, 2, 40;", 2},
      {"mov.b32 %r0, {1, 2};", 0x20001},
      {"mov.b64 %d0, {1, 2};", 0x200000001},
      {"mov.b64 {_, %r0}, 0x700000003;", 7},
      {"mov.b32 {%h0, %h1}, 0x50004;", 4},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(value_of(text), expected) << text;
}

TEST(PtxOperations, CompareAsTheirTypeSays) {
  const std::string nan = "0f7fc00000";
  const std::pair<std::string, bool> kCases[] = {
      {"setp.lt.s32 %p0, -1, 1;", true},
      {"setp.lt.u32 %p0, -1, 1;", false},
      {"setp.hs.u32 %p0, -1, 1;", true},
      {"setp.eq.b64 %p0, 4294967296, 0;", false},
      {"setp.eq.s32 %p0, 4294967296, 0;", true},
      {"setp.lt.f32 %p0, " + nan + ", 0f3f800000;", false},
      {"setp.ltu.f32 %p0, " + nan + ", 0f3f800000;", true},
      {"setp.ne.f32 %p0, " + nan + ", " + nan + ";", false},
      {"setp.neu.f32 %p0, " + nan + ", " + nan + ";", true},
      {"setp.nan.f32 %p0, " + nan + ", " + nan + ";", true},
      {"setp.eq.f32 %p0, 0f00000000, 0f80000000;", true},
      {"setp.eq.s32 %p1, 1, 1; setp.lt.and.s32 %p0, 1, 2, %p1;", true},
      {"setp.eq.s32 %p1, 1, 0; setp.lt.and.s32 %p0, 1, 2, %p1;", false},
      {"setp.lt.s32 %p1|%p2, 2, 1; mov.pred %p0, %p2;", true},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(value_of(text), expected ? 1u : 0u) << text;
}

TEST(PtxOperations, WidenIntoARegisterThatIsWider) {
  const std::string bytes = "mov.u32 %r1, 0xfffe80ff; st.global.u32 [%d9], %r1; ";
  EXPECT_EQ(value_of(bytes + "ld.global.u8 %r0, [%d9];"), 0xffu);
  EXPECT_EQ(value_of(bytes + "ld.global.s8 %r0, [%d9];"), 0xffffffffu);
  EXPECT_EQ(value_of(bytes + "ld.global.s16 %d0, [%d9];"), 0xffffffffffff80ffu);
  EXPECT_EQ(value_of(bytes + "ld.global.cv.u32 %d0, [%d9];"), 0xfffe80ffu);
  EXPECT_EQ(value_of(bytes + "cvt.s64.s32 %d0, %r1;"), 0xfffffffffffe80ffu);
  EXPECT_EQ(value_of(bytes + "cvt.u64.u32 %d0, %r1;"), 0xfffe80ffu);
  EXPECT_EQ(value_of(bytes + "cvt.s32.s8 %r0, %r1;"), 0xffffffffu);
  EXPECT_EQ(value_of(bytes + "ld.global.v2.u16 {%h0, %h1}, [%d9+0];"), 0x80ffu);
}

TEST(PtxOperations, OnFloats) {
  const float third = 1.0f / 3, tiny = 1e-40f;
  EXPECT_EQ(float_of("fma.rn.f32 %r0, " + hex(third) + ", " + hex(3) + ", " + hex(-1) + ";"),
            std::fma(third, 3.0f, -1.0f));
  EXPECT_EQ(float_of("add.f32 %r0, " + hex(1) + ", " + hex(third) + ";"), 1 + third);
  EXPECT_GT(float_of("div.rp.f32 %r0, " + hex(1) + ", " + hex(3) + ";"),
            float_of("div.rm.f32 %r0, " + hex(1) + ", " + hex(3) + ";"));
  EXPECT_EQ(float_of("max.f32 %r0, 0f7fc00000, " + hex(2) + ";"), 2);
  EXPECT_EQ(std::signbit(float_of("min.f32 %r0, " + hex(0) + ", " + hex(-0.0f) + ";")), true);
  EXPECT_EQ(float_of("mul.f32 %r0, " + hex(tiny) + ", " + hex(1) + ";"), tiny);
  EXPECT_EQ(float_of("mul.ftz.f32 %r0, " + hex(tiny) + ", " + hex(1) + ";"), 0);
  EXPECT_FLOAT_EQ(float_of("ex2.approx.ftz.f32 %r0, " + hex(-1.5f) + ";"), std::exp2(-1.5f));
  EXPECT_EQ(float_of("ex2.approx.f32 %r0, " + hex(-INFINITY) + ";"), 0);
  EXPECT_FLOAT_EQ(float_of("rsqrt.approx.f32 %r0, " + hex(16) + ";"), 0.25f);
  EXPECT_EQ(value_of("cvt.rzi.s32.f32 %r0, " + hex(-2.7f) + ";"), 0xfffffffeu);
  EXPECT_EQ(value_of("cvt.rni.s32.f32 %r0, " + hex(2.5f) + ";"), 2u);
  EXPECT_EQ(value_of("cvt.rzi.u32.f32 %r0, " + hex(1e20f) + ";"), 0xffffffffu);
  EXPECT_EQ(value_of("cvt.rzi.u32.f32 %r0, " + hex(-1) + ";"), 0u);
  EXPECT_EQ(float_of("cvt.rn.f32.s32 %r0, -16777217;"), -16777216.0f);
  EXPECT_EQ(float_of("cvt.rm.f32.s32 %r0, -16777217;"), -16777218.0f);
  EXPECT_EQ(float_of("cvt.sat.f32.f32 %r0, " + hex(7) + ";"), 1);
  EXPECT_EQ(value_of("cvt.rn.bf16x2.f32 %r0, " + hex(1) + ", " + hex(-2) + ";"), 0x3f80c000u);
  EXPECT_EQ(float_of("mov.b16 %h1, 0xc000; cvt.f32.bf16 %r0, %h1;"), -2);
}

TEST(PtxOperations, RoundHalvesToTheNearest) {
  EXPECT_EQ(to_bf16(1 + 0x1p-8f), 0x3f80);  // a tie goes to even
  EXPECT_EQ(to_bf16(1 + 0x3p-8f), 0x3f82);
  EXPECT_EQ(to_bf16(INFINITY), 0x7f80);
  EXPECT_EQ(to_f16(65504), 0x7bff);
  EXPECT_EQ(to_f16(65520), 0x7c00);
  EXPECT_EQ(to_f16(0x1p-24f), 1);
  EXPECT_EQ(to_f16(0x1p-25f), 0);
  EXPECT_EQ(to_f16(-0.0f), 0x8000);
  EXPECT_EQ(to_f16(0x1.ffep-15f), 0x400);  // becomes the least normal one
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    ASSERT_EQ(to_f16(from_f16(static_cast<std::uint16_t>(bits))), bits);
  }
}

TEST(PtxThread, ReadsNoRegisterThatItHasNotWritten) {
  expect_complaint("reads %r1, which this thread has not written", "add.s32 %r0, %r1, 1;");
  // Not even by a guard, or for one thread of many.
  expect_complaint("reads %p1", "@%p1 ret;");
  expect_complaint("thread 3",
                   "mov.u32 %r0, %tid.x; setp.ne.s32 %p0, %r0, 3; @%p0 mov.u32 %r1, 5;"
                   "add.s32 %r2, %r1, 1;",
                   threads(8));
  // What a choice leaves alone may be anything.
  EXPECT_EQ(value_of("setp.eq.s32 %p1, 1, 1; selp.b32 %r0, 4, %r1, %p1;"), 4u);
  expect_complaint("divides by 0", "div.u32 %r0, 5, 0;");
}

TEST(PtxThread, ReachesMemoryOnlyAsAGpuDoes) {
  expect_complaint("is not a multiple of 8", "ld.global.v2.u32 {%r0, %r1}, [%d9+4];");
  expect_complaint("is not a multiple of 16",
                   "mov.u64 %d0, 1; st.global.v2.u64 [%d9+8], {%d0, %d0};");
  expect_complaint("does not reach", "ld.global.u32 %r0, [%d9+1024];");
  expect_complaint("does not reach", "ld.global.u32 %r0, [%d9+-4];");
  expect_complaint("bytes of parameters", "ld.param.u32 %r0, [out+8];");
  expect_complaint("are not written",
                   "mov.u64 %d0, out; cvta.param.u64 %d0, %d0; st.u32 [%d0], 1;");
  EXPECT_EQ(value_of("mov.u64 %d1, out; ld.param.u64 %d0, [%d1];"), kOutAt);
  EXPECT_EQ(value_of("mov.u64 %d1, out; cvta.param.u64 %d1, %d1; ld.u64 %d0, [%d1];"), kOutAt);
}

TEST(PtxThread, HasLocalAndSharedMemoryInWindowsOfTheirOwn) {
  const std::string memory = ".local .align 8 .b8 depot[16]; .shared .align 8 .b8 words[16];";
  const std::string store =
      memory + "mov.u32 %r1, 9; st.local.u32 [depot+4], %r1; st.shared.u32 [words+4], %r1;";
  EXPECT_EQ(value_of(store + "ld.local.u32 %r0, [depot+4];"), 9u);
  EXPECT_EQ(value_of(store + "mov.u64 %d1, words; cvta.shared.u64 %d1, %d1; ld.u32 %r0, [%d1+4];"),
            9u);
  EXPECT_EQ(
      value_of(store + "mov.u64 %d1, depot; cvta.local.u64 %d1, %d1; cvta.to.local.u64 %d2, %d1;"
                       "ld.local.u32 %r0, [%d2+4];"),
      9u);
  expect_complaint("nobody has written", store + "ld.local.u32 %r0, [depot];");
  expect_complaint("nobody has written", store + "ld.shared.u64 %d0, [words];");
  expect_complaint("not all of 4 bytes", store + "ld.local.u32 %r0, [depot+16];");
  expect_complaint("not all of 4 bytes", store + "ld.shared.u32 %r0, [words+16];");
  expect_complaint("is not of that state space", store + "cvta.to.shared.u64 %d0, %d9;");
  expect_complaint(
      "is not global",
      store + "mov.u64 %d1, words; cvta.shared.u64 %d1, %d1; cvta.to.global.u64 %d0, %d1;");
  // A generic address cut to 32 bits is no address of the space.
  expect_complaint("shared memory",
                   store +
                       "mov.u64 %d1, words; cvta.shared.u64 %d1, %d1; cvt.u32.u64 %r2, %d1;"
                       "ld.shared.u32 %r0, [%r2+4];");
  // The space between two variables is unused.
  expect_complaint("not all of one variable",
                   store + ".shared .align 8 .b8 more[8]; st.shared.u32 [words+16], %r1;");
}

}  // namespace
}  // namespace cachalot::ptx
