#include "trace/file/json_array_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace cachalot::trace {
namespace {

class Text final : public ByteSource {
 public:
  Text(std::string_view text, std::size_t step) : text_(text), step_(step) {}
  Result<std::size_t> read(std::span<char> to) override {
    const std::size_t bytes = std::min({step_, to.size(), text_.size()});
    std::copy_n(text_.data(), bytes, to.data());
    text_.remove_prefix(bytes);
    return bytes;
  }

 private:
  std::string_view text_;
  std::size_t step_;
};

// What is read of an array; "error: …" at its end where it ends in one.
std::string read(std::string_view text, std::size_t step = 1000) {
  JsonArraySource array(std::make_unique<Text>(text, step), "a.json");
  std::string all;
  char buffer[1000];
  for (;;) {
    const Result<std::size_t> bytes = array.read(buffer);
    if (!bytes) return all + "error: " + bytes.error().message;
    if (*bytes == 0) return all;
    all.append(buffer, *bytes);
  }
}

TEST(JsonArraySource, GivesElementsAsLinesHoweverTheyAreRead) {
  const std::string_view text = "\n[{\"a\":[1,\n2]},\r\n {\"b\":\"],\\\"}\"} , 7]\n ";
  const std::string_view lines = "  {\"a\":[1, 2]}\n   {\"b\":\"],\\\"}\"} \n 7\n  ";
  for (const std::size_t step : {1, 2, 3, 1000}) EXPECT_EQ(read(text, step), lines) << step;
  EXPECT_EQ(read("[]"), " \n");
}

TEST(JsonArraySource, SaysWhereAnArrayIsBroken) {
  constexpr const char* kEmpty = ": expected an object before the next comma or ]";
  EXPECT_EQ(read("[1,,2]"), std::string("error: a.json: element 2") + kEmpty);
  EXPECT_EQ(read("[1,]"), std::string("error: a.json: element 2") + kEmpty);
  EXPECT_EQ(read("[,1]"), std::string("error: a.json: element 1") + kEmpty);
  EXPECT_EQ(read("[1}"), std::string("error: a.json: element 1") + kEmpty);
  EXPECT_EQ(read("[1,2", 1),
            " 1\n2error: a.json: the array does not end, expected ] after element 2");
  EXPECT_EQ(read("[1] 2"), "error: a.json: text after the array of 1 elements, expected none");
  EXPECT_EQ(read("[1]]"), "error: a.json: text after the array of 1 elements, expected none");
}

}  // namespace
}  // namespace cachalot::trace
