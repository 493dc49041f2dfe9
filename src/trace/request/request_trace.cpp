#include "trace/request/request_trace.h"

#include <cmath>
#include <utility>

#include "trace/file/byte_source.h"
#include "trace/file/json_array_source.h"
#include "trace/request/request_reader.h"
#include "trace/request/time_check.h"

namespace cachalot::trace {

class RequestTrace::Reader {
 public:
  Reader(std::unique_ptr<RequestReader> requests, const std::string& path,
         const RequestTraceOptions& options)
      : reader_(std::move(requests)), shown_path_(shown_path(path)), options_(options) {}

  // What only the first request tells is known from then on.
  void read_ahead() { ahead_ = reader_->next(ahead_request_); }

  Status synthesize() {
    if (!options_.synthetic_prefix) return {};
    if (reader_->properties().has_ids) {
      return Error::make(Code::kInvalidArgument,
                         "%s: the format %s has block ids of its own, expected no synthetic prefix",
                         shown_path_.c_str(), trace_format_name(reader_->properties().format));
    }
    if (block_tokens() == 0) {
      return Error::make(Code::kInvalidArgument,
                         "%s: a synthetic prefix needs a number of tokens a block",
                         shown_path_.c_str());
    }
    synthesizer_.emplace(*options_.synthetic_prefix, block_tokens());
    return {};
  }

  Result<bool> next(Request& request) {
    CACHALOT_TRY_ASSIGN(const bool more, read(request));
    if (!more) return end();
    CACHALOT_TRY(check_block_tokens());
    CACHALOT_TRY(convert_time(request));
    if (!std::isfinite(request.timestamp_ms)) return too_late();
    if (synthesizer_) CACHALOT_TRY(synthesizer_->apply(request));
    unsorted_requests_ += requests_ > 0 && request.timestamp_ms < latest_ms_ ? 1 : 0;
    latest_ms_ = request.timestamp_ms;
    ++requests_;
    return true;
  }

  const RequestReader& source() const { return *reader_; }
  std::uint64_t block_tokens() const {
    const std::uint64_t stated = reader_->properties().block_tokens;
    if (stated != 0) return stated;
    return options_.block_tokens != 0 ? options_.block_tokens : options_.default_block_tokens;
  }
  bool has_synthetic_ids() const { return synthesizer_.has_value(); }
  const std::string& path() const { return shown_path_; }
  std::uint64_t requests() const { return requests_; }
  std::uint64_t unsorted_requests() const { return unsorted_requests_; }

 private:
  Result<bool> read(Request& request) {
    if (!ahead_) return reader_->next(request);
    Result<bool> ahead = std::move(*ahead_);
    ahead_.reset();
    if (ahead && *ahead) std::swap(request, ahead_request_);
    return ahead;
  }

  Status check_block_tokens() const {
    const std::uint64_t stated = reader_->properties().block_tokens;
    if (options_.block_tokens == 0 || stated == 0 || stated == options_.block_tokens) return {};
    return Error::make(Code::kInvalidArgument,
                       "%s: its blocks have %llu tokens, expected %llu (`cachalot trace convert` "
                       "makes larger ones)",
                       shown_path_.c_str(), static_cast<unsigned long long>(stated),
                       static_cast<unsigned long long>(options_.block_tokens));
  }

  // Times that the format itself says are milliseconds already.
  Status convert_time(Request& request) {
    const TraceFormat format = reader_->properties().format;
    if (options_.time_unit_ms == 0) {
      if (format == TraceFormat::kMooncake && times_.add(request.timestamp_ms)) warn_of_times();
      return {};
    }
    if (format != TraceFormat::kMooncake && format != TraceFormat::kAiperf) {
      return Error::make(Code::kInvalidArgument,
                         "%s: given a unit of time, expected none: the format %s says its own",
                         shown_path_.c_str(), trace_format_name(format));
    }
    request.timestamp_ms *= options_.time_unit_ms;
    return {};
  }

  // Seconds of a number that as milliseconds is none.
  Error too_late() const {
    return Error::make(Code::kBadInput,
                       "%s: request %llu: a time of more than 1.7e308 ms, expected one in the unit "
                       "of its format",
                       shown_path_.c_str(), static_cast<unsigned long long>(requests_ + 1));
  }

  void warn_of_times() {
    const std::optional<std::string> doubt = times_.doubt();
    if (doubt) warn(shown_path_ + ": " + *doubt);
  }

  void warn(const std::string& text) const {
    if (options_.warn && !text.empty()) options_.warn(text);
  }

  Result<bool> end() {
    if (requests_ > 0 && !has_ended_) {
      has_ended_ = true;
      warn_of_times();
      warn(reader_->assumption());
    }
    if (requests_ > 0) return false;
    return Error::make(Code::kBadInput, "%s: no request in it (%llu bad lines were skipped)",
                       shown_path_.c_str(),
                       static_cast<unsigned long long>(reader_->skipped_lines()));
  }

  std::unique_ptr<RequestReader> reader_;
  std::string shown_path_;
  RequestTraceOptions options_;
  std::optional<PrefixSynthesizer> synthesizer_;
  std::optional<Result<bool>> ahead_;
  Request ahead_request_;
  TimeCheck times_;
  bool has_ended_ = false;
  double latest_ms_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t unsorted_requests_ = 0;
};

Result<RequestTrace> RequestTrace::open(const std::string& path,
                                        const RequestTraceOptions& options) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<ByteSource> source, ByteSource::open_text(path));
  auto peeked = std::make_unique<PeekedSource>(std::move(source));
  TraceFormat format = options.format;
  if (format == TraceFormat::kAuto) {
    format = detect_format_of_lines(peeked->beginning()).value_or(TraceFormat::kAuto);
  }
  const bool is_array = begins_array(peeked->beginning());
  source = std::move(peeked);
  if (is_array) source = std::make_unique<JsonArraySource>(std::move(source), path);
  const ParserOptions parsing = {.block_tokens = options.block_tokens,
                                 .default_block_tokens = options.default_block_tokens,
                                 .is_named = options.format != TraceFormat::kAuto};
  std::unique_ptr<RequestReader> requests;
  if (format == TraceFormat::kWeka) {
    requests = make_weka_reader(std::move(source), path, options.skip_bad_lines);
  } else if (format == TraceFormat::kAiperf) {
    if (parsing.checked_tokens() == 0) {
      return Error::make(Code::kInvalidArgument, "%s: sessions need a number of tokens a block",
                         shown_path(path).c_str());
    }
    requests =
        make_session_reader(std::move(source), path, parsing, options.skip_bad_lines, is_array);
  } else {
    requests = make_line_reader(std::move(source), path, make_line_parser(format, parsing),
                                options.skip_bad_lines, is_array);
  }
  auto reader = std::make_unique<Reader>(std::move(requests), path, options);
  // The first request tells a size, or, where the beginning told no format, whether there are ids.
  if (format == TraceFormat::kWeka || format == TraceFormat::kDynamo ||
      format == TraceFormat::kAiperf || format == TraceFormat::kAuto) {
    reader->read_ahead();
  }
  CACHALOT_TRY(reader->synthesize());
  return RequestTrace(std::move(reader));
}

RequestTrace::RequestTrace(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
RequestTrace::RequestTrace(RequestTrace&&) noexcept = default;
RequestTrace& RequestTrace::operator=(RequestTrace&&) noexcept = default;
RequestTrace::~RequestTrace() = default;

Result<bool> RequestTrace::next(Request& request) {
  return reader_->next(request);
}

TraceProperties RequestTrace::properties() const {
  return reader_->source().properties();
}
std::uint64_t RequestTrace::block_tokens() const {
  return reader_->block_tokens();
}
bool RequestTrace::has_ids() const {
  return properties().has_ids || reader_->has_synthetic_ids();
}

Status RequestTrace::require_ids() const {
  if (has_ids()) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: the format %s has no block ids, expected --synthetic-prefix "
                     "shared=TOKENS,continue=0…1,seed=N, which assumes some",
                     reader_->path().c_str(), trace_format_name(properties().format));
}

bool RequestTrace::ids_are_local() const {
  return properties().ids_are_local || reader_->has_synthetic_ids();
}

std::uint64_t RequestTrace::requests() const {
  return reader_->requests();
}
std::uint64_t RequestTrace::skipped_lines() const {
  return reader_->source().skipped_lines();
}
std::uint64_t RequestTrace::unsorted_requests() const {
  return reader_->unsorted_requests();
}

}  // namespace cachalot::trace
