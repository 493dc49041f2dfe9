// A value, or the Error that explains why there is no value.
//
//   Result<Pool> pool = Pool::open(path);
//   if (!pool) return pool.error();
//   use(*pool);
//
// Or, in a function that returns a Result:
//
//   CACHALOT_TRY_ASSIGN(Pool pool, Pool::open(path));
//   CACHALOT_TRY(pool.check());
#pragma once

#include <cachalot/error.h>

#include <new>
#include <type_traits>
#include <utility>

namespace cachalot {

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : ok_(true) { new (&value_) T(std::move(value)); }  // NOLINT: implicit on purpose
  Result(const Error& error) : ok_(false) { new (&error_) Error(error); }  // NOLINT
  Result(Result&& other) noexcept : ok_(other.ok_) {
    if (ok_) {
      new (&value_) T(std::move(other.value_));
    } else {
      new (&error_) Error(other.error_);
    }
  }
  Result& operator=(Result&& other) noexcept {
    if (this != &other) {
      this->~Result();
      new (this) Result(std::move(other));
    }
    return *this;
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() {
    if (ok_) value_.~T();
  }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }

  // Precondition: ok() for the value, !ok() for error().
  T& operator*() & { return value_; }
  const T& operator*() const& { return value_; }
  T&& operator*() && { return std::move(value_); }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  const Error& error() const { return error_; }

 private:
  bool ok_;
  union {
    T value_;
    Error error_;
  };
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() : ok_(true) {}
  Result(const Error& error) : ok_(false), error_(error) {}  // NOLINT: implicit on purpose

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  bool ok_;
  union {
    Error error_;
  };
};

using Status = Result<void>;

}  // namespace cachalot

#define CACHALOT_CONCAT_INNER(a, b) a##b
#define CACHALOT_CONCAT(a, b) CACHALOT_CONCAT_INNER(a, b)

#define CACHALOT_TRY(expression)           \
  do {                                     \
    auto&& cachalot_status = (expression); \
    if (!cachalot_status) [[unlikely]]     \
      return cachalot_status.error();      \
  } while (false)

#define CACHALOT_TRY_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result) [[unlikely]]                                        \
    return result.error();                                         \
  declaration = *std::move(result)

#define CACHALOT_TRY_ASSIGN(declaration, expression) \
  CACHALOT_TRY_ASSIGN_INNER(CACHALOT_CONCAT(cachalot_result_, __LINE__), declaration, expression)
