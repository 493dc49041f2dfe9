// Requests of a production trace, one at a time: JSON lines, plain or gzip.
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
//
// timestamp in milliseconds; lengths in tokens; hash_ids one unsigned 64-bit number for each block of
// the input, each standing for the whole prefix up to it. The last block may be partial: there are
// ceil or floor of input_length / block_tokens ids. Other fields are ignored, empty lines too.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cachalot::trace {

struct Request {
  double timestamp_ms = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::vector<std::uint64_t> hash_ids;
};

struct RequestTraceOptions {
  std::uint64_t block_tokens = 0;  // checks the number of ids; 0: does not
  bool skip_bad_lines = false;     // counts them and goes on
};

// @threads one at a time
class RequestTrace {
 public:
  // Opens the file; gzip is told by its content, not by its name.
  // @errors kInvalidArgument: no such file, or a directory; kPermission; kIo
  static Result<RequestTrace> open(const std::string& path, const RequestTraceOptions& options);

  RequestTrace(RequestTrace&&) noexcept;
  RequestTrace& operator=(RequestTrace&&) noexcept;
  ~RequestTrace();

  // Reads the next request into `request`, whose memory is reused; false at the end. After an error
  // of a line the next call goes on behind it; after one of the file all calls fail alike.
  // @errors kBadInput: "file:line: what was found and expected"; damaged or cut gzip data; a trace
  //         that ends without a single request; kIo
  Result<bool> next(Request& request);

  std::uint64_t requests() const;
  std::uint64_t skipped_lines() const;

 private:
  class Reader;
  explicit RequestTrace(std::unique_ptr<Reader> reader);

  std::unique_ptr<Reader> reader_;
};

}  // namespace cachalot::trace
