// The error type: trivially copyable, without allocation, so that it can cross threads and the C boundary.
//
// The code says what the caller can do. The message inside the Error is one line that names the thing, its
// value and what was expected; longer messages are cut off.
#pragma once

#include <cstdint>

namespace cachalot {

enum class Code : std::uint16_t {
  // The call or the input file is wrong; the caller can correct it.
  kInvalidArgument = 1,  // a value out of range, inconsistent flags
  kBadInput,             // the content of a file is invalid
  kNotAPool,             // wrong magic, or not a file that can hold a pool
  kVersionMismatch,      // a pool of another format version
  // The call ran; the answer is negative.
  kNotFound,  // the key, file or entry is absent
  kCorrupt,   // wrong checksum or invalid content
  kStale,     // another keeper has taken over, or the block was reused: look up again
  kRefused,   // the keeper rejected it (nothing evictable, parent not published, bad request)
  // The environment prevents it; the same call may succeed later.
  kNoKeeper,     // the pool has no live keeper
  kNoSpace,      // device, file system or table is full
  kPermission,   // the operating system forbids it
  kBusy,         // in use by another process or call
  kTimeout,      // not done within the time given
  kUnsupported,  // this machine, build or pool cannot do it
  kIo,           // the operating system reported an error
  // A bug in Cachalot, or a driver that failed.
  kInternal,
  // The caller cancelled the call.
  kCancelled,
};

// A lower-case name, the same in C++, C, JSON and the docs: "no_keeper".
const char* code_name(Code code);

struct Error {
  static constexpr int kMessageBytes = 240;

  Code code = Code::kInternal;
  std::uint16_t reserved = 0;
  std::uint32_t os_error = 0;  // errno if the operating system reported it, else 0
  std::uint64_t detail = 0;    // the wrong index, offset or value, if one number describes it
  char message[kMessageBytes] = {};

  // printf-style. The only ways to construct an error, so that each has a message.
  [[gnu::format(printf, 2, 3)]] static Error make(Code code, const char* format, ...);
  // As make(), and appends ": <text of errno>". The code follows from errno (ENOSPC: kNoSpace, …).
  [[gnu::format(printf, 2, 3)]] static Error from_errno(int os_error, const char* format, ...);
};

}  // namespace cachalot
