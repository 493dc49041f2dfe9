// A kernel with floats, shuffles, barriers and both kinds of shared memory (softmax.cu), as nvcc translates
// it: the results are those of the same sums on the CPU, and a barrier that is left out is noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ptx/block.h"
#include "ptx/half.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

std::string text_for(int architecture) {
  const std::string folder = CACHALOT_PTX_FOLDER;
  std::ifstream file(folder + "/softmax_" + std::to_string(architecture) + ".ptx");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// As the kernel's parameters are laid out.
struct Arguments {
  std::uint64_t query, keys, values, out;
  std::int32_t count, dimensions;
  float scale;
};

struct Numbers {
  Numbers(std::uint32_t how_many, base::Rng& rng) : bits(how_many) {
    for (std::uint16_t& one : bits) {
      one = to_bf16(static_cast<float>(rng.below(2001)) / 500 - 2);
    }
  }
  double operator[](std::size_t i) const { return double{from_bf16(bits[i])}; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(bits.data()); }
  bool holds(std::uint64_t at, std::uint64_t bytes) const {
    return at >= address() && at + bytes <= address() + bits.size() * 2;
  }
  std::vector<std::uint16_t> bits;
};

class Softmax {
 public:
  Softmax(std::uint32_t rows, std::uint32_t count, std::uint32_t dimensions, std::uint64_t seed)
      : rng_(seed),
        rows_(rows),
        count_(count),
        dimensions_(dimensions),
        query_(rows * dimensions, rng_),
        keys_(count * dimensions, rng_),
        values_(count * dimensions, rng_),
        out_(rows * dimensions, rng_) {}

  // @throws Violation
  std::uint64_t run(const Program& program, std::uint64_t seed) {
    const Arguments arguments = {query_.address(),
                                 keys_.address(),
                                 values_.address(),
                                 out_.address(),
                                 static_cast<std::int32_t>(count_),
                                 static_cast<std::int32_t>(dimensions_),
                                 kScale};
    Shape shape;
    shape.grid[0] = rows_;
    shape.block[0] = 128;
    shape.dynamic_shared_bytes = dimensions_ * 4;
    const Reach reach = [this](std::uint64_t at, std::uint64_t bytes) -> std::byte* {
      for (const Numbers* const one : {&query_, &keys_, &values_, &out_}) {
        if (one->holds(at, bytes)) return reinterpret_cast<std::byte*>(at);
      }
      return nullptr;
    };
    return launch(program.kernel("softmax_row"), shape, &arguments, reach, seed, Mood::kRandom)
        .instructions;
  }

  // The greatest distance from what it must be.
  double error() const {
    double worst = 0;
    for (std::uint32_t row = 0; row < rows_; ++row) {
      std::vector<double> scores(count_);
      double most = -INFINITY, sum = 0;
      for (std::uint32_t k = 0; k < count_; ++k) {
        for (std::uint32_t d = 0; d < dimensions_; ++d) {
          scores[k] += query_[row * dimensions_ + d] * keys_[k * dimensions_ + d] * double{kScale};
        }
        most = std::max(most, scores[k]);
      }
      for (double& score : scores) sum += score = std::exp(score - most);
      for (std::uint32_t d = 0; d < dimensions_; ++d) {
        double value = 0;
        for (std::uint32_t k = 0; k < count_; ++k) {
          value += scores[k] / sum * values_[k * dimensions_ + d];
        }
        worst = std::max(worst, std::fabs(out_[row * dimensions_ + d] - value));
      }
    }
    return worst;
  }

  static constexpr double kTolerance = 2.0 / 256;  // of numbers up to 2 in bf16

 private:
  static constexpr float kScale = 0.2f;
  base::Rng rng_;
  std::uint32_t rows_, count_, dimensions_;
  Numbers query_, keys_, values_, out_;
};

TEST(PtxOfSoftmax, GivesWhatTheCpuGives) {
  std::uint64_t instructions = 0;
  for (const int architecture : {80, 90, 100}) {
    const Program program = assemble(text_for(architecture));
    EXPECT_EQ(program.target, "sm_" + std::to_string(architecture));
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      base::Rng rng(seed);
      Softmax softmax(2, 4 + static_cast<std::uint32_t>(rng.below(60)),
                      seed % 2 == 0 ? 128 : 1 + static_cast<std::uint32_t>(rng.below(127)), seed);
      instructions += softmax.run(program, seed);
      EXPECT_LT(softmax.error(), Softmax::kTolerance) << "sm_" << architecture << ", seed " << seed;
    }
  }
  std::printf("%llu instructions of PTX\n", static_cast<unsigned long long>(instructions));
}

TEST(PtxOfSoftmax, NeedsEachOfItsBarriers) {
  const std::string text = text_for(90);
  const std::string barrier = "bar.sync ";
  int found = 0;
  for (std::size_t at = text.find(barrier); at != text.npos; at = text.find(barrier, at + 1)) {
    std::string without = text;
    without.erase(at, text.find(';', at) + 1 - at);
    const Program program = assemble(without);
    Softmax softmax(1, 40, 128, 5);
    EXPECT_THROW(softmax.run(program, 7), Violation) << "barrier " << found;
    ++found;
  }
  EXPECT_GE(found, 2);
}

}  // namespace
}  // namespace cachalot::ptx
