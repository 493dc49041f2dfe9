// Metrics as text, in the two formats that Prometheus scrapes: OpenMetrics 1.0 and Prometheus text 0.0.4.
//
// Written here and not by prometheus-cpp: version 1.0 of Debian 12 knows the older format only, without units
// and without the end mark by which a scraper notices a cut answer.
//
//   # TYPE cachalot_client_read_bytes counter
//   # UNIT cachalot_client_read_bytes bytes
//   # HELP cachalot_client_read_bytes Bytes that clients read from the pool.
//   cachalot_client_read_bytes_total{pool="/dev/shm/kv"} 524288
//   # EOF
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::node {

enum class ExpositionFormat : std::uint8_t { kOpenMetrics, kPrometheusText };

// The value of Content-Type.
const char* content_type(ExpositionFormat format);

// What an Accept header prefers: OpenMetrics only if it names it, with at least the weight of text/plain.
ExpositionFormat negotiate_format(std::string_view accept);

enum class MetricType : std::uint8_t { kGauge, kCounter, kInfo };

struct MetricFamily {
  const char* name;  // ends with "_" and the unit, if there is one; without "_total" and "_info"
  MetricType type;
  const char* unit;  // "": none
  const char* help;  // one line without a backslash
};

struct Label {
  std::string_view name;
  std::string_view value;  // any bytes: what is not UTF-8 becomes U+FFFD
};

class Exposition {
 public:
  // `pool` becomes the first label of each sample.
  Exposition(ExpositionFormat format, std::string_view pool) : format_(format), pool_(pool) {}

  // Begins a family; samples of the family before are complete.
  void begin(const MetricFamily& family);
  void sample(std::span<const Label> labels, std::uint64_t value);
  void sample(const Label& label, std::uint64_t value) { sample(std::span(&label, 1), value); }
  // A family of one sample without labels of its own.
  void single(const MetricFamily& family, std::uint64_t value);

  // The whole text; call it once.
  std::string finish();

 private:
  void comment(const char* keyword, std::string_view value);
  void append_label(const Label& label);

  ExpositionFormat format_;
  std::string_view pool_;
  std::string sample_name_, family_name_;
  std::string text_;
};

}  // namespace cachalot::node
