#include "ptx/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "ptx/spaces.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

// Registers that are there before the first instruction. @source PTX ISA: special registers
constexpr const char* kSpecial[] = {"%tid.x",       "%tid.y",       "%tid.z",       "%ntid.x",
                                    "%ntid.y",      "%ntid.z",      "%ctaid.x",     "%ctaid.y",
                                    "%ctaid.z",     "%nctaid.x",    "%nctaid.y",    "%nctaid.z",
                                    "%laneid",      "%warpid",      "%lanemask_eq", "%lanemask_lt",
                                    "%lanemask_le", "%lanemask_gt", "%lanemask_ge"};

constexpr std::uint64_t kLeastHole = 64;

std::uint64_t aligned(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

class Assembler {
 public:
  Assembler(const ModuleSource& module, KernelSource source) {
    kernel_.source = std::move(source);
    place(module);
    for (const Register& one : kernel_.source.registers) add_register(one.name, one.bits);
    for (const auto& [name, at] : kernel_.source.labels) labels_[name] = at;
  }

  Kernel assemble() {
    for (std::size_t i = 0; i < kernel_.source.statements.size(); ++i) {
      add(static_cast<std::uint32_t>(i));
    }
    return std::move(kernel_);
  }

 private:
  void place(const ModuleSource& module) {
    std::uint64_t parameters = 0, local = 0, shared = 0, alignment = 1;
    for (const Variable& one : kernel_.source.parameters) {
      parameters = aligned(parameters, one.alignment);
      symbols_[one.name] = kParameterBase + parameters;
      parameters += one.bytes;
    }
    for (const Variable& one : kernel_.source.local) {
      local = aligned(local, one.alignment);
      symbols_[one.name] = kLocalBase + local;
      local += one.bytes;
    }
    std::vector<Variable> variables = module.shared;
    variables.insert(variables.end(), kernel_.source.shared.begin(), kernel_.source.shared.end());
    for (const Variable& one : variables) {
      if (one.bytes == 0) {
        alignment = std::max(alignment, one.alignment);
        continue;
      }
      shared = with_hole(shared, one.alignment);
      symbols_[one.name] = kSharedBase + shared;
      shared += one.bytes;
    }
    kernel_.shared_bytes = shared;
    // All that have no size begin at one place, behind the others.
    kernel_.dynamic_shared = with_hole(shared, std::max<std::uint64_t>(alignment, 16));
    for (const Variable& one : variables) {
      if (one.bytes == 0) symbols_[one.name] = kSharedBase + kernel_.dynamic_shared;
    }
    kernel_.parameter_bytes = parameters;
    kernel_.local_bytes = local;
  }

  // Where the next variable begins. Nothing says how near to another one it is, so a hole is left.
  std::uint64_t with_hole(std::uint64_t end, std::uint64_t alignment) {
    if (end == 0) return 0;
    const std::uint64_t next = aligned(end + kLeastHole, alignment);
    kernel_.shared_holes.emplace_back(end, next - end);
    return next;
  }

  Slot add_register(const std::string& name, std::uint32_t bits) {
    const auto slot = static_cast<Slot>(kernel_.slots.size());
    kernel_.slots.push_back(name);
    bits_.push_back(bits);
    slots_[name] = slot;
    return slot;
  }
  Slot constant(std::uint64_t value) {
    const auto [found, is_new] = constants_.try_emplace(value, kernel_.constants.size());
    if (is_new) kernel_.constants.push_back(value);
    return ~static_cast<Slot>(found->second);
  }

  // A register that exists, or a special one that is used for the first time.
  std::optional<Slot> find(const std::string& name) {
    const auto found = slots_.find(name);
    if (found != slots_.end()) return found->second;
    if (std::find(std::begin(kSpecial), std::end(kSpecial), name) == std::end(kSpecial)) return {};
    const Slot slot = add_register(name, 32);
    kernel_.special_registers.emplace_back(slot, name);
    return slot;
  }

  void add(std::uint32_t number) {
    const Statement& statement = kernel_.source.statements[number];
    Instruction out;
    out.statement = number;
    if (!statement.guard.empty()) {
      const std::optional<Slot> guard = find(statement.guard);
      if (!guard || bits_[*guard] != 1) wrong(statement, "its guard is no predicate");
      out.guard = *guard;
      out.guarded = true;
      out.guard_negated = statement.guard_negated;
    }
    const std::vector<Operation> ways = find_operations(statement.mnemonic);
    if (ways.empty()) wrong(statement, "is not known to this machine");
    for (const Operation& way : ways) {
      std::vector<Slot> operands;
      if (!matches(way, statement, operands)) continue;
      out.run = way.run;
      out.detail = way.detail;
      std::copy(operands.begin(), operands.end(), out.operand.begin());
      if (statement.mnemonic.rfind("cp.async.bulk", 0) == 0) kernel_.has_bulk = true;
      kernel_.code.push_back(out);
      return;
    }
    wrong(statement, ("has other operands than expected: " + ways[0].shape).c_str());
  }

  [[noreturn]] static void wrong(const Statement& statement, const char* what) {
    fail(Wrong::kText, "line %d: %s %s", statement.line, statement.mnemonic.c_str(), what);
  }

  bool matches(const Operation& way, const Statement& statement, std::vector<Slot>& out) {
    std::istringstream words(way.shape);
    std::string word;
    std::size_t used = 0;
    while (words >> word) {
      if (used == statement.operands.size()) return false;
      if (!matches(word, statement.operands[used++], out)) return false;
    }
    return used == statement.operands.size() && out.size() <= kMostOperands;
  }

  bool matches(const std::string& word, const Written& written, std::vector<Slot>& out) {
    using Form = Written::Form;
    if (const std::size_t bar = word.find('|'); bar != word.npos) {
      const bool is_pair = written.form == Form::kPair;
      if (!matches(word.substr(0, bar), is_pair ? written.parts[0] : written, out)) return false;
      static const Written kNobody{Form::kName, "_", 0, {}};
      return matches(word.substr(bar + 1) + "?", is_pair ? written.parts[1] : kNobody, out);
    }
    if (word[0] == '{') {
      const auto count = static_cast<std::size_t>(word[1] - '0');
      if (written.form != Form::kVector || written.parts.size() != count) return false;
      for (const Written& part : written.parts) {
        if (!matches(word.substr(2, word.size() - 3), part, out)) return false;
      }
      return true;
    }
    if (word == "_") {
      out.push_back(constant(0));
      return written.form == Form::kName && written.name == "_";
    }
    if (word == "m") return address(written, out);
    if (word == "l") {
      const auto label = labels_.find(written.name);
      if (written.form != Form::kName || label == labels_.end()) return false;
      out.push_back(constant(label->second));
      return true;
    }
    return value(word, written, out);
  }

  bool address(const Written& written, std::vector<Slot>& out) {
    if (written.form != Written::Form::kAddress) return false;
    if (written.name.empty()) {
      out.push_back(constant(0));
    } else if (const auto symbol = symbols_.find(written.name); symbol != symbols_.end()) {
      out.push_back(constant(symbol->second));
    } else if (const std::optional<Slot> slot = find(written.name)) {
      if (bits_[*slot] < 32) return false;
      out.push_back(*slot);
    } else {
      return false;
    }
    out.push_back(constant(written.number));
    return true;
  }

  bool value(const std::string& word, const Written& written, std::vector<Slot>& out) {
    const bool is_source = word[0] == 's';
    const bool or_nobody = word.back() == '?', or_wider = word.back() == '+';
    const auto bits = static_cast<std::uint32_t>(std::stoul(word.substr(1)));
    if (written.form == Written::Form::kNumber) {
      if (is_source) out.push_back(constant(written.number));
      return is_source;
    }
    if (written.form != Written::Form::kName) return false;
    if (or_nobody && written.name == "_") {
      out.push_back(add_register("_", bits));
      return true;
    }
    if (const auto symbol = symbols_.find(written.name); symbol != symbols_.end()) {
      if (is_source) out.push_back(constant(symbol->second));
      return is_source;
    }
    const std::optional<Slot> slot = find(written.name);
    if (!slot || (bits_[*slot] != bits && !(or_wider && bits_[*slot] > bits))) return false;
    out.push_back(*slot);
    return true;
  }

  Kernel kernel_;
  std::vector<std::uint32_t> bits_;
  std::map<std::string, Slot> slots_;
  std::map<std::uint64_t, std::size_t> constants_;
  std::map<std::string, std::uint64_t> symbols_;
  std::map<std::string, std::size_t> labels_;
};

}  // namespace

const Kernel& Program::kernel(std::string_view name) const {
  for (const Kernel& kernel : kernels) {
    if (kernel.source.name == name) return kernel;
  }
  fail(Wrong::kText, "there is no kernel %s", std::string(name).c_str());
}

Program assemble(std::string_view text) {
  ModuleSource module = parse(text);
  Program out;
  out.target = module.target;
  for (KernelSource& source : module.kernels) {
    out.kernels.push_back(Assembler(module, std::move(source)).assemble());
  }
  return out;
}

}  // namespace cachalot::ptx
