#include "alloc_trace_output.h"

#include <unistd.h>

#include <cinttypes>
#include <nlohmann/json.hpp>

#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {

Result<AllocTraceOutput> AllocTraceOutput::open(const std::string& out, const std::string& json) {
  CACHALOT_TRY(check_are_apart({{"--out", out}, {"--json", json}}));
  CACHALOT_TRY_ASSIGN(trace::AllocTraceWriter writer, trace::AllocTraceWriter::open(out));
  return AllocTraceOutput(std::move(writer), out == "-" ? stderr : human_output(json));
}

Status AllocTraceOutput::write(const trace::AllocEvent& event) {
  constexpr std::uint64_t kEvery = 1u << 20;
  CACHALOT_TRY(summary_.add(event));
  if (summary_.events() % kEvery == 0 && isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r\033[K%" PRIu64 " events", summary_.events());
  }
  return writer_.write(event);
}

Status AllocTraceOutput::finish() {
  CACHALOT_TRY(writer_.finish());
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
  std::fprintf(people_, "%" PRIu64 " events, %" PRIu64 " allocations, %s live at the peak\n",
               summary_.events(), summary_.allocations(),
               bytes_text(summary_.peak_live_bytes()).c_str());
  return {};
}

nlohmann::json json_of(const trace::AllocTraceSummary& summary) {
  return {{"events", summary.events()},
          {"allocations", summary.allocations()},
          {"frees", summary.frees()},
          {"iterations", summary.iterations()},
          {"streams", summary.streams()},
          {"allocated_bytes", summary.allocated_bytes()},
          {"peak_live_bytes", summary.peak_live_bytes()},
          {"peak_live_blocks", summary.peak_live_blocks()},
          {"live_bytes", summary.live_bytes()},
          {"live_blocks", summary.live_blocks()}};
}

}  // namespace cachalot::apps
