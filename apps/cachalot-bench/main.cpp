// The program `cachalot-bench`, which `cachalot bench NAME…` starts: measures parts of the pool, each
// beside its limit.

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "alloc.h"
#include "attention.h"
#include "copy.h"
#include "gather.h"
#include "gpu_copies.h"
#include "hardware.h"
#include "hash.h"
#include "kernel_file.h"
#include "kv_transfer.h"
#include "lookup.h"
#include "measure.h"
#include "output.h"
#include "peers.h"
#include "policies.h"
#include "program.h"
#include "rpc.h"
#include "share_tp.h"
#include "sparse.h"
#include "storage.h"
#include "takeover.h"
#include "transfer.h"
#include "values.h"
#include "vmm.h"
#include "vtensor.h"

namespace cachalot::apps {
namespace {

struct Benchmark {
  const char* name;
  const char* what;
  // An estimate for default flags and two quiet cores. Nothing depends on it.
  std::uint32_t seconds;
  Status (*run)(const bench::Settings&, bench::Report&);
};

constexpr std::array kBenchmarks = {
    Benchmark{"rpc", "a request to the keeper; limit: bare signalling between the same cores", 30,
              bench::bench_rpc},
    Benchmark{"lookup", "finding a prefix in the directory; limit: reading as many lines", 30,
              bench::bench_lookup},
    Benchmark{"put", "storing whole blocks; limit: the best plain copy", 20, bench::bench_put},
    Benchmark{"get", "reading whole blocks; limit: the best plain copy", 20, bench::bench_get},
    Benchmark{"copy", "bulk copies of both memory domains; limit: the best plain ones", 10,
              bench::bench_copy},
    Benchmark{"coherence", "16 KiB by each software coherence method; limit: memcpy", 1,
              bench::bench_coherence},
    Benchmark{"sweep", "a write or read of 64 B to 4 MiB; limit: private memory", 5,
              bench::bench_sweep},
    Benchmark{"skew", "skewed blocks on capped devices; limit: not interleaved", 6,
              bench::bench_skew},
    Benchmark{"background", "small reads and writes beside bulk ones; limit: alone", 3,
              bench::bench_background},
    Benchmark{"devices", "bulk data by devices, cores and direction; limit: private memory", 20,
              bench::bench_devices},
    Benchmark{"hash", "checksums and block hashes", 5, bench::bench_hash_functions},
    Benchmark{"policies", "lookups and insertions of each eviction policy, without a pool", 10,
              bench::bench_policies},
    Benchmark{"alloc", "an allocation of GPU memory; limit: a model of PyTorch's allocator", 10,
              bench::bench_alloc},
    Benchmark{"takeover", "time without stores after the death of a keeper; uses 8 GiB of memory",
              60, bench::bench_takeover},
    Benchmark{"gather",
              "copying an engine's pages into the pool; limit: a plain copy of each piece", 20,
              bench::bench_gather},
    Benchmark{"scatter", "copying blocks into an engine's pages; limit: a plain copy of each piece",
              20, bench::bench_scatter},
    Benchmark{"sparse", "reading some tokens of a block, or of each head", 5, bench::bench_sparse},
    Benchmark{"layerwise", "reading a block layer by layer; limit: the whole block in one call", 5,
              bench::bench_layerwise},
    Benchmark{"share-tp", "blocks in groups of heads; limit: whole blocks; uses 1.5 GiB", 20,
              bench::bench_share_tp},
    Benchmark{"cuda", "copies between a GPU's pages and the pool (needs a GPU)", 80,
              bench::bench_cuda},
    Benchmark{"vmm", "building 2 GiB of device memory from small pieces", 30, bench::bench_vmm},
    Benchmark{"vtensor", "growing, sharing and reading contiguous KV tensors", 30,
              bench::bench_vtensor},
    Benchmark{"storage", "reads of the file storage; limit: fio; uses 4 GiB of disk", 180,
              bench::bench_storage},
    Benchmark{"peers", "blocks out of another host's pool; limit: a bare exchange; uses 5 GiB", 90,
              bench::bench_peers},
    Benchmark{"transfer-sizes", "pushes to another process; limit: ucx_perftest (ucx-utils)", 120,
              bench::bench_transfer_sizes},
    Benchmark{"transfer-fragments", "pushes of scattered pieces; limit: of one piece", 120,
              bench::bench_transfer_fragments},
    Benchmark{"transfer-memory", "pushes on one machine; limit: one plain copy; uses 1.5 GiB", 30,
              bench::bench_transfer_memory},
    Benchmark{"transfer-checksums", "pushes that are verified; limit: the same without checksums",
              60, bench::bench_transfer_checksums},
    Benchmark{"transfer-layers", "a push for each layer; limit: one push of all layers", 60,
              bench::bench_transfer_layers},
    Benchmark{"transfer-convert",
              "heads split before or after a push, or by an exchange; limit: while it copies", 20,
              bench::bench_transfer_convert},
    Benchmark{"transfer-formula", "pushes of real models' KV; limit: bytes / (0.9 x link)", 20,
              bench::bench_transfer_formula},
    Benchmark{"attention", "attention over contiguous KV; limit: over paged KV (needs a GPU)", 20,
              bench::bench_attention},
};

constexpr const char* kRecovery = "recovery";  // another name of takeover
constexpr const char* kTransfer = "transfer";  // all whose names begin with it and "-"

bool is_of_transfer(std::string_view name) {
  return name.starts_with("transfer-");
}

// A line when a benchmark starts: it may run for a minute without a word.
void announce(std::FILE* to, const Benchmark& benchmark) {
  std::fprintf(to, "bench %s: %s; about %u s\n", benchmark.name, benchmark.what, benchmark.seconds);
  static_cast<void>(flush(to));  // finish() tells
}

// The benchmarks in the help, one a line.
std::string list_of_benchmarks() {
  std::string list =
      "Benchmarks, and about how long each takes on two quiet cores (longer on busy ones):\n";
  const auto add = [&list](const char* name, std::uint32_t seconds, const char* what) {
    std::array<char, 160> line;
    std::snprintf(line.data(), line.size(), "  %-18s %3u s  %s\n", name, seconds, what);
    list += line.data();
  };
  std::uint32_t all = 0, of_transfer = 0;
  for (const Benchmark& benchmark : kBenchmarks) {
    add(benchmark.name, benchmark.seconds, benchmark.what);
    all += benchmark.seconds;
    if (is_of_transfer(benchmark.name)) of_transfer += benchmark.seconds;
  }
  add(kTransfer, of_transfer, "all transfer-... above");
  add("all", all, "every benchmark above");
  return list;
}

struct Options {
  std::vector<std::string> names;
  std::string domain = "both";
  std::uint32_t repeats = 11;
  bool quick = false;
  std::string directory = bench::Settings().directory;
  std::vector<std::string> devices;
  std::string mooncake, only, kernels;
  std::string json;
};

bench::Settings settings_of(const Options& options) {
  bench::Settings settings;
  if (options.domain != "noncoherent") settings.domains.push_back(memory::DomainKind::kCoherent);
  if (options.domain != "coherent") settings.domains.push_back(memory::DomainKind::kNoncoherent);
  settings.quick = options.quick;
  settings.directory = options.directory;
  settings.devices = options.devices;
  settings.mooncake = options.mooncake;
  settings.only = options.only;
  settings.repeats = options.quick ? std::min(options.repeats, 5u) : options.repeats;
  return settings;
}

int run(const Options& options) {
  Result<Output> json = Output::open(options.json);
  if (!json) return fail(json.error());
  // The table would be in the way of a script that reads JSON from stdout.
  std::FILE* const people = human_output(options.json);
  bench::Settings settings = settings_of(options);
  if (!options.kernels.empty()) {
    auto kernels = bench::read_kernels(options.kernels);
    if (!kernels) return fail(kernels.error());
    settings.kernels = std::move(*kernels);
  }
  bench::Report report;
  const auto is_chosen = [&](const std::string& name) {
    return std::any_of(options.names.begin(), options.names.end(), [&](const std::string& n) {
      return n == name || n == "all" || (n == kRecovery && name == "takeover") ||
             (n == kTransfer && is_of_transfer(name));
    });
  };
  for (const Benchmark& benchmark : kBenchmarks) {
    if (!is_chosen(benchmark.name)) continue;
    announce(people, benchmark);
    report.begin(benchmark.name);
    bench::release_cores();  // which the one before took
    const Status status = benchmark.run(settings, report);
    bench::clear_progress();
    if (!status) return fail(status.error());
  }
  report.print(people);
  const Status written = json->write_json(report.to_json());
  return written ? kExitDone : fail(written.error());
}

void add_flags(Command& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  std::vector<std::string> names = {"all", kRecovery, kTransfer};
  for (const Benchmark& benchmark : kBenchmarks) names.emplace_back(benchmark.name);
  app.add_option("name", options->names, "benchmarks of the list below")
      ->required()
      ->expected(1, -1)
      ->type_name("NAME")
      ->check(one_of(names));
  app.add_option("--domain", options->domain, "coherent, noncoherent or both")
      ->check(one_of({"coherent", "noncoherent", "both"}))
      ->capture_default_str();
  app.add_option("--repeats", options->repeats, "repetitions of each measurement")
      ->transform(number(1, 1000))
      ->capture_default_str();
  app.add_flag("--quick", options->quick, "smaller tables, at most 5 repetitions");
  app.add_option("--directory", options->directory, "storage: where it makes its files")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option(
         "--device", options->devices,
         "coherence, sweep, skew, background, devices: measures there, and what it holds is lost: "
         "a devdax "
         "device, a part of one as /dev/dax0.0@64GiB+1GiB, or a file that is made; may be repeated")
      ->type_name("PATH");
  app.add_option(
         "--mooncake", options->mooncake,
         "transfer-sizes, peers: a Python with mooncake-transfer-engine-non-cuda, for more rows")
      ->type_name("PYTHON");
  app.add_option("--only", options->only,
                 "vmm: cuda: the rows that need a GPU; cuda: pieces: the rows with a goal, "
                 "register: page-locking")
      ->check(one_of({"cuda", "pieces", "register"}));
  app.add_option("--kernels", options->kernels,
                 "cuda: measures the kernels of FILE (nvcc -fatbin, or -cubin) instead of its own")
      ->type_name("FILE");
  app.add_option("--json", options->json, "write the rows to FILE, or to stdout for -")
      ->type_name("FILE");
  app.footer(list_of_benchmarks() +
             "Example: cachalot bench rpc lookup --json rows.json\n"
             "Example: cachalot bench transfer --repeats 9\n"
             "Example: cachalot bench transfer-sizes --mooncake build/python-storage/bin/python\n");
  app.callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

constexpr Program kProgram = {"cachalot bench", "cachalot-bench " CACHALOT_VERSION,
                              "Measures parts of the pool. Each figure is measured in turns with "
                              "its limit; prints figure, limit and ratio.",
                              "", add_flags};

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  return cachalot::apps::run_program(cachalot::apps::kProgram, argc, argv);
}
