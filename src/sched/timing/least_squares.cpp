#include "sched/timing/least_squares.h"

#include <cmath>
#include <optional>

namespace cachalot::sched {
namespace {

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Solves matrix * x = right for a symmetric positive definite matrix by Cholesky's method; none: it is not.
std::optional<std::vector<double>> solve(std::vector<double> matrix, std::vector<double> right) {
  const std::size_t n = right.size();
  for (std::size_t column = 0; column < n; ++column) {
    for (std::size_t row = column; row < n; ++row) {
      double value = matrix[row * n + column];
      for (std::size_t k = 0; k < column; ++k)
        value -= matrix[row * n + k] * matrix[column * n + k];
      if (row != column) {
        matrix[row * n + column] = value / matrix[column * n + column];
      } else if (value > 0) {
        matrix[row * n + row] = std::sqrt(value);
      } else {
        return std::nullopt;
      }
    }
  }
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t k = 0; k < row; ++k) right[row] -= matrix[row * n + k] * right[k];
    right[row] /= matrix[row * n + row];
  }
  for (std::size_t row = n; row-- != 0;) {
    for (std::size_t k = row + 1; k < n; ++k) right[row] -= matrix[k * n + row] * right[k];
    right[row] /= matrix[row * n + row];
  }
  return right;
}

}  // namespace

std::vector<double> minimize_squares(const Residuals& residuals, std::span<const double> start) {
  constexpr int kMostRounds = 200;
  constexpr double kStep = 1e-6, kEnough = 1e-12, kMostDamping = 1e12;
  const std::size_t n = start.size();
  std::vector<double> at(start.begin(), start.end()), here, there;
  residuals(at, here);
  double best = sum_of_squares(here);
  double damping = 1e-3;
  for (int round = 0; round < kMostRounds && damping < kMostDamping; ++round) {
    const std::size_t m = here.size();
    std::vector<double> jacobian(m * n);  // by column
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> moved = at;
      moved[i] += kStep;
      residuals(moved, there);
      for (std::size_t k = 0; k < m; ++k) jacobian[i * m + k] = (there[k] - here[k]) / kStep;
    }
    std::vector<double> normal(n * n), gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < m; ++k) gradient[i] -= jacobian[i * m + k] * here[k];
      for (std::size_t j = 0; j < n; ++j) {
        for (std::size_t k = 0; k < m; ++k)
          normal[i * n + j] += jacobian[i * m + k] * jacobian[j * m + k];
      }
    }
    bool improved = false;
    double gain = 0;
    while (!improved && damping < kMostDamping) {
      std::vector<double> damped = normal;
      for (std::size_t i = 0; i < n; ++i) damped[i * n + i] += damping * (normal[i * n + i] + 1e-9);
      const std::optional<std::vector<double>> step = solve(std::move(damped), gradient);
      std::vector<double> next = at;
      double sum = best;
      if (step) {
        for (std::size_t i = 0; i < n; ++i) next[i] += (*step)[i];
        residuals(next, there);
        sum = sum_of_squares(there);
      }
      improved = step && std::isfinite(sum) && sum < best;
      if (!improved) {
        damping *= 4;
        continue;
      }
      gain = best - sum;
      at = next;
      here = there;
      best = sum;
      damping /= 3;
    }
    if (gain < kEnough * (1 + best)) break;
  }
  return at;
}

}  // namespace cachalot::sched
