// For tests: the text of a PTX module, taken apart into statements. What they mean is not known here; what
// is not of the grammar, or a directive without a place here, is an error that names its line.
//
// @source PTX ISA: syntax, state spaces, directives
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot::ptx {

// An operand as it is written.
struct Written {
  enum class Form { kName, kNumber, kAddress, kVector, kPair };
  Form form = Form::kName;
  std::string name;            // kName, and the base of an address
  std::uint64_t number = 0;    // kNumber; what an address adds
  std::vector<Written> parts;  // kVector: {a, b}; kPair: a|b
};

struct Statement {
  int line = 0;
  std::string guard;  // a predicate, or empty
  bool guard_negated = false;
  std::string mnemonic;  // with all its modifiers
  std::vector<Written> operands;
};

// A variable in some memory. `bytes` 0: of a size that the launch says.
struct Variable {
  std::string name;
  std::uint64_t bytes = 0, alignment = 1;
};

struct Register {
  std::string name;
  std::uint32_t bits = 0;  // 1: a predicate
};

struct KernelSource {
  std::string name;
  int line = 0;
  std::vector<Variable> parameters, shared, local;
  // By their slots; a name that is declared in an inner block has a suffix there.
  std::vector<Register> registers;
  std::vector<Statement> statements;
  std::vector<std::pair<std::string, std::size_t>> labels;  // before which statement
  std::uint32_t most_threads = 1024;                        // of a thread block
};

struct ModuleSource {
  std::string target;            // sm_90
  std::vector<Variable> shared;  // of all kernels
  std::vector<KernelSource> kernels;
};

// @throws Violation
ModuleSource parse(std::string_view text);

// Bits of a type as it is written (u32, b8, f16x2, pred); 0: there is none of that name.
std::uint32_t bits_of(std::string_view type);

}  // namespace cachalot::ptx
