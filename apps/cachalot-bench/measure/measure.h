// Medians, times and cores: how all benchmarks measure.
//
// Machines are shared and their frequencies wander, so a subject and its limit are measured in
// turns (A B A B …), many short repetitions each, and the medians of both are compared.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "memory/coherence.h"
#include "report.h"

namespace cachalot::apps::bench {

struct Settings {
  std::vector<memory::DomainKind> domains;
  std::uint32_t repeats = 11;          // of each measurement
  bool quick = false;                  // fewer rows and repetitions, for tuning
  std::string directory = "/var/tmp";  // for files of a benchmark that needs a disk
  std::vector<std::string> devices;    // hardware: measured there; empty: in memory
  std::string mooncake;                // a Python with Mooncake's engine; empty: none
  std::string only;                    // vmm: "cuda", cuda: "pieces": those rows; empty: all
  std::vector<unsigned char> kernels;  // cuda: measured instead of the library's; empty: those
};

// The middle of some samples, and the quartiles.
struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread spread_of(std::vector<double> samples);
inline double median_of(std::vector<double> samples) {
  return spread_of(std::move(samples)).median;
}

// Adds a row's spread as JSON keys value_low and value_high.
void add_spread(Row& row, const Spread& spread);

std::uint64_t now_ns();

// Rates of a stream of operations, one sample for every `chunk` of them: short enough that on a
// loaded machine most samples are free of preemption.
class RateMeter {
 public:
  explicit RateMeter(std::uint64_t chunk) : chunk_(chunk) {}

  // The stream (re)starts now: what is counted next begins a chunk.
  void start() {
    in_chunk_ = 0;
    since_ns_ = now_ns();
  }
  void count(std::uint64_t operations) {
    in_chunk_ += operations;
    if (in_chunk_ >= chunk_) end_chunk();
  }
  // Millions a second.
  const std::vector<double>& samples() const { return samples_; }
  Spread spread() const { return spread_of(samples_); }

 private:
  void end_chunk();

  std::uint64_t chunk_;
  std::uint64_t in_chunk_ = 0, since_ns_ = 0;
  std::vector<double> samples_;
};
std::uint64_t own_cpu_ns();              // of this process
std::uint64_t cpu_ns_of(pid_t process);  // 0: it is gone

// Where the benchmarks run: the caller and the other side.
struct Cores {
  int own = 0, other = 0;
  bool are_two = false;
};
// Pins the calling thread to `own`. @errors as os::pin_to_core
Cores take_cores();
// All cores again, for the calling thread and those that it starts: what a GPU's driver starts, too.
void release_cores();

std::unique_ptr<memory::Domain> make_domain(memory::DomainKind kind);

// "/coherent", …: behind a row's name.
std::string suffix(memory::DomainKind kind);

// One line on a terminal that says what is being measured; nothing in a pipe.
void show_progress(const std::string& text);
void clear_progress();

}  // namespace cachalot::apps::bench
