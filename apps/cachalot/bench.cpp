// `cachalot bench NAME…`: measurements beside their limits.

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_alloc.h"
#include "bench_attention.h"
#include "bench_copy.h"
#include "bench_cuda.h"
#include "bench_gather.h"
#include "bench_hash.h"
#include "bench_lookup.h"
#include "bench_measure.h"
#include "bench_policies.h"
#include "bench_rpc.h"
#include "bench_sparse.h"
#include "bench_takeover.h"
#include "bench_transfer.h"
#include "bench_vmm.h"
#include "bench_vtensor.h"
#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Benchmark {
  const char* name;
  Status (*run)(const bench::Settings&, bench::Report&);
};

constexpr std::array kBenchmarks = {
    Benchmark{"rpc", bench::bench_rpc},
    Benchmark{"lookup", bench::bench_lookup},
    Benchmark{"put", bench::bench_put},
    Benchmark{"get", bench::bench_get},
    Benchmark{"copy", bench::bench_copy},
    Benchmark{"hash", bench::bench_hash_functions},
    Benchmark{"policies", bench::bench_policies},
    Benchmark{"alloc", bench::bench_alloc},
    Benchmark{"takeover", bench::bench_takeover},
    Benchmark{"gather", bench::bench_gather},
    Benchmark{"scatter", bench::bench_scatter},
    Benchmark{"sparse", bench::bench_sparse},
    Benchmark{"layerwise", bench::bench_layerwise},
    Benchmark{"cuda", bench::bench_cuda},
    Benchmark{"vmm", bench::bench_vmm},
    Benchmark{"vtensor", bench::bench_vtensor},
    Benchmark{"attention", bench::bench_attention},
};

constexpr const char* kRecovery = "recovery";  // another name of takeover

struct Options {
  std::vector<std::string> names;
  std::string domain = "both";
  std::uint32_t repeats = 11;
  bool quick = false;
  std::string json;
};

bench::Settings settings_of(const Options& options) {
  bench::Settings settings;
  if (options.domain != "noncoherent") settings.domains.push_back(memory::DomainKind::kCoherent);
  if (options.domain != "coherent") settings.domains.push_back(memory::DomainKind::kNoncoherent);
  settings.quick = options.quick;
  settings.repeats = options.quick ? std::min(options.repeats, 5u) : options.repeats;
  return settings;
}

int run(const Options& options) {
  Result<Output> json = Output::open(options.json);
  if (!json) return fail(json.error());
  const bench::Settings settings = settings_of(options);
  bench::Report report;
  const auto is_chosen = [&](const std::string& name) {
    return std::any_of(options.names.begin(), options.names.end(), [&](const std::string& n) {
      return n == name || n == "all" || (n == kRecovery && name == "takeover");
    });
  };
  for (const Benchmark& benchmark : kBenchmarks) {
    if (!is_chosen(benchmark.name)) continue;
    report.begin(benchmark.name);
    bench::release_cores();  // which the one before took
    const Status status = benchmark.run(settings, report);
    bench::clear_progress();
    if (!status) return fail(status.error());
  }
  // The table would be in the way of a script that reads JSON from stdout.
  report.print(human_output(options.json));
  const Status written = json->write_json(report.to_json());
  return written ? kExitDone : fail(written.error());
}

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand("bench", "measurements beside their limits");
  std::vector<std::string> names = {"all", kRecovery};
  for (const Benchmark& benchmark : kBenchmarks) names.emplace_back(benchmark.name);
  command->add_option("name", options->names, "what to measure")
      ->required()
      ->expected(1, -1)
      ->check(CLI::IsMember(names));
  command->add_option("--domain", options->domain, "coherent, noncoherent or both")
      ->check(CLI::IsMember({"coherent", "noncoherent", "both"}))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "repetitions of each measurement")
      ->transform(number(1, 1000))
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "smaller tables, at most 5 repetitions");
  command->add_option("--json", options->json, "write the rows to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot bench rpc lookup --json rows.json");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
