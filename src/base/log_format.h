// How base::log() writes its lines: for people, or for programs that collect logs.
#pragma once

#include <string_view>

namespace cachalot::base {

enum class LogLevel;

enum class LogFormat {
  kText,  // 2026-11-21T09:00:00.123Z warn keeper: text
  kJson,  // {"time":"2026-11-21T09:00:00.123Z","level":"warn","origin":"keeper","message":"text"}
};

// @threads any; takes effect for messages that start afterwards
void set_log_format(LogFormat format);
LogFormat log_format();

// One line on stderr, whatever the level of the log is: a program's last error.
void write_log_line(LogLevel level, std::string_view origin, std::string_view text);

}  // namespace cachalot::base
