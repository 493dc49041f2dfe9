// `cachalot alloc-trace info`: what an allocation trace has in it.

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "alloc_trace_output.h"
#include "command.h"
#include "result_flags.h"
#include "trace/allocation/alloc_trace.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using trace::AllocTraceSummary;

struct Options {
  std::vector<std::string> files;
  std::string json;
};

struct Info {
  std::string file;
  AllocTraceSummary summary;
};

Result<Info> read(const std::string& file) {
  CACHALOT_TRY_ASSIGN(trace::AllocTrace reader, trace::AllocTrace::open(file));
  Info info{.file = file, .summary = {}};
  trace::AllocEvent event;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(event));
    if (!more) return info;
    const Status added = info.summary.add(event);
    if (!added) {
      return Error::make(added.error().code, "%.120s: %s", file.c_str(), added.error().message);
    }
  }
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void print_sizes(std::FILE* out, const AllocTraceSummary& summary) {
  std::fprintf(out, "%-16s %11s %9s\n", "from", "allocations", "of bytes");
  for (std::size_t k = 0; k < summary.size_classes().size(); ++k) {
    const AllocTraceSummary::SizeClass& sizes = summary.size_classes()[k];
    if (sizes.allocations == 0) continue;
    std::fprintf(out, "%-16s %11" PRIu64 " %8.2f%%\n", bytes_text(std::uint64_t{1} << k).c_str(),
                 sizes.allocations, 100 * share(sizes.bytes, summary.allocated_bytes()));
  }
}

void print(std::FILE* out, const Info& info) {
  const AllocTraceSummary& summary = info.summary;
  std::fprintf(out, "%-16s %s\n", "trace", info.file.c_str());
  std::fprintf(out, "%-16s %" PRIu64 ": %" PRIu64 " allocations, %" PRIu64 " frees\n", "events",
               summary.events(), summary.allocations(), summary.frees());
  if (summary.iterations() == 0) {
    std::fprintf(out, "%-16s not marked\n", "iterations");
  } else {
    std::fprintf(out, "%-16s %" PRIu64 "\n", "iterations", summary.iterations());
  }
  std::fprintf(out, "%-16s %u\n", "streams", summary.streams());
  std::fprintf(out, "%-16s %s in %" PRIu64 " blocks at the peak, %s in %" PRIu64 " at the end\n",
               "live", bytes_text(summary.peak_live_bytes()).c_str(), summary.peak_live_blocks(),
               bytes_text(summary.live_bytes()).c_str(), summary.live_blocks());
  std::fprintf(out, "%-16s %s in all, %.1f%% of it in requests of %s and more\n", "allocated",
               bytes_text(summary.allocated_bytes()).c_str(), 100 * summary.large_share(),
               bytes_text(AllocTraceSummary::kLargeBytes).c_str());
  std::fprintf(out, "%-16s %" PRIu64 " distinct, the largest %s\n", "sizes",
               summary.distinct_sizes(), bytes_text(summary.largest_bytes()).c_str());
  print_sizes(out, summary);
}

nlohmann::json row_of(const Info& info) {
  const AllocTraceSummary& summary = info.summary;
  nlohmann::json sizes = nlohmann::json::array();
  for (std::size_t k = 0; k < summary.size_classes().size(); ++k) {
    const AllocTraceSummary::SizeClass& of_class = summary.size_classes()[k];
    if (of_class.allocations == 0) continue;
    sizes.push_back({{"from_bytes", std::uint64_t{1} << k},
                     {"allocations", of_class.allocations},
                     {"bytes", of_class.bytes}});
  }
  nlohmann::json row = json_of(summary);
  row.update({{"trace", info.file},
              {"distinct_sizes", summary.distinct_sizes()},
              {"largest_bytes", summary.largest_bytes()},
              {"large_share", summary.large_share()},
              {"sizes", sizes}});
  return row;
}

int run(const Options& options) {
  const Status status = describe_files(options.files, options.json, read, print, row_of);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_alloc_trace_info(Command& alloc_trace, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command =
      alloc_trace.add_subcommand("info", "shows events, live memory, and requested sizes");
  command->add_option("trace", options->files, "allocation traces, plain or gzip")
      ->type_name("FILE")
      ->required();
  add_figures_flag(*command, options->json);
  command->footer("Example: cachalot alloc-trace info finetune.trace.gz --json -");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
