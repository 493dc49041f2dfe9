// For tests: a PTX module that can be run. Each instruction knows the function that does it and where its
// operands are: registers of the thread, or constants of the kernel. Whatever is not known to be done as
// the PTX ISA says is an error when the text is read, so what runs was understood, each modifier of it.
//
//   text  --parse-->  statements (source.h)  --find_operations-->  instructions
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/source.h"

namespace cachalot::ptx {

class Thread;
struct Instruction;

// A register of the thread, from 0 on, or ~slot is a constant's number.
using Slot = std::int32_t;
using Run = void (*)(Thread& thread, const Instruction& instruction);

inline constexpr std::size_t kMostOperands = 10;

// What a load or store is, and what else an instruction has that is no operand.
struct Detail {
  enum class Space : std::uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter };
  Space space = Space::kGeneric;
  std::uint8_t bytes = 0, count = 1;  // of an element; elements
  bool is_signed = false;
  bool is_atomic = false;          // in order with others of its kind, whatever is between
  std::array<char, 3> cache = {};  // cv, cg, …: the cache operator; none: zeros
  std::uint8_t mode = 0;           // what the operation makes of it
};

struct Instruction {
  Run run = nullptr;
  Slot guard = 0;
  bool guarded = false, guard_negated = false;
  Detail detail;
  std::array<Slot, kMostOperands> operand{};
  std::uint32_t statement = 0;  // of the kernel's source
};

// One way of writing an instruction. `shape` says what its operands are, one word each:
//
//   d32  s32    a destination, a source, with the bits that a register must have
//   d32+ s32+   of so many bits or more: loads, stores, conversions
//   d32?        a destination, or _
//   _           an unused result
//   m           an address in brackets: two operands, its base and what is added
//   l           a label: a constant, the instruction's number
//   {2d32}      so many in braces
//   d32|d1      a pair; the second may be missing, and is then a register that is never read
struct Operation {
  std::string mnemonic, shape;
  Run run;
  Detail detail;
};

// All ways of writing that have this mnemonic; none: it is not known.
std::vector<Operation> find_operations(const std::string& mnemonic);

struct Kernel {
  KernelSource source;
  std::vector<Instruction> code;
  std::vector<std::uint64_t> constants;
  std::vector<std::string> slots;                               // names of registers
  std::vector<std::pair<Slot, std::string>> special_registers;  // %tid.x and others that it reads
  std::uint64_t parameter_bytes = 0;
  std::uint64_t shared_bytes = 0;    // declared with a size
  std::uint64_t dynamic_shared = 0;  // where the launch's begins, from kSharedBase
  // Between variables in shared memory, from kSharedBase on: (where, bytes).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> shared_holes;
  std::uint64_t local_bytes = 0;
  bool has_bulk = false;  // bulk transfers: then the proxies' rules are looked after
};

struct Program {
  std::string target;
  std::vector<Kernel> kernels;

  const Kernel& kernel(std::string_view name) const;
};

// @throws Violation: kText
Program assemble(std::string_view text);

}  // namespace cachalot::ptx
