// Commands and flags that a shell completes: those that the help has.
#include <set>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

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
