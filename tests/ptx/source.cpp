#include "ptx/source.h"

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>

#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

struct Token {
  std::string text;  // empty: the end
  int line = 0;
  bool is_string = false;
};

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> out;
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (text.substr(i, 2) == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i);
      if (end == text.npos) fail(Wrong::kText, "line %d: a comment without an end", line);
      for (; i < end + 2; ++i) line += text[i] == '\n';
    } else if (c == '"') {
      const std::size_t end = text.find('"', i + 1);
      if (end == text.npos) fail(Wrong::kText, "line %d: a string without an end", line);
      out.push_back({std::string(text.substr(i + 1, end - i - 1)), line, true});
      i = end + 1;
    } else if (in_word(c)) {
      const std::size_t first = i;
      // "::" is inside a modifier, ":" behind a label.
      while (i < text.size() && (in_word(text[i]) || text.substr(i, 2) == "::" ||
                                 (text[i] == ':' && text[i - 1] == ':'))) {
        ++i;
      }
      out.push_back({std::string(text.substr(first, i - first)), line});
    } else {
      out.push_back({std::string(1, c), line});
      ++i;
    }
  }
  out.push_back({"", line});
  return out;
}

std::optional<std::uint64_t> number_of(const std::string& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return {};
  const bool is_float = text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'd');
  const char* const digits = text.c_str() + (is_float ? 2 : 0);
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(digits, &end, is_float ? 16 : 0);
  if (*end == 'U' && end[1] == '\0') ++end;
  if (*end != '\0') return {};
  return value;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokens_of(text)) {}

  ModuleSource module() {
    ModuleSource out;
    while (!now().text.empty()) {
      const Token first = take();
      if (first.text == ".version") {
        take();
      } else if (first.text == ".target") {
        out.target = take().text;
      } else if (first.text == ".address_size") {
        expect("64");
      } else if (first.text == ".extern" || first.text == ".shared") {
        if (first.text == ".extern") expect(".shared");
        out.shared.push_back(variable());
        expect(";");
      } else if (first.text == ".visible" || first.text == ".entry") {
        if (first.text == ".visible") expect(".entry");
        out.kernels.push_back(kernel());
      } else {
        wrong(first, "a directive that is not known");
      }
    }
    return out;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_if(std::string_view text) {
    if (now().is_string || now().text != text) return false;
    take();
    return true;
  }
  [[noreturn]] static void wrong(const Token& token, const char* what) {
    fail(Wrong::kText, "line %d: '%s': %s", token.line, token.text.c_str(), what);
  }
  void expect(std::string_view text) {
    if (!take_if(text)) {
      wrong(now(), ("expected '" + std::string(text) + "'").c_str());
    }
  }
  std::uint64_t number() {
    const bool negative = take_if("-");
    const Token token = take();
    const std::optional<std::uint64_t> value = number_of(token.text);
    if (!value) wrong(token, "expected a number");
    return negative ? 0 - *value : *value;
  }

  // Behind the state space: .align 8 .b8 name[32]
  Variable variable() {
    Variable out;
    if (take_if(".align")) out.alignment = number();
    const Token type = take();
    const std::uint32_t bits = bits_of(type.text.size() > 1 ? type.text.substr(1) : "");
    if (bits < 8) wrong(type, "a type that is not known");
    if (take_if(".ptr")) {
      // What a pointer points to is said for the compiler's use.
      if (now().text == ".global" || now().text == ".shared") take();
      if (take_if(".align")) number();
    }
    if (out.alignment < bits / 8) out.alignment = bits / 8;
    out.name = take().text;
    out.bytes = bits / 8;
    if (take_if("[")) {
      out.bytes = take_if("]") ? 0 : number() * (bits / 8);
      if (out.bytes != 0) expect("]");
    }
    return out;
  }

  KernelSource kernel() {
    KernelSource out;
    out.line = now().line;
    out.name = take().text;
    expect("(");
    while (!take_if(")")) {
      expect(".param");
      out.parameters.push_back(variable());
      take_if(",");
    }
    for (;;) {
      if (take_if(".maxntid") || now().text == ".reqntid") {
        take_if(".reqntid");
        out.most_threads = static_cast<std::uint32_t>(number());
        while (take_if(",")) out.most_threads *= static_cast<std::uint32_t>(number());
      } else if (take_if(".minnctapersm")) {
        number();
      } else {
        break;
      }
    }
    scopes_.clear();
    expect("{");
    body(out);
    return out;
  }

  // A block in braces, to its end. Registers of an inner one are seen in it only.
  void body(KernelSource& out) {
    scopes_.emplace_back();
    while (!take_if("}")) {
      if (now().text.empty()) wrong(now(), "the text ends inside a kernel");
      if (take_if("{")) {
        body(out);
      } else if (take_if(".reg")) {
        registers(out);
      } else if (take_if(".shared")) {
        out.shared.push_back(variable());
        expect(";");
      } else if (take_if(".local")) {
        out.local.push_back(variable());
        expect(";");
      } else if (take_if(".pragma")) {
        pragma();
      } else if (tokens_[at_ + 1].text == ":") {
        const Token name = take();
        for (const auto& label : out.labels) {
          if (label.first == name.text) wrong(name, "a label that is there already");
        }
        out.labels.emplace_back(name.text, out.statements.size());
        expect(":");
      } else {
        out.statements.push_back(statement());
      }
    }
    scopes_.pop_back();
  }

  void registers(KernelSource& out) {
    const Token type = take();
    const std::uint32_t bits = bits_of(type.text.size() > 1 ? type.text.substr(1) : "");
    if (bits == 0) wrong(type, "a type that is not known");
    do {
      const std::string name = take().text;
      std::uint64_t count = 0;
      const bool is_row = take_if("<");
      if (is_row) {
        count = number();
        expect(">");
      }
      for (std::uint64_t i = 0; i < (is_row ? count : 1); ++i) {
        const std::string one = is_row ? name + std::to_string(i) : name;
        const std::string unique =
            scopes_.size() == 1 ? one : one + "@" + std::to_string(out.registers.size());
        if (!scopes_.back().emplace(one, unique).second) wrong(type, "declares a register again");
        out.registers.push_back({unique, bits});
      }
    } while (take_if(","));
    expect(";");
  }

  // Those that change nothing of what a kernel does: unrolling, and which bytes of a load are used.
  void pragma() {
    const Token text = take();
    const bool known = text.text == "nounroll" || text.text.rfind("used_bytes_mask ", 0) == 0;
    if (!text.is_string || !known) wrong(text, "a pragma that is not known");
    expect(";");
  }

  Statement statement() {
    Statement out;
    out.line = now().line;
    if (take_if("@")) {
      out.guard_negated = take_if("!");
      out.guard = resolved(take().text);
    }
    const Token mnemonic = take();
    if (mnemonic.text.empty() || std::islower(static_cast<unsigned char>(mnemonic.text[0])) == 0) {
      wrong(mnemonic, "expected an instruction");
    }
    out.mnemonic = mnemonic.text;
    while (!take_if(";")) {
      out.operands.push_back(operand());
      if (now().text != ";") expect(",");
    }
    return out;
  }

  Written operand() {
    Written out = single();
    if (!take_if("|")) return out;
    Written pair;
    pair.form = Written::Form::kPair;
    pair.parts = {out, single()};
    return pair;
  }

  Written single() {
    Written out;
    if (take_if("[")) {
      out.form = Written::Form::kAddress;
      const Token base = take();
      if (const auto absolute = number_of(base.text)) {
        out.number = *absolute;
      } else {
        out.name = resolved(base.text);
      }
      if (take_if("+")) out.number += number();
      expect("]");
    } else if (take_if("{")) {
      out.form = Written::Form::kVector;
      do {
        out.parts.push_back(single());
      } while (take_if(","));
      expect("}");
    } else if (now().text == "-" || number_of(now().text)) {
      out.form = Written::Form::kNumber;
      out.number = number();
    } else {
      const Token name = take();
      if (name.text.empty() || !in_word(name.text[0])) wrong(name, "expected an operand");
      out.name = resolved(name.text);
    }
    return out;
  }

  std::string resolved(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return name;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::vector<std::map<std::string, std::string>> scopes_;
};

}  // namespace

std::uint32_t bits_of(std::string_view type) {
  static const std::map<std::string_view, std::uint32_t> kBits = {
      {"pred", 1}, {"b8", 8},    {"u8", 8},     {"s8", 8},     {"b16", 16},
      {"u16", 16}, {"s16", 16},  {"f16", 16},   {"b32", 32},   {"u32", 32},
      {"s32", 32}, {"f32", 32},  {"b64", 64},   {"u64", 64},   {"s64", 64},
      {"f64", 64}, {"bf16", 16}, {"f16x2", 32}, {"bf16x2", 32}};
  const auto found = kBits.find(type);
  return found == kBits.end() ? 0 : found->second;
}

ModuleSource parse(std::string_view text) {
  return Parser(text).module();
}

}  // namespace cachalot::ptx
