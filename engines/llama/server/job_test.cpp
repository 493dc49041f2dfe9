#include "job.h"

#include <gtest/gtest.h>

#include <thread>

namespace cachalot::llama {
namespace {

constexpr std::chrono::milliseconds kNoWait{0}, kLong{60'000};

TEST(Job, GivesAllTextThatCameMeanwhileAtOnce) {
  Job job({1}, {}, 10);
  job.put({.text = "one "});
  job.put({.text = "two"});
  const auto event = job.take(kNoWait);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->text, "one two");
  EXPECT_FALSE(event->finish);
  EXPECT_FALSE(job.take(kNoWait));
}

TEST(Job, EndsWithAReasonOrAnError) {
  Job finished({1}, {}, 10);
  finished.put({.text = "last"});
  finished.put({.finish = Finish::kLength});
  const auto end = finished.take(kNoWait);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->text, "last");
  EXPECT_EQ(end->finish, Finish::kLength);

  Job failed({1}, {}, 10);
  failed.put({.error = Error::make(Code::kInternal, "no")});
  EXPECT_EQ(failed.take(kNoWait)->error->code, Code::kInternal);
}

TEST(Job, WakesWhoWaitsForIt) {
  Job job({1}, {}, 10);
  std::thread decode([&job] { job.put({.text = "x"}); });
  EXPECT_EQ(job.take(kLong)->text, "x");
  decode.join();
}

}  // namespace
}  // namespace cachalot::llama
