#include "os/links.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace cachalot::os {
namespace {

namespace fs = std::filesystem;

TEST(FollowLinks, SaysWhatALinkStandsForThereOrNot) {
  const fs::path folder = fs::path(testing::TempDir()) / "cachalot_links_test";
  fs::remove_all(folder);
  fs::create_directories(folder / "inner");
  fs::create_symlink("inner/file", folder / "relative");
  fs::create_symlink(folder / "relative", folder / "absolute");
  fs::create_symlink("ring", folder / "ring");
  EXPECT_EQ(follow_links(folder / "plain"), folder / "plain");
  EXPECT_EQ(follow_links(folder / "relative"), folder / "inner/file");
  EXPECT_EQ(follow_links(folder / "absolute"), folder / "inner/file");
  EXPECT_EQ(follow_links("no/link"), "no/link");
  EXPECT_EQ(fs::path(follow_links(folder / "ring")).filename(), "ring");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cachalot::os
