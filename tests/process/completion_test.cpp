// Commands and flags that a shell completes: those that the help has.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

std::set<std::string> next_words(Arguments words) {
  words.emplace_back("__complete");
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return lines_of(outcome.out);
}

// The flags at the beginnings of the help's lines.
std::set<std::string> flags_in_help(Arguments command) {
  command.emplace_back("--help");
  std::set<std::string> flags;
  for (const std::string& line : lines_of(run(command).out)) {
    const std::size_t at = line.find("--");
    if (at == std::string::npos || line.find_first_not_of(" ") < 2 ||
        line.substr(0, at).find_first_not_of(" -h,path") != std::string::npos)
      continue;
    flags.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  return flags;
}

std::string said_by(const std::string& shell_command) {
  const std::string path = std::filesystem::path(CACHALOT_BINARY).parent_path();
  const std::string command = "PATH=" + path + ":$PATH " + shell_command;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(popen(command.c_str(), "r"), pclose);
  std::string text;
  char part[4096];
  for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, out.get())) > 0;)
    text.append(part, n);
  return text;
}

TEST(Completion, EachFlagOfTheHelpIsAWord) {
  for (const Arguments& command : {Arguments{"serve"},
                                   {"stop"},
                                   {"doctor"},
                                   {"top"},
                                   {"pool", "create"},
                                   {"pool", "list"},
                                   {"put"},
                                   {"hitrate"},
                                   {"trace", "generate"},
                                   {"simulate"},
                                   {"vtensor"}}) {
    SCOPED_TRACE(command.back());
    const std::set<std::string> flags = flags_in_help(command), words = next_words(command);
    EXPECT_GT(flags.size(), 1u);
    for (const std::string& flag : flags) EXPECT_TRUE(words.contains(flag)) << flag;
  }
}

TEST(Completion, CommandsComeBeforeFlagsAndAValueIsNoWord) {
  EXPECT_TRUE(next_words({}).contains("serve"));
  EXPECT_TRUE(next_words({}).contains("completion"));
  EXPECT_EQ(next_words({"trace"}), (std::set<std::string>{"convert", "generate", "info"}));
  EXPECT_EQ(next_words({"serve", "--pool"}), std::set<std::string>());
  EXPECT_TRUE(next_words({"serve", "--create"}).contains("--size"));
  EXPECT_EQ(next_words({"no-such"}), std::set<std::string>());
}

TEST(Completion, BashTakesItsScript) {
  const auto completed = [](const std::string& words, int at) {
    return said_by("bash -c 'eval \"$(cachalot completion bash)\"; COMP_WORDS=(" + words +
                   "); COMP_CWORD=" + std::to_string(at) +
                   "; _cachalot; printf \"%s\\n\" \"${COMPREPLY[@]}\"'");
  };
  EXPECT_EQ(completed("cachalot serve --storage-c", 2),
            "--storage-capacity\n--storage-capacity-blocks\n");
  EXPECT_EQ(completed("cachalot compl", 1), "completion\n");
  EXPECT_EQ(completed("cachalot pool li", 2), "list\n");
  EXPECT_EQ(completed("cachalot serve --pool x", 3), "\n");
}

TEST(Completion, ZshIsGivenAScriptOfItsOwn) {
  const Outcome script = run({"completion", "zsh"});
  expect_done(script);
  EXPECT_TRUE(script.out.starts_with("#compdef cachalot\n")) << script.out;
  if (said_by("sh -c 'command -v zsh'").empty()) return;
  EXPECT_EQ(said_by("zsh -n -c \"$(cachalot completion zsh)\" 2>&1"), "");
}

TEST(Completion, OnlyTheseShellsAreKnown) {
  expect_error(run({"completion", "fish"}), 2, {"fish"});
}

}  // namespace
}  // namespace cachalot::process_test
