#include "base/log.h"

#include <time.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace cachalot::base {
namespace {

// Relaxed: only says whether to print; orders nothing.
std::atomic<LogLevel> threshold{LogLevel::kOff};

constexpr const char* kNames[] = {"debug", "info", "warn", "error"};

}  // namespace

void set_log_level(LogLevel level) {
  threshold.store(level, std::memory_order_relaxed);
}

void log(LogLevel level, const char* origin, const char* format, ...) {
  if (level < threshold.load(std::memory_order_relaxed) || level == LogLevel::kOff) return;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  // Names and texts of strangers are in it: nothing of them moves a terminal's cursor, or begins a line of its own.
  for (char* at = text; *at != '\0'; ++at) {
    if (static_cast<unsigned char>(*at) < 0x20 || *at == 0x7f) *at = '?';
  }
  // One call, so that lines of several processes do not mix.
  std::fprintf(stderr, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s: %s\n", utc.tm_year + 1900,
               utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
               now.tv_nsec / 1'000'000, kNames[static_cast<int>(level)], origin, text);
}

}  // namespace cachalot::base
