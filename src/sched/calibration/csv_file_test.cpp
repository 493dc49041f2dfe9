#include "sched/calibration/csv_file.h"

#include <gtest/gtest.h>

#include <string>

#include "sched/calibration/flat_yaml.h"
#include "testing/os/scratch_folder.h"

namespace cachalot::sched {
namespace {

constexpr const char* kColumns[] = {"layer", "tokens", "time_us"};

class CsvFileTest : public ::testing::Test {
 protected:
  Result<CsvFile> read(const std::string& text) {
    return CsvFile::read(folder_.write("t.csv", text), kColumns);
  }
  // The message behind the file's name.
  std::string problem_of(const std::string& text) {
    const Result<CsvFile> file = read(text);
    if (file) return "none";
    EXPECT_EQ(file.error().code, Code::kBadInput);
    const std::string message = file.error().message;
    return message.substr(message.find("t.csv") + 5);
  }

  os::ScratchFolder folder_;
};

TEST_F(CsvFileTest, ColumnsMayComeInAnyOrder) {
  const Result<CsvFile> file = read("time_us,layer,tokens\r\n1.5,a,7\r\n\n0,b,8\n");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->rows(), 2u);
  EXPECT_EQ(file->text(0, 0), "a");
  EXPECT_EQ(*file->integer(1, 1), 8u);
  EXPECT_DOUBLE_EQ(*file->number(0, 2), 1.5);
}

TEST_F(CsvFileTest, WrongColumnsAndRowsAreNamed) {
  EXPECT_EQ(problem_of("layer,tokens,time_ms\n"),
            ": unknown column \"time_ms\", expected layer,tokens,time_us");
  EXPECT_EQ(problem_of("layer,tokens\na,1\n"), ": no column time_us");
  EXPECT_EQ(problem_of("layer,tokens,tokens,time_us\n"), ": column tokens is there twice");
  EXPECT_EQ(problem_of("layer,tokens,time_us\na,1\n"), ":2: 2 values, expected 3");
  EXPECT_EQ(problem_of("layer,tokens,time_us\n"), ": no rows, expected a header and rows below it");
}

TEST_F(CsvFileTest, WrongValuesAreNamedWithTheirLine) {
  const Result<CsvFile> file = read("layer,tokens,time_us\n,-1,-2.5\na,1.5,nan\n");
  ASSERT_TRUE(file.ok());
  const auto problem = [](const auto& value) {
    const std::string message = value.error().message;
    return message.substr(message.find("t.csv") + 5);
  };
  EXPECT_EQ(problem(file->name(0, 0)), ":2: layer is empty, expected a name");
  EXPECT_EQ(problem(file->integer(0, 1)),
            ":2: tokens is \"-1\", expected a whole number not below 0");
  EXPECT_EQ(problem(file->number(0, 2)), ":2: time_us is -2.5, expected a number not below 0");
  EXPECT_DOUBLE_EQ(*file->any_number(0, 2), -2.5);
  EXPECT_FALSE(file->integer(1, 1).ok());
  EXPECT_EQ(problem(file->number(1, 2)), ":3: time_us is \"nan\", expected a number");
}

TEST_F(CsvFileTest, AFileThatIsNotThereIsAnError) {
  const Result<CsvFile> file = CsvFile::read(folder_.path("none.csv"), kColumns);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::kInvalidArgument);
}

TEST(FlatYaml, ReadsNestedMapsScalarsAndLists) {
  const os::ScratchFolder folder;
  const Result<FlatYaml> yaml = FlatYaml::read(folder.write(
      "m.yaml",
      "---\n# about\nname: 'x y'\ntop:\n  inner:\n    flag: true\n    list: [1, 2.5, -3]\n"
      "  other: b:c\nlast: [n<=2, \"m\"]\n"));
  ASSERT_TRUE(yaml.ok()) << yaml.error().message;
  EXPECT_EQ(*yaml->text("name"), "x y");
  EXPECT_TRUE(*yaml->boolean("top.inner.flag"));
  EXPECT_EQ(*yaml->numbers("top.inner.list"), (std::vector<double>{1, 2.5, -3}));
  EXPECT_EQ(*yaml->text("top.other"), "b:c");
  EXPECT_EQ(*yaml->list("last"), (std::vector<std::string>{"n<=2", "m"}));
  EXPECT_FALSE(yaml->has("inner"));
}

TEST(FlatYaml, WhatIsNotOfThisPartIsAnError) {
  const os::ScratchFolder folder;
  for (const char* text : {"- a\n", "just text\n", "a: 1\na: 2\n"})
    EXPECT_FALSE(FlatYaml::read(folder.write("m.yaml", text)).ok()) << text;
  const Result<FlatYaml> yaml = FlatYaml::read(folder.write("m.yaml", "a: b\nc: [1, x]\n"));
  ASSERT_TRUE(yaml.ok());
  EXPECT_FALSE(yaml->number("a").ok());
  EXPECT_FALSE(yaml->boolean("a").ok());
  EXPECT_FALSE(yaml->list("a").ok());
  EXPECT_FALSE(yaml->numbers("c").ok());
  EXPECT_FALSE(yaml->text("d").ok());
}

}  // namespace
}  // namespace cachalot::sched
