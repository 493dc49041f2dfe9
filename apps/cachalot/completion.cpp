// `cachalot completion`: what makes a shell complete commands and flags. The program itself is asked for them, so that a
// script never lacks a new flag.

#include <cstdio>
#include <memory>
#include <string>

#include "command.h"

namespace cachalot::apps {
namespace {

// __complete: kCompleteWord. Where the program knows no word, the shell completes files.
constexpr const char* kBash = R"sh(_cachalot() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(cachalot "${COMP_WORDS[@]:1:COMP_CWORD-1}" __complete 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _cachalot cachalot
)sh";

constexpr const char* kZsh = R"sh(#compdef cachalot
_cachalot() {
  local -a known
  known=(${(f)"$(cachalot "${(@)words[2,CURRENT-1]}" __complete 2>/dev/null)"})
  if (( ${#known} )) && [[ $PREFIX == -* || ${known[1]} != -* ]]; then compadd -a known; else _files; fi
}
if [[ ${funcstack[1]} == _cachalot ]]; then _cachalot; else compdef _cachalot cachalot; fi
)sh";

}  // namespace

void add_completion(Command& app, Chosen& chosen) {
  const auto shell = std::make_shared<std::string>();
  Command* const command = app.add_subcommand(
      "completion", "prints a script that completes commands and flags in a shell");
  command->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->type_name("SHELL")
      ->check(one_of({"bash", "zsh"}));
  command->footer(
      "Example: cachalot completion bash > ~/.local/share/bash-completion/completions/cachalot\n"
      "         cachalot completion zsh > \"${fpath[1]}/_cachalot\"");
  command->callback([shell, &chosen] {
    chosen.run = [shell] {
      std::fputs(*shell == "bash" ? kBash : kZsh, stdout);
      return kExitDone;
    };
  });
}

}  // namespace cachalot::apps
