// Writes the requests that an engine sees to a file, as a trace that `cachalot hitrate`, `replay` and
// `trace` read: lengths, times and block hashes, never tokens.
//
//   Result<TraceRecorder> recorder = TraceRecorder::open("requests.jsonl");
//   recorder->record(hashes, prompt.size(), output_tokens);
//   Status told = recorder->close();
//
// A line is Mooncake's:
//
//   {"timestamp": 1777312800000, "input_length": 6955, "output_length": 52, "hash_ids": [14879255164371896291, …]}
//
// An id is the upper half of a block's hash, BlockHash::high: the first 16 digits of its text form, as a
// number. Two different blocks of a trace of n have the same with probability n^2 / 2^65.
//
// Invariants
//   1. Recording never fails what it records: what could not be written is counted, and told by close().
//   2. A write() is whole lines, appended: several processes may record into one file, and a process that
//      is killed loses its last second or 64 KiB at most, and leaves no piece of a line.
//
// @threads any, all at once
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
  // Appends to the file, which is made where it is not there.
  // @errors kInvalidArgument: a folder, or no such folder; kPermission; kIo
  static Result<TraceRecorder> open(const std::string& path);
  TraceRecorder(TraceRecorder&&) noexcept;
  TraceRecorder& operator=(TraceRecorder&&) noexcept;
  ~TraceRecorder();  // writes what is left

  // A request that arrives now (milliseconds since 1970), or at timestamp_ms.
  // @param  hashes  of all its whole blocks, and of a partial last one where it has a hash
  // @cost   about 10 ns a block; a write() now and then
  void record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
              std::uint64_t output_tokens);
  void record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
              std::uint64_t output_tokens, std::uint64_t timestamp_ms);

  std::uint64_t recorded() const;
  // Requests that were left out since the file could not be written, or was closed. In a forked child
  // nothing is recorded, or counted.
  std::uint64_t dropped() const;

  // Writes what is held back. @errors kNoSpace, kIo …: it stays held back
  Status flush();
  // Writes what is held back and closes the file; once. @errors as flush(), or of an earlier write that
  // made requests be dropped
  Status close();

 private:
  struct Impl;
  explicit TraceRecorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
