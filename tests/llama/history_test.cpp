#include "preload/history.h"

#include <gtest/gtest.h>

namespace cachalot::llama {
namespace {

using Tokens = std::vector<llama_token>;

History history_of(const Tokens& tokens, std::size_t exact) {
  History history;
  history.set(tokens, exact);
  return history;
}

TEST(History, FollowsTokensThatComeOneBehindTheOther) {
  History history;
  history.add(7, 0);
  history.add(8, 1);
  EXPECT_EQ(history.tokens(), (Tokens{7, 8}));
  EXPECT_EQ(history.exact(), 0u);
  history.add(9, 3);
  EXPECT_FALSE(history.is_known());
  history.add(9, 0);
  EXPECT_FALSE(history.is_known()) << "what the sequence holds besides is not known";
  history.remove(-1, -1);
  EXPECT_TRUE(history.is_known());
  EXPECT_TRUE(history.tokens().empty());
}

TEST(History, IsCutOffAtItsEnd) {
  History history = history_of({1, 2, 3, 4, 5, 6}, 4);
  history.remove(5, -1);
  EXPECT_EQ(history.tokens().size(), 5u);
  EXPECT_EQ(history.exact(), 4u);
  history.remove(3, 100);
  EXPECT_EQ(history.tokens(), (Tokens{1, 2, 3}));
  EXPECT_EQ(history.exact(), 3u);
  history.remove(3, -1);  // nothing is there
  history.remove(1, 1);
  EXPECT_EQ(history.tokens().size(), 3u);
  history.remove(0, 3);
  EXPECT_TRUE(history.is_known() && history.tokens().empty());
}

TEST(History, IsForgottenWhereAHoleIs) {
  History history = history_of({1, 2, 3, 4}, 4);
  history.remove(1, 2);
  EXPECT_FALSE(history.is_known());
  history.clear();
  EXPECT_TRUE(history.is_known());
}

TEST(History, IsCopiedIntoAnEmptySequenceFromItsBeginning) {
  const History source = history_of({1, 2, 3, 4}, 2);
  History all, some, none, full = history_of({9}, 0), unknown;
  all.copy(source, -1, -1);
  EXPECT_EQ(all.tokens(), source.tokens());
  EXPECT_EQ(all.exact(), 2u);
  some.copy(source, 0, 3);
  EXPECT_EQ(some.tokens(), (Tokens{1, 2, 3}));
  none.copy(source, 2, -1);
  EXPECT_FALSE(none.is_known());
  full.copy(source, 0, -1);
  EXPECT_FALSE(full.is_known());
  unknown.forget();
  unknown.copy(source, 0, -1);
  EXPECT_FALSE(unknown.is_known());
}

}  // namespace
}  // namespace cachalot::llama
