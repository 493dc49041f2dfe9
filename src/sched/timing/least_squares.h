// Small nonlinear least squares: Levenberg and Marquardt's method, derivatives by differences.
//
// For a handful of parameters and some hundred residuals; everything is dense.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace cachalot::sched {

// Writes the residuals at `parameters`; always the same number of them.
using Residuals = std::function<void(std::span<const double> parameters, std::vector<double>& out)>;

// @return the parameters at a minimum of the sum of squares, which is not above that at `start`
// @cost   deterministic; parameters + 1 evaluations a round, at most 200 rounds
std::vector<double> minimize_squares(const Residuals& residuals, std::span<const double> start);

}  // namespace cachalot::sched
