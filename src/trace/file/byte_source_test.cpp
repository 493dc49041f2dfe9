#include "trace/file/byte_source.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "testing/trace/test_files.h"

namespace cachalot::trace {
namespace {

constexpr const char* kByteOrderMark = "\xef\xbb\xbf";

class ByteSourceTest : public TestFiles {
 protected:
  // All of it, in pieces of `piece` bytes; the message instead if there is an error.
  static std::string content(const std::string& path, std::size_t piece = 1000) {
    return content_of(ByteSource::open(path), piece);
  }
  static std::string text_content(const std::string& path, std::size_t piece = 1000) {
    return content_of(ByteSource::open_text(path), piece);
  }

  static std::string content_of(Result<std::unique_ptr<ByteSource>> source, std::size_t piece) {
    if (!source) return source.error().message;
    std::string all;
    std::string part(piece, '\0');
    for (;;) {
      const Result<std::size_t> bytes = (*source)->read(part);
      if (!bytes) return bytes.error().message;
      all.append(part, 0, *bytes);
      if (*bytes < piece) return all;
    }
  }

  static std::string random_text(std::size_t bytes) {
    base::Rng rng(5);
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>('a' + rng.below(26));
    return text;
  }
};

TEST_F(ByteSourceTest, GivesAPlainFileInPiecesOfAnySize) {
  const std::string text = random_text(5000);
  const std::string file = write("a", text);
  for (const std::size_t piece : {1, 2, 3, 1000, 6000}) EXPECT_EQ(content(file, piece), text);
}

TEST_F(ByteSourceTest, GivesShortFilesWhole) {
  EXPECT_EQ(content(write("0", "")), "");
  EXPECT_EQ(content(write("1", "\x1f")), "\x1f");
  EXPECT_EQ(content(write("2", "ab")), "ab");
}

TEST_F(ByteSourceTest, InflatesGzipWhateverItsName) {
  const std::string text = random_text(300000);
  const std::string file = write("a.txt", gzip(text));
  for (const std::size_t piece : {7, 1000, 400000}) EXPECT_EQ(content(file, piece), text);
}

TEST_F(ByteSourceTest, TakesSeveralMembersForOneFile) {
  const std::string text = random_text(200000);
  EXPECT_EQ(content(write("a.gz", gzip(text) + gzip("") + gzip("the end"))), text + "the end");
}

TEST_F(ByteSourceTest, ACutGzipFileIsAnErrorWhereverItIsCut) {
  const std::string packed = gzip(random_text(3000));
  for (std::size_t bytes = 2; bytes < packed.size(); bytes += bytes < 20 ? 1 : 97) {
    const std::string said = content(write("a.gz", packed.substr(0, bytes)));
    EXPECT_NE(said.find("damaged gzip file: gzip data ends in the middle"), std::string::npos)
        << bytes << ": " << said;
  }
  const std::string said = content(write("a.gz", packed.substr(0, packed.size() - 1)));
  EXPECT_NE(said.find("ends in the middle"), std::string::npos) << said;
}

TEST_F(ByteSourceTest, DamagedGzipDataIsAnErrorThatNamesTheFile) {
  std::string packed = gzip(random_text(3000));
  packed[packed.size() - 6] ^= 1;  // of the checksum
  const std::string file = write("a.gz", packed);
  const std::string said = content(file);
  EXPECT_NE(said.find("a.gz: damaged gzip file: incorrect data check"), std::string::npos) << said;
}

TEST_F(ByteSourceTest, WhatFollowsGzipDataAndIsNoGzipIsDamage) {
  const std::string said = content(write("a.gz", gzip("text") + "more"));
  EXPECT_NE(said.find("damaged gzip file"), std::string::npos) << said;
}

TEST_F(ByteSourceTest, ZerosBehindGzipDataArePadding) {
  const std::string text = random_text(3000);
  for (const std::size_t zeros : {1, 512, 200000}) {  // of several reads
    const std::string file = write("a.gz", gzip(text) + gzip("the end") + std::string(zeros, '\0'));
    for (const std::size_t piece : {7, 10000}) EXPECT_EQ(content(file, piece), text + "the end");
  }
}

TEST_F(ByteSourceTest, WhatFollowsThePaddingOfGzipDataIsDamage) {
  for (const std::size_t zeros : {1, 512, 200000}) {
    for (const std::string& behind : {std::string("more"), gzip("text")}) {
      const std::string packed = gzip("text") + std::string(zeros, '\0') + behind;
      const std::string said = content(write("a.gz", packed));
      EXPECT_NE(said.find("a.gz: damaged gzip file: zeros after its data"), std::string::npos)
          << zeros << ": " << said;
    }
  }
}

TEST_F(ByteSourceTest, TextIsWithoutItsByteOrderMark) {
  const std::string mark = kByteOrderMark;
  const std::string text = random_text(3000);
  for (const std::size_t piece : {1, 2, 7, 10000}) {
    EXPECT_EQ(text_content(write("a", mark + text), piece), text);
    EXPECT_EQ(text_content(write("b.gz", gzip(mark + text)), piece), text);
    EXPECT_EQ(text_content(write("c", text), piece), text);
  }
  EXPECT_EQ(text_content(write("d", mark)), "");
  // One mark, whole, at the beginning; and only of text.
  EXPECT_EQ(text_content(write("e", mark + mark + "a")), mark + "a");
  EXPECT_EQ(text_content(write("f", "\xef\xbb")), "\xef\xbb");
  EXPECT_EQ(content(write("g", mark + text)), mark + text);
}

TEST_F(ByteSourceTest, AMissingFileAndAFolderAreErrors) {
  const auto missing = ByteSource::open(path("none"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(missing.error().message).find("none: No such file"), std::string::npos);
  const auto folder = ByteSource::open(path(""));
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(folder.error().message).find("Is a directory"), std::string::npos);
}

TEST(ShownPath, IsItsEndWhenItIsLong) {
  EXPECT_EQ(shown_path("a/b"), "a/b");
  const std::string shown = shown_path(std::string(500, 'x') + "/trace.jsonl");
  EXPECT_EQ(shown.size(), 103u);
  EXPECT_EQ(shown.substr(shown.size() - 12), "/trace.jsonl");
}

}  // namespace
}  // namespace cachalot::trace
