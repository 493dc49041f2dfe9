// `cachalot alloc-trace`: looks at allocation traces, makes them up, makes them of recordings.

#include "command.h"

namespace cachalot::apps {

void add_alloc_trace(Command& app, Chosen& chosen) {
  Command* const command = app.add_subcommand(
      "alloc-trace",
      "shows and generates allocation traces, and converts PyTorch's snapshots to them");
  add_alloc_trace_info(*command, chosen);
  add_alloc_trace_generate(*command, chosen);
  add_alloc_trace_convert(*command, chosen);
  command->footer("Example: cachalot alloc-trace info finetune.trace.gz");
}

}  // namespace cachalot::apps
