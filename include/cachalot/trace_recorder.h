// Records the requests of an engine into a file, as a trace for `cachalot hitrate`, `replay` and `trace`:
// lengths, times and block hashes, never tokens.
//
//   Result<TraceRecorder> recorder = TraceRecorder::open("requests.jsonl");
//   recorder->record(hashes, prompt.size(), output_tokens);
//   Status closed = recorder->close();
//
// A line has Mooncake's format:
//
//   {"timestamp": 1777312800000, "input_length": 6955, "output_length": 52, "hash_ids": [14879255164371896291, …]}
//
// An id is BlockHash::high as a number: the first 16 digits of the hash's text form. Among n blocks of a trace,
// two different ones have the same id with probability n^2 / 2^65.
//
// Invariants
//   1. Recording never makes a request fail. Requests that could not be written are counted; close() reports
//      the error.
//   2. Each write() appends whole lines, so several processes may record into one file. A process that is
//      killed loses at most its last second or 64 KiB, and leaves no partial line.
//
// @threads any, simultaneously
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace cachalot {

class TraceRecorder {
 public:
  // Appends to the file; creates it if it does not exist.
  // @errors kInvalidArgument: what is there is no regular file, or its folder does not exist; kPermission; kIo
  static Result<TraceRecorder> open(const std::string& path);
  TraceRecorder(TraceRecorder&&) noexcept;
  TraceRecorder& operator=(TraceRecorder&&) noexcept;
  ~TraceRecorder();  // writes buffered lines

  // Records a request that arrives now (milliseconds since 1970), or at timestamp_ms.
  // @param  hashes  of all whole blocks; also of a partial last block if it has a hash
  // @cost   about 10 ns per block; sometimes a write()
  void record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
              std::uint64_t output_tokens);
  void record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
              std::uint64_t output_tokens, std::uint64_t timestamp_ms);

  std::uint64_t recorded() const;
  // Requests that could not be written, or came after close(). A forked child neither records nor counts.
  std::uint64_t dropped() const;

  // Writes buffered lines. @errors kNoSpace, kIo …: they stay buffered
  Status flush();
  // Writes buffered lines and closes the file. Call it once.
  // @errors as flush(); the error of an earlier write that dropped requests
  Status close();

 private:
  struct Impl;
  explicit TraceRecorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
