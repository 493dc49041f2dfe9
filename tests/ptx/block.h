// For tests: a thread block. Its threads take turns as a seed says, a random number of instructions each, so
// that warps diverge in any way they may. A turn in which no thread can go on, and no bulk transfer is in
// way that could help, is an error, and so is a launch that does not end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ptx/bulk.h"
#include "ptx/memory.h"
#include "ptx/program.h"
#include "ptx/races.h"
#include "ptx/thread.h"

namespace cachalot::ptx {

struct Shape {
  std::array<std::uint32_t, 3> grid = {1, 1, 1}, block = {1, 1, 1};
  std::uint32_t dynamic_shared_bytes = 0;

  std::uint32_t threads() const { return block[0] * block[1] * block[2]; }
  std::uint32_t blocks() const { return grid[0] * grid[1] * grid[2]; }
};

// Is told of each load and store of global memory that is no bulk transfer. May be empty.
using Watch = std::function<void(std::uint64_t address, const Detail& how, bool writes)>;

// What lanes that have met give each other: for the instruction that each of them is at.
void exchange(const std::vector<Thread*>& lanes);

class Block {
 public:
  // @param parameters  kernel.parameter_bytes of them
  Block(const Kernel& kernel, const Shape& shape, std::uint32_t number, const std::byte* parameters,
        GlobalMemory& global, Mood mood, base::Rng& rng, const Watch& watch);

  // Until all threads have ended. @return  instructions
  // @throws Violation
  std::uint64_t run();

  // What instructions do with memory; `address` is of the space, or generic.
  void load(Thread& thread, const Detail& how, std::uint64_t address, void* to,
            std::uint64_t bytes);
  void store(Thread& thread, const Detail& how, std::uint64_t address, const void* from,
             std::uint64_t bytes);

  // Until so many threads are there; 0: all that have not ended.
  // Aligned: the lanes of a warp come to it by the same instruction.
  void wait_at(Thread& thread, std::uint32_t barrier, std::uint32_t threads, bool is_aligned);
  // It does no more; others may have waited for it only.
  void end(Thread& thread);
  // A lane has come to where lanes of its warp meet; the last one goes on for all.
  void meet(Thread& thread, const Instruction& instruction, std::uint32_t lanes);
  // A wait that fails has been tried again: an error when nothing can come any more.
  void waited_in_vain(Thread& thread);

  // Shared memory that a bulk transfer or a barrier of its own kind is used with.
  void stop_looking_for_races() { races_.stop(); }

  TrackedMemory shared;
  Bulk bulk;
  base::Rng& rng;

 private:
  void set_special_registers(Thread& thread, const Shape& shape) const;
  void look_at_barriers();
  void look_at_barrier(std::uint32_t barrier);
  void look_at_meeting(const Thread& thread);
  [[noreturn]] void nobody_goes_on(const Thread& thread) const;

  const std::uint32_t number_;
  const Kernel& kernel_;
  const std::byte* parameters_;
  GlobalMemory& global_;
  const Watch& watch_;
  Races races_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> running_;
  std::uint32_t at_barriers_ = 0;  // threads
};

// All blocks, one after the other in random order.
struct Launched {
  std::uint64_t instructions = 0;
};
Launched launch(const Kernel& kernel, const Shape& shape, const void* parameters, Reach reach,
                std::uint64_t seed, Mood mood, const Watch& watch = {});

}  // namespace cachalot::ptx
