// `cachalot alloc-trace convert`: a memory snapshot of PyTorch as an allocation trace.

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "alloc_trace_output.h"
#include "base/words.h"
#include "command.h"
#include "output.h"
#include "result_flags.h"
#include "trace/allocation/pickle_reader.h"
#include "trace/allocation/snapshot_converter.h"
#include "trace/file/byte_source.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  std::string snapshot;
  std::uint64_t device = 0;
  std::string free = "completed";
  std::string out, json;
};

Result<trace::ConvertedSnapshot> read(const Options& options) {
  CACHALOT_TRY_ASSIGN(const trace::PickleDocument document, trace::read_pickle(options.snapshot));
  Result<trace::ConvertedSnapshot> converted = trace::convert_snapshot(
      document, {.device = options.device,
                 .free = options.free == "completed" ? trace::SnapshotFree::kCompleted
                                                     : trace::SnapshotFree::kRequested});
  if (converted) return converted;
  return Error::make(converted.error().code, "%s: %s", trace::shown_path(options.snapshot).c_str(),
                     converted.error().message);
}

nlohmann::json result_of(const Options& options, const trace::SnapshotCounts& counts,
                         const trace::AllocTraceSummary& summary) {
  nlohmann::json result = json_of(summary);
  result.update({{"device", options.device},
                 {"free", options.free},
                 {"recorded_events", counts.events},
                 {"passed_over", counts.passed_over},
                 {"blocks_before", counts.blocks_before},
                 {"contradictions", counts.contradictions}});
  return result;
}

Status convert(const Options& options) {
  const std::vector<std::string> inputs = {options.snapshot};
  CACHALOT_TRY(check_is_no_input("--out", options.out, inputs));
  CACHALOT_TRY(check_is_no_input("--json", options.json, inputs));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(AllocTraceOutput output, AllocTraceOutput::open(options.out, options.json));
  CACHALOT_TRY_ASSIGN(trace::ConvertedSnapshot converted, read(options));
  while (const trace::AllocEvent* event = converted.script.take()) {
    CACHALOT_TRY(output.write(*event));
  }
  CACHALOT_TRY(output.finish());
  const trace::SnapshotCounts& counts = converted.counts;
  std::fprintf(output.people(), "%s, %" PRIu64 " passed over; %s from before the recording\n",
               base::counted(counts.events, "recorded event").c_str(), counts.passed_over,
               base::counted(counts.blocks_before, "block").c_str());
  if (counts.contradictions != 0) {
    std::fprintf(output.people(), "%s in use that the recording frees: not all was recorded\n",
                 base::counted(counts.contradictions, "block is", "blocks are").c_str());
  }
  return json.write_json(result_of(options, counts, output.summary()));
}

int run(const Options& options) {
  const Status status = convert(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_alloc_trace_convert(Command& alloc_trace, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command = alloc_trace.add_subcommand(
      "convert", "converts a memory snapshot of PyTorch to an allocation trace");
  command
      ->add_option(
          "--snapshot", options->snapshot,
          "file of torch.cuda.memory._dump_snapshot(), plain or gzip; no code in it is run")
      ->type_name("FILE")
      ->required();
  add_out_flag(*command, options->out);
  command->add_option("--device", options->device, "device of the events")
      ->type_name("N")
      ->transform(number(0, 1u << 20))
      ->capture_default_str();
  command
      ->add_option("--free", options->free,
                   "when a block counts as free: when its memory may be reused (completed), or "
                   "when the program freed it (requested)")
      ->type_name("NAME")
      ->check(one_of({"completed", "requested"}))
      ->capture_default_str();
  add_counts_flag(*command, options->json);
  command->footer(
      "Example: cachalot alloc-trace convert --snapshot snapshot.pickle --out training.trace.gz");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
