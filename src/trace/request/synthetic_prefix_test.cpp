#include "trace/request/synthetic_prefix.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace cachalot::trace {
namespace {

using Ids = std::vector<std::uint64_t>;

Ids ids_of(PrefixSynthesizer& synthesizer, std::uint64_t input_tokens) {
  Request request;
  request.input_tokens = input_tokens;
  request.hash_ids = {99};
  EXPECT_TRUE(synthesizer.apply(request));
  return request.hash_ids;
}

TEST(SyntheticPrefix, SharesTheCommonBeginningAndNothingElse) {
  PrefixSynthesizer synthesizer({.shared_tokens = 130}, 64);
  EXPECT_EQ(ids_of(synthesizer, 200), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(ids_of(synthesizer, 200), (Ids{0, 1, 4, 5}));
  EXPECT_EQ(ids_of(synthesizer, 64), (Ids{0}));
  EXPECT_EQ(ids_of(synthesizer, 63), (Ids{6}));
  EXPECT_EQ(ids_of(synthesizer, 0), (Ids{}));
}

TEST(SyntheticPrefix, AContinuedRequestBeginsWithTheWholeBlocksOfTheEarlierOne) {
  PrefixSynthesizer synthesizer({.continue_probability = 1}, 64);
  EXPECT_EQ(ids_of(synthesizer, 130), (Ids{0, 1, 2}));
  EXPECT_EQ(ids_of(synthesizer, 256), (Ids{0, 1, 3, 4}));
}

TEST(SyntheticPrefix, IsReadFromTextAndRefusesWhatItDoesNotKnow) {
  const auto prefix = parse_synthetic_prefix("continue=0.25,shared=1024,seed=7");
  ASSERT_TRUE(prefix);
  EXPECT_EQ(prefix->shared_tokens, 1024u);
  EXPECT_EQ(prefix->continue_probability, 0.25);
  EXPECT_EQ(prefix->seed, 7u);
  for (const char* text :
       {"", "shared", "shared=", "shared=-1", "shared=1,", "shared=1,shared=2", "continue=1.5",
        "continue=nan", "continue=-0.1", "depth=3", "seed=18446744073709551616", "shared=1k"}) {
    const auto refused = parse_synthetic_prefix(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(std::string(refused.error().message).find("expected shared=TOKENS, continue=0…1"),
              std::string::npos);
  }
}

TEST(SyntheticPrefix, RefusesAnInputThatWouldFillMemory) {
  PrefixSynthesizer synthesizer({}, 1);
  Request request;
  request.input_tokens = ~std::uint64_t{0};
  EXPECT_FALSE(synthesizer.apply(request));
}

// Whatever the parameters: as many ids as blocks, each with one parent and depth, and the same again.
RC_GTEST_PROP(SyntheticPrefix, MakesATreeOfPrefixesDeterministically,
              (std::uint16_t shared, std::uint64_t seed, std::vector<std::uint16_t> lengths)) {
  const SyntheticPrefix prefix{.shared_tokens = shared,
                               .continue_probability = *rc::gen::inRange(0, 101) / 100.0,
                               .seed = seed};
  PrefixSynthesizer one(prefix, 100), other(prefix, 100);
  std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> places;
  for (const std::uint16_t length : lengths) {
    const Ids ids = ids_of(one, length);
    RC_ASSERT(ids == ids_of(other, length));
    RC_ASSERT(ids.size() == (length + 99u) / 100u);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::pair place(i == 0 ? ~std::uint64_t{0} : ids[i - 1], i);
      RC_ASSERT(places.try_emplace(ids[i], place).first->second == place);
    }
  }
}

}  // namespace
}  // namespace cachalot::trace
