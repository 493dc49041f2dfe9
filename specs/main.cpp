// cachalot_explore: visits every state of a scenario and says whether a rule of the pool protocol
// fails in it.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "explorer.h"
#include "scenarios.h"

namespace cachalot::specs {

namespace {

constexpr const char* kUsage =
    "usage: cachalot_explore --list\n"
    "       cachalot_explore --scenario S [--break V]\n"
    "       cachalot_explore --break V            in the scenario that --list names\n"
    "       cachalot_explore --all [--deep]       everything as expected?\n"
    "options: --most-states N\n"
    "         --steps       how often each kind of step was taken\n"
    "         --expect-violation  exit 0 if there is one, else 1\n"
    "         --everything  with --break: the first violation of any kind, not only wrong bytes\n"
    "exit: 0 no violation (--all: all as expected), 1 violation, 2 usage, 3 too many states\n";

constexpr int kViolation = 1, kBadUsage = 2, kTooManyStates = 3;

struct Options {
  const char* scenario = nullptr;
  const char* variant = nullptr;
  bool list = false, all = false, deep = false, everything = false, steps = false,
       expect_violation = false;
  std::uint64_t most_states = Search{}.most_states;
};

void list() {
  std::puts("scenarios:");
  for (const Scenario& scenario : scenarios()) {
    std::printf("  %-36s %s%s\n", scenario.name, scenario.about, scenario.deep ? " (deep)" : "");
  }
  std::puts("rules to break, and the scenario that notices:");
  for (const VariantInfo& variant : variants()) {
    std::printf("  %-36s %s%s\n", variant.name, variant.scenario,
                variant.is_noticed ? "" : " (not noticed: no harm within the model)");
  }
}

// @return the exit status of one exploration
int explore_one(const Scenario& scenario, const VariantInfo* variant, const Options& options) {
  Model model{&scenario, variant != nullptr ? variant->variant : Variant::kNone};
  Search search;
  search.most_states = options.most_states;
  search.count_steps = options.steps;
  search.only_wrong_bytes = variant != nullptr && !options.everything;
  const Outcome outcome = explore(model, search);
  std::printf("%-18s %-36s %9llu states %10llu steps %7llu ends %3u deep %6.1f s: %s\n",
              scenario.name, variant != nullptr ? variant->name : "-",
              static_cast<unsigned long long>(outcome.states),
              static_cast<unsigned long long>(outcome.steps),
              static_cast<unsigned long long>(outcome.ends), outcome.depth, outcome.seconds,
              !outcome.violation.empty() ? "violation"
              : !outcome.is_complete     ? "too many states"
              : outcome.has_cycle        ? "no violation, but runs that never end"
                                         : "no violation");
  for (const auto& [step, count] : outcome.taken) {
    std::printf("%12llu  %s\n", static_cast<unsigned long long>(count), step.c_str());
  }
  if (!outcome.violation.empty()) {
    int number = 0;
    for (const std::string& step : outcome.schedule)
      std::printf("%4d  %s\n", ++number, step.c_str());
    std::printf("      => %s\n", outcome.violation.c_str());
    return kViolation;
  }
  std::fflush(stdout);
  if (outcome.is_complete && outcome.has_cycle) return kViolation;
  return outcome.is_complete ? 0 : kTooManyStates;
}

int explore_all(const Options& options) {
  int wrong = 0;
  for (const Scenario& scenario : scenarios()) {
    if (!scenario.deep || options.deep) wrong += explore_one(scenario, nullptr, options) != 0;
  }
  for (const VariantInfo& variant : variants()) {
    const int expected = variant.is_noticed ? kViolation : 0;
    wrong += explore_one(*find_scenario(variant.scenario), &variant, options) != expected;
  }
  std::printf("%d not as expected\n", wrong);
  return wrong != 0;
}

bool parse(int count, char** arguments, Options& options) {
  for (int i = 1; i < count; ++i) {
    const char* argument = arguments[i];
    const bool has_value = i + 1 < count;
    if (std::strcmp(argument, "--list") == 0) {
      options.list = true;
    } else if (std::strcmp(argument, "--all") == 0) {
      options.all = true;
    } else if (std::strcmp(argument, "--deep") == 0) {
      options.deep = true;
    } else if (std::strcmp(argument, "--everything") == 0) {
      options.everything = true;
    } else if (std::strcmp(argument, "--expect-violation") == 0) {
      options.expect_violation = true;
    } else if (std::strcmp(argument, "--steps") == 0) {
      options.steps = true;
    } else if (std::strcmp(argument, "--scenario") == 0 && has_value) {
      options.scenario = arguments[++i];
    } else if (std::strcmp(argument, "--break") == 0 && has_value) {
      options.variant = arguments[++i];
    } else if (std::strcmp(argument, "--most-states") == 0 && has_value) {
      options.most_states = std::strtoull(arguments[++i], nullptr, 10);
    } else {
      return false;
    }
  }
  return options.list || options.all || options.scenario != nullptr || options.variant != nullptr;
}

int run(int count, char** arguments) {
  Options options;
  if (!parse(count, arguments, options)) {
    std::fputs(kUsage, stderr);
    return kBadUsage;
  }
  if (options.list) {
    list();
    return 0;
  }
  if (options.all) return explore_all(options);
  const VariantInfo* variant = options.variant != nullptr ? find_variant(options.variant) : nullptr;
  if (options.variant != nullptr && variant == nullptr) {
    std::fprintf(stderr, "no rule to break is called '%s': see --list\n", options.variant);
    return kBadUsage;
  }
  const char* name = options.scenario != nullptr ? options.scenario : variant->scenario;
  const Scenario* scenario = find_scenario(name);
  if (scenario == nullptr) {
    std::fprintf(stderr, "no scenario is called '%s': see --list\n", name);
    return kBadUsage;
  }
  const int status = explore_one(*scenario, variant, options);
  if (!options.expect_violation) return status;
  return status == kViolation ? 0 : kViolation;
}

}  // namespace

}  // namespace cachalot::specs

int main(int count, char** arguments) {
  return cachalot::specs::run(count, arguments);
}
