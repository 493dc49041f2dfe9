// One line a message on stderr, for operators. Off unless a program turns it on:
// a library must not write to its program's stderr. Errors travel as Results, not through here.
#pragma once

namespace cachalot::base {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// @threads any; takes effect for messages that start afterwards
void set_log_level(LogLevel level);

// "2026-11-21T09:00:00.123Z warn keeper: text"
[[gnu::format(printf, 3, 4)]] void log(LogLevel level, const char* origin, const char* format, ...);

}  // namespace cachalot::base
