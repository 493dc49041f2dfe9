// The manual pages that the programs write, and the build installs.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "program.h"

namespace cachalot::process_test {
namespace {

class Manual : public ProcessTest {
 protected:
  // Of all programs: `cachalot`, and one command of each that it starts.
  Manual() {
    for (const Arguments& program : {Arguments{}, {"simulate"}, {"vtensor"}, {"bench"}}) {
      Arguments words = program;
      words.insert(words.end(), {"__manual", path("")});
      expect_done(run(words));
    }
  }

  std::string page(const Arguments& command) const {
    std::string name = "cachalot";
    for (const std::string& word : command) name += "-" + word;
    return path(name + ".1");
  }
};

// That command and all below it.
void add_commands(const Arguments& command, std::vector<Arguments>& commands) {
  commands.push_back(command);
  for (const std::string& word : next_words(command)) {
    if (word.starts_with("-")) continue;
    Arguments next = command;
    next.push_back(word);
    add_commands(next, commands);
  }
}

std::vector<Arguments> all_commands() {
  std::vector<Arguments> commands;
  add_commands({}, commands);
  return commands;
}

std::string as_troff(std::string text) {
  for (std::size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

TEST_F(Manual, HasAPageOfEachCommandWithEachFlagOfItsHelp) {
  const std::vector<Arguments> commands = all_commands();
  EXPECT_GT(commands.size(), 30u);
  for (const Arguments& command : commands) {
    SCOPED_TRACE(page(command));
    ASSERT_TRUE(std::filesystem::exists(page(command)));
    const std::string text = read(page(command));
    for (const char* part : {".TH CACHALOT", "\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH OPTIONS\n"})
      EXPECT_NE(text.find(part), std::string::npos) << part;
    const std::set<std::string> flags = flags_in_help(command);
    EXPECT_FALSE(flags.empty());
    for (const std::string& flag : flags)
      EXPECT_NE(text.find("\\fB" + as_troff(flag) + "\\fR"), std::string::npos) << flag;
  }
  EXPECT_EQ(listing().size(), commands.size()) << "pages of no command";
}

TEST_F(Manual, PagesNameTheCommandsBelowThem) {
  const std::string text = read(page({"pool"}));
  for (const std::string& word : next_words({"pool"}))
    EXPECT_NE(text.find("\\fBcachalot\\-pool\\-" + word + "\\fR(1)"), std::string::npos) << word;
}

TEST_F(Manual, TroffReadsEachPageWithoutAWarning) {
  if (said_by("sh -c 'command -v groff'").empty()) GTEST_SKIP() << "there is no groff";
  for (const Arguments& command : all_commands()) {
    EXPECT_EQ(said_by("groff -man -ww -b -z -Tutf8 " + page(command) + " 2>&1"), "");
  }
  const std::string shown = said_by("groff -man -Tutf8 -P-cbou " + page({"serve"}) + " 2>&1");
  for (const char* part : {"cachalot-serve - runs the keeper", "--pool PATH", "Storage"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << "\n" << shown;
}

TEST_F(Manual, AFolderThatIsNotThereIsAnError) {
  expect_error(run({"__manual", path("none")}), 3, {path("none") + "/cachalot.1"});
}

}  // namespace
}  // namespace cachalot::process_test
