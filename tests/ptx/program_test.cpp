// What is understood of a text, and that nothing else passes.
#include "ptx/program.h"

#include <gtest/gtest.h>

#include "ptx/run_text.h"
#include "ptx/spaces.h"

namespace cachalot::ptx {
namespace {

TEST(PtxProgram, RefusesWhatItDoesNotKnowAndSaysWhere) {
  // Line 8 is the body's first.
  for (const char* const unknown :
       {"add.cc.u32 %r0, 1, 2;", "ld.global.evict_first.u32 %r0, [%d9];",
        "wgmma.fence.sync.aligned;", "st.param.u32 [out], %r0;",
        "ld.global.v4.u64 {%d0, %d1, %d2, %d3}, [%d9];", "ld.shared.nc.u32 %r0, [%r1];",
        "fence.proxy.tensormap;", "add.s32.sat %r0, 1, 2;"}) {
    expect_complaint("line 8", unknown);
    expect_complaint("is not known to this machine", unknown);
  }
}

TEST(PtxProgram, RefusesOperandsThatAnInstructionCannotHave) {
  for (const char* const wrong :
       {"add.s32 %r0, %r1;", "add.s32 %r0, %r1, %d1;", "add.s32 %d0, %r1, %r2;",
        "add.s32 5, %r1, %r2;", "mov.b64 {%r0, %r1, %r2}, %d0;", "bra nowhere;",
        "setp.eq.s32 %r0, 1, 2;", "ld.global.u32 %h0, [%d9];", "st.global.v2.u32 [%d9], %r0;",
        "add.s32 %r0, %r1, %r77;", "@%r0 ret;"}) {
    EXPECT_NE(complaint_of(wrong), "") << wrong;
    EXPECT_NE(complaint_of(wrong).find("line 8"), std::string::npos) << complaint_of(wrong);
  }
}

TEST(PtxProgram, RefusesDirectivesThatItDoesNotKnow) {
  EXPECT_NE(complaint_of(".pragma \"something\";"), "");
  EXPECT_NE(complaint_of(".reg .b32 %r0;").find("declares a register again"), std::string::npos);
  EXPECT_NE(complaint_of("again: again: ret;").find("a label that is there"), std::string::npos);
  EXPECT_EQ(complaint_of(".pragma \"nounroll\";"), "");
  EXPECT_THROW(assemble(".version 9.0\n.global .b32 x;"), Violation);
  EXPECT_THROW(assemble(".version 9.0\n.visible .func f() { ret; }"), Violation);
  EXPECT_THROW(assemble(".visible .entry f() { ret;"), Violation);
}

TEST(PtxProgram, KeepsRegistersOfABlockInBracesToIt) {
  const char* const text =
      "mov.u32 %r0, 7;\n"
      "{ .reg .b32 %r0; mov.u32 %r0, 1; }\n"
      "{ .reg .b32 %r0; mov.u32 %r0, 2; }\n"
      "st.global.u32 [%d9], %r0;";
  EXPECT_EQ(result_of<std::uint32_t>(text), 7u);
}

TEST(PtxProgram, PlacesVariablesApartAndAligned) {
  const Program program = assemble(
      ".target sm_90\n.extern .shared .align 128 .b8 dynamic[];\n"
      ".visible .entry f(.param .u32 .ptr .global .align 16 a, .param .align 16 .b8 b[24], .param "
      ".u64 c) .maxntid 64, 2, "
      "1\n"
      "{ .local .align 8 .b8 depot[12]; .shared .align 4 .b8 x[6]; .shared .align 8 .b64 y[2]; "
      "ret; }\n");
  const Kernel& kernel = program.kernel("f");
  EXPECT_EQ(kernel.parameter_bytes, 48u);  // at 0, 16 and 40
  EXPECT_EQ(kernel.local_bytes, 12u);
  EXPECT_EQ(kernel.source.most_threads, 128u);
  EXPECT_EQ(kernel.dynamic_shared % 128, 0u);
  ASSERT_EQ(kernel.shared_holes.size(), 2u);
  EXPECT_EQ(kernel.shared_holes[0].first, 6u);
  EXPECT_THROW(program.kernel("g"), Violation);
}

TEST(PtxProgram, HasNoMoreThreadsThanAKernelSays) {
  const Program program = assemble(".visible .entry f() .maxntid 32, 1, 1 { ret; }");
  std::vector<std::byte> out;
  EXPECT_NO_THROW(launch(program.kernels[0], threads(32), nullptr, reach_of(out), 1, Mood::kLate));
  EXPECT_THROW(launch(program.kernels[0], threads(33), nullptr, reach_of(out), 1, Mood::kLate),
               Violation);
}

}  // namespace
}  // namespace cachalot::ptx
