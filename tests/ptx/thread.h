// For tests: a thread that runs a kernel's instructions. A register that is read before it is written is an
// error: what a GPU has there is anything.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ptx/memory.h"
#include "ptx/program.h"
#include "ptx/races.h"
#include "ptx/spaces.h"

namespace cachalot::ptx {

class Block;

// Of so many bytes, without a sign.
template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t,
                       std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

class Thread {
 public:
  enum class State : std::uint8_t { kRuns, kAtBarrier, kMeets, kExited };

  Thread(Block& of, const Kernel& kernel, std::uint32_t number_in_block)
      : block(of),
        number(number_in_block),
        local(kLocalBase, kernel.local_bytes, "local"),
        kernel_(kernel),
        constants_(kernel.constants.data()),
        registers_(kernel.slots.size()),
        written_(kernel.slots.size() / 64 + 1) {
    passed.thread = number;
  }

  std::uint64_t read(Slot slot) const {
    if (slot < 0) return constants_[~slot];
    if ((written_[slot / 64] >> (slot % 64) & 1) == 0) never_written(slot);
    return registers_[slot];
  }
  void write(Slot slot, std::uint64_t value) {
    registers_[slot] = value;
    written_[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }

  // Operands as a type that has their bits. A signed one is kept with its sign in all 64 bits, so that a
  // wider register has it, too.
  template <class T>
  T get(Slot slot) const {
    const std::uint64_t value = read(slot);
    if constexpr (std::is_same_v<T, bool>) {
      return value != 0;
    } else {
      return std::bit_cast<T>(static_cast<Bits<T>>(value));
    }
  }
  template <class T>
  void set(Slot slot, T value) {
    if constexpr (std::is_same_v<T, bool>) {
      write(slot, value ? 1 : 0);
    } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      write(slot, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    } else {
      write(slot, std::bit_cast<Bits<T>>(value));
    }
  }

  std::uint64_t address(const Instruction& instruction, std::size_t operand) const {
    return read(instruction.operand[operand]) + read(instruction.operand[operand + 1]);
  }

  // At most so many instructions, while it need not wait. @return  how many
  std::uint64_t run(std::uint64_t instructions);

  const Kernel& kernel() const { return kernel_; }
  std::uint32_t warp() const { return number / 32; }
  std::uint32_t lane() const { return number % 32; }

  Block& block;
  const std::uint32_t number;  // in its block
  TrackedMemory local;
  State state = State::kRuns;
  std::uint32_t next = 0;             // instruction
  std::uint32_t barrier = 0;          // that it waits at
  std::uint32_t barrier_threads = 0;  // that are waited for there; 0: all of the block
  std::uint32_t aligned_at = 0;       // instruction; 0: the barrier does not ask for it
  std::uint32_t met_lanes = 0;        // the lanes it meets; kMeets
  const Instruction* meeting = nullptr;
  Races::Actor passed;
  std::uint32_t failed_waits = 0;  // in a row

 private:
  [[noreturn]] void never_written(Slot slot) const;

  const Kernel& kernel_;
  const std::uint64_t* constants_;
  std::vector<std::uint64_t> registers_;
  std::vector<std::uint64_t> written_;
};

}  // namespace cachalot::ptx
