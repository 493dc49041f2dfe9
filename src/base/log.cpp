#include "base/log.h"

#include <time.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/log_format.h"
#include "base/words.h"

namespace cachalot::base {
namespace {

// Relaxed: only says whether to print; orders nothing.
std::atomic<LogLevel> threshold{LogLevel::kOff};
std::atomic<LogFormat> line_format{LogFormat::kText};

constexpr const char* kNames[] = {"debug", "info", "warn", "error"};

std::string time_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[80];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                now.tv_nsec / 1'000'000);
  return text;
}

// @param text  printable
std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') json += '\\';
    json += each;
  }
  return json + '"';
}

}  // namespace

void set_log_level(LogLevel level) {
  threshold.store(level, std::memory_order_relaxed);
}

void set_log_format(LogFormat format) {
  line_format.store(format, std::memory_order_relaxed);
}

LogFormat log_format() {
  return line_format.load(std::memory_order_relaxed);
}

void write_log_line(LogLevel level, std::string_view origin, std::string_view text) {
  if (level == LogLevel::kOff) return;
  const std::string time = time_now(), name = kNames[static_cast<int>(level)],
                    // Names and texts of strangers are in it.
      clean = printable(text);
  const std::string line =
      log_format() == LogFormat::kJson
          ? "{\"time\":\"" + time + "\",\"level\":\"" + name + "\",\"origin\":" + quoted(origin) +
                ",\"message\":" + quoted(clean) + "}\n"
          : time + " " + name + " " + std::string(origin) + ": " + clean + "\n";
  // One call, so that lines of several processes do not mix.
  std::fputs(line.c_str(), stderr);
}

void log(LogLevel level, const char* origin, const char* format, ...) {
  if (level < threshold.load(std::memory_order_relaxed)) return;
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  write_log_line(level, origin, text);
}

}  // namespace cachalot::base
