#include "manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "command_tree.h"
#include "companions.h"
#include "help.h"

namespace cachalot::apps {
namespace {

// `text` so that troff prints it as it is, on any device.
std::string as_troff(std::string_view text) {
  std::string troff;
  while (!text.empty()) {
    const std::size_t bytes = std::max<std::size_t>(base::utf8_character_bytes(text), 1);
    if (bytes > 1) {
      std::uint32_t code = static_cast<unsigned char>(text[0]) & (0x7fu >> bytes);
      for (std::size_t i = 1; i < bytes; ++i)
        code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
      char name[16];
      std::snprintf(name, sizeof name, "\\[u%04X]", code);
      troff += name;
    } else {
      constexpr std::string_view kSpecial = "\\-'`^~";
      constexpr const char* kWritten[] = {"\\e", "\\-", "\\(aq", "\\(ga", "\\(ha", "\\(ti"};
      const std::size_t at = kSpecial.find(text[0]);
      troff += at == std::string_view::npos ? std::string(1, text[0]) : kWritten[at];
      // Lists of values, and URIs, are longer than a line.
      const bool may_break = text[0] == ',' || text[0] == '|' || text[0] == ']';
      if (may_break && text.size() > 1 && text[1] != ' ') troff += "\\:";
    }
    text.remove_prefix(bytes);
  }
  // A point at the beginning of a line would be a request.
  return troff.starts_with('.') ? "\\&" + troff : troff;
}

char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

// The lines of a page, for the macros of man(7).
class Page {
 public:
  Page(std::string_view name, const std::string& version) {
    std::string title(name);
    std::ranges::transform(title, title.begin(), upper);
    // No date: the same sources make the same page.
    out_ << ".TH " << as_troff(title) << " 1 \"\" \"" << as_troff(version)
         << "\" Cachalot\n.nh\n.ad l\n";
  }

  void section(std::string_view title) { out_ << ".SH " << title << '\n'; }
  void part(std::string_view title) { out_ << ".SS " << as_troff(title) << '\n'; }
  void line(std::string_view text) { out_ << as_troff(text) << '\n'; }
  void raw_line(std::string_view troff) { out_ << troff << '\n'; }
  // @param head  troff
  void item(std::string_view head, std::string_view text) {
    out_ << ".TP\n" << head << '\n';
    line(text);
  }
  void verbatim(const std::vector<std::string>& lines) {
    out_ << ".nf\n";
    for (const std::string& each : lines) line(each);
    out_ << ".fi\n";
  }

  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

std::string bold(std::string_view text) {
  return "\\fB" + as_troff(text) + "\\fR";
}

std::string page_name(const CLI::App* command) {
  std::string name = full_name(command);
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string reference_to(const CLI::App* command) {
  return bold(page_name(command)) + "(1)";
}

// "-h,--help" in bold, with what the help says of its value.
std::string head_of(const CLI::Option& option, bool is_positional) {
  std::string head;
  std::istringstream names(option.get_name(is_positional, !is_positional));
  for (std::string name; std::getline(names, name, ',');)
    head += (head.empty() ? "" : ", ") + bold(name);
  return head + as_troff(values_of(option, is_positional));
}

void add_flags_of(Page& page, const CLI::App& command) {
  const std::vector<const CLI::Option*> arguments =
      command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  if (!arguments.empty()) page.section("ARGUMENTS");
  for (const CLI::Option* option : arguments)
    page.item(head_of(*option, true), description_of(*option, true));
  page.section("OPTIONS");
  for (const std::string& group : command.get_groups()) {
    if (group.empty()) continue;  // hidden
    const std::vector<const CLI::Option*> flags =
        command.get_options([&](const CLI::Option* option) {
          return option->get_group() == group && option->nonpositional();
        });
    if (!flags.empty() && group != "Options") page.part(group);
    for (const CLI::Option* option : flags)
      page.item(head_of(*option, false), description_of(*option, false));
  }
}

void add_commands_of(Page& page, const CLI::App& command) {
  const std::vector<const CLI::App*> commands = commands_of(command);
  if (commands.empty()) return;
  page.section("COMMANDS");
  std::vector<std::string> groups;
  for (const CLI::App* each : commands) {
    if (std::ranges::find(groups, each->get_group()) == groups.end())
      groups.push_back(each->get_group());
  }
  for (const std::string& group : groups) {
    if (groups.size() > 1) page.part(group);
    for (const CLI::App* each : commands) {
      if (each->get_group() == group) page.item(reference_to(each), each->get_description());
    }
  }
}

// What stands below the help: notes, "Exit code …" and "Example: …", whose next lines are as far to the right.
void add_footer_of(Page& page, const CLI::App& command) {
  constexpr std::string_view kExample = "Example: ";
  std::vector<std::string> notes, examples, exit_codes;
  bool is_example = false;
  std::istringstream footer(command.get_footer());
  for (std::string line; std::getline(footer, line);) {
    const bool is_next = is_example && line.starts_with(std::string(kExample.size(), ' '));
    is_example = line.starts_with(kExample) || is_next;
    if (is_example) {
      examples.push_back(line.substr(kExample.size()));
    } else if (!line.empty()) {
      (line.starts_with("Exit code") ? exit_codes : notes).push_back(line);
    }
  }
  if (!notes.empty()) page.section("NOTES");
  for (const std::string& note : notes) {
    // A line of a table, or a sentence.
    if (note.starts_with(' ')) {
      page.verbatim({note});
    } else {
      if (&note != notes.data()) page.raw_line(".PP");
      page.line(note);
    }
  }
  if (!exit_codes.empty()) page.section("EXIT STATUS");
  for (const std::string& line : exit_codes) page.line(line);
  if (!examples.empty()) page.section("EXAMPLES");
  if (!examples.empty()) page.verbatim(examples);
}

std::string page_of(const CLI::App& command, const std::string& version) {
  const std::string name = page_name(&command);
  Page page(name, version);
  const std::string description = command.get_description();
  page.section("NAME");
  page.raw_line(as_troff(name) + " \\- " + as_troff(description.substr(0, description.find(". "))));
  page.section("SYNOPSIS");
  const std::string whole = full_name(&command);
  const std::string usage = CLI::Formatter().make_usage(&command, whole);
  const std::size_t rest = usage.find(whole) + whole.size();
  page.raw_line(bold(whole) + as_troff(usage.substr(rest, usage.find('\n', rest) - rest)));
  page.section("DESCRIPTION");
  page.line(upper(description[0]) + description.substr(1) +
            (description.ends_with('.') ? "" : "."));
  add_commands_of(page, command);
  add_flags_of(page, command);
  add_footer_of(page, command);
  if (name != "cachalot") {
    page.section("SEE ALSO");
    page.raw_line(command.get_parent() == nullptr ? bold("cachalot") + "(1)"
                                                  : reference_to(command.get_parent()));
  }
  return page.text();
}

Status write_page(const CLI::App& command, const std::string& version, const std::string& folder) {
  const std::string file = folder + "/" + page_name(&command) + ".1";
  std::ofstream out(file);
  out << page_of(command, version);
  out.close();
  if (!out) return Error::make(Code::kIo, "%s: cannot be written", file.c_str());
  return {};
}

Status write_pages_from(const CLI::App& command, const std::string& version,
                        const std::string& folder) {
  Status written = write_page(command, version, folder);
  for (const CLI::App* each : commands_of(command)) {
    if (written) written = write_pages_from(*each, version, folder);
  }
  return written;
}

}  // namespace

Status write_manual(const CLI::App& app, const std::string& version, const std::string& folder) {
  const std::vector<const CLI::App*> commands = commands_of(app);
  const auto is_companion = [](const CLI::App* command) {
    return find_companion(command->get_name()) != nullptr;
  };
  const bool is_cachalot = !std::ranges::all_of(commands, is_companion);
  Status written;
  if (is_cachalot || commands.empty()) written = write_page(app, version, folder);
  for (const CLI::App* each : commands) {
    if (written && !(is_cachalot && is_companion(each)))
      written = write_pages_from(*each, version, folder);
  }
  return written;
}

}  // namespace cachalot::apps
