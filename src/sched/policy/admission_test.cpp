#include "sched/policy/admission.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sched/policy/test_timing.h"

namespace cachalot::sched {
namespace {

constexpr auto kExponential = DecodePrediction::kExponential;
constexpr auto kUniform = DecodePrediction::kUniform;

class Admission : public testing::Test {
 protected:
  Verdict admit_by(AdmissionKind kind, double ttft_s) {
    return admit({.kind = kind, .ttft_slo_s = 10, .tbt_slo_s = 4}, ttft_s, 0, load());
  }
  LoadView load() const {
    return {.decoding = decoding_,
            .prefilling = prefilling_,
            .prefill_queue_s = queue_s_,
            .decode_instances = 2,
            .decode_s = 5,
            .timing = &timing_};
  }

  const TestTiming timing_{};
  std::vector<DecodeShare> decoding_, prefilling_;
  double queue_s_ = 0;
};

TEST_F(Admission, NoneAdmitsWhateverTheLoad) {
  decoding_.assign(100, {});
  EXPECT_EQ(admit_by(AdmissionKind::kNone, 1000), Verdict::kAdmit);
}

TEST_F(Admission, AllOthersRejectATimeToFirstTokenAboveTheGoal) {
  for (const AdmissionKind kind :
       {AdmissionKind::kRejectOnLoad, AdmissionKind::kEarly, AdmissionKind::kPredictive}) {
    EXPECT_EQ(admit_by(kind, 10), Verdict::kAdmit);
    EXPECT_EQ(admit_by(kind, 10.5), Verdict::kRejectPrefill);
  }
}

TEST_F(Admission, EarlyLooksAtTheDecodeSideNow) {
  // 7 sequences on 2 instances: 3 and the request are 4 s a step, the goal. 8 make it 5 s.
  decoding_.assign(7, {});
  EXPECT_EQ(admit_by(AdmissionKind::kEarly, 1), Verdict::kAdmit);
  decoding_.assign(8, {});
  EXPECT_EQ(admit_by(AdmissionKind::kEarly, 1), Verdict::kRejectDecode);
  EXPECT_EQ(admit_by(AdmissionKind::kRejectOnLoad, 1), Verdict::kAdmit);
}

TEST_F(Admission, PredictiveCountsPrefillsAndTakesOutWhatWillHaveEnded) {
  // After a queue of 5 s, the time of a decode, 1/e of 8 sequences is left: 2.94, or 1 an instance. 2 s a step.
  decoding_.assign(8, {});
  queue_s_ = 5;
  EXPECT_DOUBLE_EQ(predicted_decode_load(load(), 4, kExponential, queue_s_, 0), 2.0 / 4);
  EXPECT_EQ(admit_by(AdmissionKind::kPredictive, 6), Verdict::kAdmit);
  // 6 that come then make 8.94, or 4 an instance: 5 s a step. Early does not see them.
  prefilling_.assign(6, {.at_s = 5});
  EXPECT_DOUBLE_EQ(predicted_decode_load(load(), 4, kExponential, queue_s_, 0), 5.0 / 4);
  EXPECT_EQ(admit_by(AdmissionKind::kPredictive, 6), Verdict::kRejectDecode);
  decoding_.assign(2, {});
  EXPECT_EQ(admit_by(AdmissionKind::kEarly, 6), Verdict::kAdmit);
}

TEST_F(Admission, UniformTakesOutWhatIsOlderThanADecodeTakes) {
  // A decode takes 5 s. At 3 s those that began 1 and 2 s ago have 4 and 5 s behind them: the first still counts. Of those
  // in prefill the one that ends at 4 s has not come. So 3 sequences, 1 an instance, and the request: 2 s a step.
  decoding_ = {{.at_s = -1}, {.at_s = -2}, {.at_s = -30}};
  prefilling_ = {{.at_s = 1}, {.at_s = 3}, {.at_s = 4}};
  EXPECT_DOUBLE_EQ(predicted_decode_load(load(), 4, kUniform, 3, 0), 2.0 / 4);
  // The time is the end of the request's own prefill: 8 more are then there, or 5 s a step.
  prefilling_.assign(8, {.at_s = 3});
  const auto admit_uniform = [&](double ttft_s) {
    return admit({.kind = AdmissionKind::kPredictive, .prediction = kUniform, .tbt_slo_s = 4},
                 ttft_s, 0, load());
  };
  EXPECT_EQ(admit_uniform(2.5), Verdict::kAdmit);
  EXPECT_EQ(admit_uniform(3), Verdict::kRejectDecode);
}

TEST_F(Admission, TheContextOfTheOthersIsSpreadAndTheRequestsOwnIsNot) {
  // 2 sequences of 3000 tokens on 2 instances, and 1000 of its own: 2 s + 3 s + 1 s.
  decoding_.assign(2, {.context_tokens = 3000});
  EXPECT_DOUBLE_EQ(decode_load_now(load(), 4, 1000), 6.0 / 4);
}

TEST_F(Admission, OnlyRejectOnLoadLooksAfterThePrefill) {
  const auto admits = [](AdmissionKind kind) {
    return admits_to_decode({.kind = kind, .tbt_slo_s = 4}, {.tbt_s = 5, .present_s = 4.5});
  };
  EXPECT_FALSE(admits(AdmissionKind::kRejectOnLoad));
  EXPECT_TRUE(admits(AdmissionKind::kEarly));
  EXPECT_TRUE(admits(AdmissionKind::kPredictive));
  EXPECT_TRUE(admits(AdmissionKind::kNone));
}

TEST_F(Admission, RejectOnLoadLooksAtTheLoadThereIsOrWithTheRequest) {
  const DecodeChoice choice = {.tbt_s = 4.5, .present_s = 3.5};
  AdmissionOptions options{.kind = AdmissionKind::kRejectOnLoad, .tbt_slo_s = 4};
  EXPECT_TRUE(admits_to_decode(options, choice));
  options.check = DecodeCheck::kWithRequest;
  EXPECT_FALSE(admits_to_decode(options, choice));
}

TEST_F(Admission, TheMeanDecodeCountsThoseThatStillRun) {
  EXPECT_TRUE(std::isinf(mean_decode_seconds(0, 0, 12)));
  // Two have ended after 1 s each; three have run for 4 s: two ends in 14 s of decoding.
  EXPECT_DOUBLE_EQ(mean_decode_seconds(2, 2, 12), 7);
}

TEST(AdmissionNames, AreReadBackAndUnknownOnesAreNamed) {
  EXPECT_EQ(*parse_admission("reject_on_load"), AdmissionKind::kRejectOnLoad);
  EXPECT_FALSE(parse_admission("late"));
  EXPECT_EQ(*parse_decode_prediction("uniform"), kUniform);
  EXPECT_FALSE(parse_decode_prediction("late"));
  EXPECT_EQ(*parse_decode_check("with_request"), DecodeCheck::kWithRequest);
  EXPECT_FALSE(parse_decode_check("late"));
}

}  // namespace
}  // namespace cachalot::sched
