// `cachalot trace`: looks at request traces, converts them, makes them up.

#include "command.h"

namespace cachalot::apps {

void add_trace(Command& app, Chosen& chosen) {
  Command* const command =
      app.add_subcommand("trace", "shows, converts and generates request traces");
  add_trace_info(*command, chosen);
  add_trace_convert(*command, chosen);
  add_trace_generate(*command, chosen);
  command->footer("Example: cachalot trace info conversation_trace.jsonl.gz");
}

}  // namespace cachalot::apps
