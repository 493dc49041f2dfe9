// What all functions of the C ABI have in common: the words of a thread's last failure, nothing that is
// thrown, structs that say how much of them their caller knows.
#pragma once

#include <cachalot/c.h>
#include <cachalot/result.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>

#include "base/c_structs.h"

namespace cachalot::base {

// Keeps the words for cachalot_last_message() of this thread.
cachalot_code fail(const Error& error);
const char* last_failure();

inline cachalot_code missing(const char* what) {
  return fail(Error::make(Code::kInvalidArgument, "%s: is null", what));
}
inline cachalot_code code_of(const Status& status) {
  return status ? CACHALOT_OK : fail(status.error());
}

// The library does not throw; the standard library's memory may.
template <class F>
cachalot_code guarded(F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return fail(Error::make(Code::kNoSpace, "out of memory"));
  } catch (const std::length_error&) {
    return fail(Error::make(Code::kInvalidArgument, "a count is larger than memory"));
  } catch (const std::exception& error) {
    return fail(Error::make(Code::kInternal, "%s", error.what()));
  }
}

// A size that this struct has, had, or may have one day.
// @param ends  of all its fields @param alignment  its own
Status check_struct_size(std::uint32_t size, const char* what, std::span<const std::uint32_t> ends,
                         std::size_t alignment);

// A struct from a caller that knows less of it, or more: what is missing is zero, what is more must be.
template <class T>
Result<T> read_struct(const T* given, const char* what) {
  static_assert(FieldEnds<T>::kAll.back() == sizeof(T),
                "a field is missing there, or there is a gap");
  if (given == nullptr) return Error::make(Code::kInvalidArgument, "%s: is null", what);
  CACHALOT_TRY(check_struct_size(given->struct_size, what, FieldEnds<T>::kAll, alignof(T)));
  T known{};
  std::memcpy(&known, given, std::min<std::size_t>(given->struct_size, sizeof known));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < given->struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return Error::make(Code::kUnsupported,
                       "%s: byte %zu is of a field that this library does not know", what, i);
  }
  return known;
}

// What of it the caller knows. @param given  was read by read_struct()
template <class T>
void write_struct(T known, T* given) {
  known.struct_size = given->struct_size;
  std::memcpy(given, &known, std::min<std::size_t>(given->struct_size, sizeof known));
}

}  // namespace cachalot::base
