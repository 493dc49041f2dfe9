#include "node/metrics/exposition.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace cachalot::node {
namespace {

constexpr MetricFamily kBytes = {"x_read_bytes", MetricType::kCounter, "bytes", "Bytes read."};
constexpr MetricFamily kBuild = {"x_build", MetricType::kInfo, "", "The build."};
constexpr MetricFamily kBlocks = {"x_blocks", MetricType::kGauge, "blocks", "Blocks."};

std::string example(ExpositionFormat format) {
  Exposition text(format, "/dev/shm/kv");
  text.begin(kBuild);
  text.sample({"version", "1.2"}, 1);
  text.begin(kBlocks);
  text.sample({"state", "free"}, 3);
  text.sample({"state", "live"}, 0);
  text.single(kBytes, 18'446'744'073'709'551'615u);
  return text.finish();
}

TEST(Exposition, WritesOpenMetrics) {
  EXPECT_EQ(example(ExpositionFormat::kOpenMetrics),
            "# TYPE x_build info\n"
            "# HELP x_build The build.\n"
            "x_build_info{pool=\"/dev/shm/kv\",version=\"1.2\"} 1\n"
            "# TYPE x_blocks gauge\n"
            "# UNIT x_blocks blocks\n"
            "# HELP x_blocks Blocks.\n"
            "x_blocks{pool=\"/dev/shm/kv\",state=\"free\"} 3\n"
            "x_blocks{pool=\"/dev/shm/kv\",state=\"live\"} 0\n"
            "# TYPE x_read_bytes counter\n"
            "# UNIT x_read_bytes bytes\n"
            "# HELP x_read_bytes Bytes read.\n"
            "x_read_bytes_total{pool=\"/dev/shm/kv\"} 18446744073709551615\n"
            "# EOF\n");
}

// There a family is named as its samples are, and has no unit.
TEST(Exposition, WritesPrometheusText) {
  EXPECT_EQ(example(ExpositionFormat::kPrometheusText),
            "# TYPE x_build_info gauge\n"
            "# HELP x_build_info The build.\n"
            "x_build_info{pool=\"/dev/shm/kv\",version=\"1.2\"} 1\n"
            "# TYPE x_blocks gauge\n"
            "# HELP x_blocks Blocks.\n"
            "x_blocks{pool=\"/dev/shm/kv\",state=\"free\"} 3\n"
            "x_blocks{pool=\"/dev/shm/kv\",state=\"live\"} 0\n"
            "# TYPE x_read_bytes_total counter\n"
            "# HELP x_read_bytes_total Bytes read.\n"
            "x_read_bytes_total{pool=\"/dev/shm/kv\"} 18446744073709551615\n");
}

std::string label_text(std::string_view pool) {
  Exposition text(ExpositionFormat::kPrometheusText, pool);
  text.single(kBlocks, 1);
  const std::string all = text.finish();
  const std::string head = "x_blocks{pool=\"";
  const std::size_t at = all.find(head) + head.size();
  return all.substr(at, all.rfind("\"}") - at);
}

TEST(LabelValues, AreEscaped) {
  EXPECT_EQ(label_text("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
}

TEST(LabelValues, KeepUtf8AndReplaceAllElse) {
  for (const char* good : {"é", "€", "\xf0\x9f\x90\x8b", "\xf4\x8f\xbf\xbf", "\x7f"})
    EXPECT_EQ(label_text(good), good);
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(label_text("a\xff"
                       "b"),
            "a" + bad + "b");
  EXPECT_EQ(label_text("\xe2\x82"), bad + bad);  // cut off
  EXPECT_EQ(label_text("\xc0\xaf"), bad + bad);  // longer than needed
  EXPECT_EQ(label_text("\xe0\x80\xaf"), bad + bad + bad);
  EXPECT_EQ(label_text("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(label_text("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(label_text("\xe9\"x"), bad + "\\\"x");
}

RC_GTEST_PROP(LabelValues, NeverEndTheirQuotesOrTheirLine, (const std::string& any)) {
  const std::string text = label_text(any);
  for (std::size_t i = 0; i < text.size(); ++i) {
    RC_ASSERT(text[i] != '\n' && text[i] != '"');
    if (text[i] != '\\') continue;
    ++i;
    RC_ASSERT(i < text.size());
    RC_ASSERT(text[i] == '\\' || text[i] == '"' || text[i] == 'n');
  }
}

TEST(Negotiation, GivesOpenMetricsToAScraperThatAsksForIt) {
  for (const char* accept :
       {// Prometheus 2.42
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text", "text/plain;q=0.5, Application/OpenMetrics-Text ; Q=0.5",
        "application/openmetrics-text;q=0.001"}) {
    EXPECT_EQ(negotiate_format(accept), ExpositionFormat::kOpenMetrics) << accept;
  }
}

TEST(Negotiation, GivesPrometheusTextToAllOthers) {
  for (const char* accept :
       {"", "*/*", "text/html,application/xhtml+xml,*/*;q=0.8", ",,;;=,q", "application/json",
        "text/plain;version=0.0.4,application/openmetrics-text;q=0.5",
        "application/openmetrics-text;q=0", "application/openmetrics-text;q=0.000",
        "application/openmetrics-text;q=abc", "application/openmetrics-text;q=1.5x",
        "application/openmetrics-text;q=", "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-textual"}) {
    EXPECT_EQ(negotiate_format(accept), ExpositionFormat::kPrometheusText) << accept;
  }
}

RC_GTEST_PROP(Negotiation, TakesAnyHeader, (const std::string& any)) {
  (void)negotiate_format(any);
  (void)negotiate_format("application/openmetrics-text;" + any);
}

}  // namespace
}  // namespace cachalot::node
