#include "program.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/log_format.h"
#include "base/words.h"
#include "command_tree.h"
#include "help.h"
#include "manual.h"
#include "name_meant.h"
#include "os/memory.h"

namespace cachalot::apps {
namespace {

// Each error is one line; `--help` has the explanations. The line may be longer than an Error, because it lists all
// names that a flag takes.
int usage_error(const std::string& text, const std::string& command) {
  constexpr std::size_t kMostShown = 1000;
  const std::string line = base::printable(text.substr(0, kMostShown));
  tell_error(line + " (see `" + command + " --help`)");
  return kExitUsage;
}

// A command whose flags are wrong does not run, so it cannot set the format of its log. The error has that format all the same.
void take_log_format(const CLI::App& command) {
  const CLI::Option* const format = command.get_option_no_throw("--log-format");
  if (format != nullptr && format->results() == std::vector<std::string>{"json"})
    base::set_log_format(base::LogFormat::kJson);
}

std::string names_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : commands_of(app)) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// The command that the words in front of the first flag name: as deep as commands go.
// @param  words  how many words it took
// @return false: `unknown` is a word where a command was expected
bool find_command(CLI::App& app, int argc, char** argv, CLI::App*& command, int& words,
                  std::string& unknown) {
  command = &app;
  for (words = 1; words < argc && argv[words][0] != '-'; ++words) {
    const std::vector<const CLI::App*> known = commands_of(*command);
    if (known.empty()) return true;
    const bool is_known = std::ranges::any_of(
        known, [&](const CLI::App* candidate) { return candidate->get_name() == argv[words]; });
    if (!is_known) {
      unknown = argv[words];
      return false;
    }
    command = command->get_subcommand(argv[words]);
  }
  return true;
}

using Arguments = std::vector<std::string>;

std::string empty_value_of(const CLI::Option& option) {
  return option.get_name() + ": \"\" is empty, expected " + option.get_type_name();
}

// What is wrong with a flag's name or its "=". A missing argument is often a misspelt flag, so this
// is looked for before the parser's own complaint.
std::string wrong_flag(const CLI::App& command, const Arguments& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.size() <= 2 || !argument.starts_with("--")) continue;
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    const CLI::Option* const option = command.get_option_no_throw(flag);
    if (option == nullptr)
      return "there is no flag " + flag +
             name_meant(flag.substr(2), flag_names_of(command), "--", "");
    if (equals + 1 == argument.size()) return empty_value_of(*option);
  }
  return "";
}

// The parser takes an empty value for a value, and what follows "--flag=" for the flag's.
std::string empty_value(const CLI::App& command, const Arguments& arguments) {
  for (const CLI::Option* option : command.get_options()) {
    const Arguments& values = option->results();
    const bool is_empty =
        std::find(values.begin(), values.end(), "") != values.end() ||
        std::find(arguments.begin(), arguments.end(), option->get_name() + "=") != arguments.end();
    if (is_empty) return empty_value_of(*option);
  }
  return "";
}

int print_help(const CLI::App& command, const std::string& parent_name) {
  const std::string text = command.help(parent_name);
  std::fputs(text.c_str(), stdout);
  if (!text.ends_with('\n')) std::fputc('\n', stdout);
  return kExitDone;
}

// A line for each word that may come after these: commands, or flags. None: a value is expected, perhaps a file.
int print_next_words(CLI::App& app, int argc, char** argv) {
  CLI::App* command = nullptr;
  int words = 0;
  std::string unknown;
  if (!find_command(app, argc, argv, command, words, unknown)) return kExitDone;
  if (words == argc) {
    for (const CLI::App* next : commands_of(*command))
      std::printf("%s\n", next->get_name().c_str());
    if (!commands_of(*command).empty()) return kExitDone;
  }
  const CLI::Option* const last = command->get_option_no_throw(std::string(argv[argc - 1]));
  if (last != nullptr && last->get_items_expected_min() > 0) return kExitDone;
  for (const std::string& name : flag_names_of(*command)) std::printf("--%s\n", name.c_str());
  return kExitDone;
}

int run(const Program& program, int argc, char** argv) {
  CLI::App app(program.description, program.name);
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", program.version);
  Chosen chosen;
  app.footer(program.footer);
  Command root(app);
  program.add_to(root, chosen);

  if (argc > 1 && argv[argc - 1] == std::string_view(kCompleteWord))
    return print_next_words(app, argc - 1, argv);
  if (argc > 2 && argv[argc - 2] == std::string_view(kManualWord)) {
    const Status written = write_manual(app, program.version, argv[argc - 1]);
    return written ? kExitDone : fail(written.error());
  }
  CLI::App* command = nullptr;
  int words = 0;
  std::string unknown;
  const bool is_known = find_command(app, argc, argv, command, words, unknown);
  const std::string name = full_name(command);
  if (!is_known) {
    std::vector<std::string> known;
    for (const CLI::App* one : commands_of(*command)) known.push_back(one->get_name());
    const std::string meant = name_meant(unknown, known, "\"", "\"");
    return usage_error("there is no command \"" + unknown + "\"" +
                           (meant.empty() ? ", expected one of: " + names_of(*command) : meant),
                       name);
  }
  // The parser sees the chosen command alone: among others it would take an argument that is called
  // like one of them for that command. Behind a flag in a command's place nothing counts.
  Arguments arguments(argv + words, argv + argc);
  if (!commands_of(*command).empty() && arguments.size() > 1) arguments.resize(1);
  const std::string parent_name =
      command->get_parent() == nullptr ? "" : full_name(command->get_parent());
  if (arguments.empty() && !commands_of(*command).empty()) {
    return usage_error("a command is missing, expected one of: " + names_of(*command), name);
  }
  chosen.arguments = arguments;
  try {
    command->parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return print_help(*command, parent_name);
  } catch (const CLI::CallForVersion& version) {
    std::printf("%s\n", version.what());
    return kExitDone;
  } catch (const CLI::ConfigError& error) {
    take_log_format(*command);
    // The library says: INI was not able to parse KEY.
    const std::string text = error.what();
    const std::size_t at = text.rfind(' ');
    return usage_error("configuration file: \"" +
                           text.substr(at == std::string::npos ? 0 : at + 1).substr(0, 60) +
                           "\" is not a flag of " + command->get_name() +
                           ", expected lines as in: flag-name = value",
                       name);
  } catch (const CLI::ParseError& error) {
    take_log_format(*command);
    const std::string wrong = wrong_flag(*command, arguments);
    return usage_error(wrong.empty() ? error.what() : wrong, name);
  }
  take_log_format(*command);
  const std::string empty = empty_value(*command, arguments);
  if (!empty.empty()) return usage_error(empty, name);
  if (!chosen.run) {
    return usage_error("a command is missing, expected one of: " + names_of(*command), name);
  }
  return chosen.run();
}

// 0, 1 and 2 are taken from here on, so that no file of a pool gets one of these numbers and is
// read as stdin or printed into. Where one was closed, its use stays an error.
Status fill_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) {
      return Error::from_errno(errno, "/dev/null: opening");
    }
  }
  return {};
}

// What the exception in flight says of the limits of this process or its machine. Nothing: it is another one.
std::optional<Error> limit_error() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    const std::uint64_t limit = os::address_space_limit();
    if (limit == ~std::uint64_t{0}) return Error::make(Code::kNoSpace, "out of memory");
    return Error::make(
        Code::kNoSpace,
        "out of memory: the process may have %" PRIu64 " bytes of addresses (ulimit -v)", limit);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return {};
    return Error::make(Code::kNoSpace,
                       "a thread cannot be started: %.100s; expected room for its stack (ulimit "
                       "-v) and in the number of threads (ulimit -u)",
                       error.code().message().c_str());
  } catch (...) {
    return {};
  }
}

std::terminate_handler default_handler = nullptr;

// For exceptions that no function catches: those of other threads and of destructors.
[[noreturn]] void end_with_line() {
  const std::optional<Error> error = std::current_exception() ? limit_error() : std::nullopt;
  if (!error) {
    default_handler();
    std::abort();
  }
  std::fprintf(stderr, "cachalot: %s\n", base::printable(error->message).c_str());
  _exit(exit_code(error->code));
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  // Beyond a limit on the size of files (ulimit -f) calls fail with EFBIG: an error as others, instead of an end
  // without a word.
  ::signal(SIGXFSZ, SIG_IGN);
  default_handler = std::set_terminate(end_with_line);
  const Status filled = fill_standard_descriptors();
  if (!filled) return fail(filled.error());
  try {
    return finish(run(program, argc, argv));
  } catch (const std::exception& error) {
    const std::optional<Error> limit = limit_error();
    if (limit) return fail(*limit);
    return fail(Error::make(Code::kInternal, "unexpected: %.150s", error.what()));
  }
}

}  // namespace cachalot::apps
