// What can go wrong, in a form that is cheap to carry: trivially copyable, no allocation, safe to
// pass between threads and through a C boundary.
//
// A code says what the caller can do about it; the message names the thing, the value and what
// was expected, in one line. The message is inside the Error, cut off where it would be longer.
#pragma once

#include <cstdint>

namespace cachalot {

enum class Code : std::uint16_t {
  // The caller can mend its own call or file.
  kInvalidArgument = 1,  // a value out of range, inconsistent flags
  kBadInput,             // a file's content is not what it must be
  kNotAPool,             // wrong magic, or nothing that could be a pool
  kVersionMismatch,      // a pool of another format version
  // The work was done, the answer is no.
  kNotFound,  // the key, file or entry is absent
  kCorrupt,   // bytes that do not check
  kStale,     // another keeper rules, or the block was reused: look up again
  kRefused,   // the keeper said no (nothing evictable, parent not published, bad request)
  // The surroundings refuse; the same call may succeed later.
  kNoKeeper,     // nobody answers for this pool
  kNoSpace,      // device, file system or table is full
  kPermission,   // the operating system forbids it
  kBusy,         // somebody else holds it
  kTimeout,      // not done within the time given
  kUnsupported,  // this machine, build or pool cannot do it
  kIo,           // the operating system reported an error
  // Our own fault.
  kInternal,
  // The caller took it back.
  kCancelled,
};

// A lower-case name, the same in C++, C, JSON and the docs: "no_keeper".
const char* code_name(Code code);

struct Error {
  static constexpr int kMessageBytes = 240;

  Code code = Code::kInternal;
  std::uint16_t reserved = 0;
  std::uint32_t os_error = 0;  // errno where the operating system was the cause, else 0
  std::uint64_t detail = 0;    // the offending index, offset or value, where one number says it
  char message[kMessageBytes] = {};

  // printf-style; the only way errors are made, so that none is without words.
  [[gnu::format(printf, 2, 3)]] static Error make(Code code, const char* format, ...);
  // As make, with ": <text of errno>" behind; code from errno (ENOSPC: kNoSpace, EACCES: kPermission, …).
  [[gnu::format(printf, 2, 3)]] static Error from_errno(int os_error, const char* format, ...);
};

}  // namespace cachalot
