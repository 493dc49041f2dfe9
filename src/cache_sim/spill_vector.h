// A vector that lies in an unlinked file, so that it may be larger than memory: the kernel writes out
// what is not in use.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

namespace cachalot::cache_sim {

// The bytes of it.
//
// @threads one at a time
class SpillFile {
 public:
  // Makes an unlinked file in `directory`, which ends with its process.
  // @errors kInvalidArgument: no such directory; kPermission, kNoSpace, kIo: it cannot be made; the message
  //         names the directory
  static Result<SpillFile> make(const std::string& directory);

  SpillFile(SpillFile&& other) noexcept;
  SpillFile& operator=(SpillFile&& other) noexcept;
  ~SpillFile();

  std::byte* data() const { return data_; }
  std::size_t capacity_bytes() const { return capacity_bytes_; }
  // At least `bytes`, reserved on the disk: later stores cannot fail for want of space.
  // @errors kNoSpace: the disk is full; kIo
  Status reserve(std::size_t bytes);

 private:
  SpillFile(int file, std::string directory) : file_(file), directory_(std::move(directory)) {}

  int file_ = -1;
  std::string directory_;
  std::byte* data_ = nullptr;
  std::size_t capacity_bytes_ = 0;
};

// @threads one at a time
template <class T>
class SpillVector {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  // @errors as SpillFile::make
  static Result<SpillVector> make(const std::string& directory) {
    CACHALOT_TRY_ASSIGN(SpillFile file, SpillFile::make(directory));
    return SpillVector(std::move(file));
  }

  std::uint64_t size() const { return size_; }
  T& operator[](std::uint64_t i) { return data()[i]; }
  const T& operator[](std::uint64_t i) const { return data()[i]; }

  // @errors as SpillFile::reserve; nothing was added
  Status push_back(const T& value) {
    if ((size_ + 1) * sizeof(T) > file_.capacity_bytes()) CACHALOT_TRY(grow(size_ + 1));
    data()[size_++] = value;
    return {};
  }
  // New elements are zero.
  Status resize(std::uint64_t size) {
    if (size * sizeof(T) > file_.capacity_bytes()) CACHALOT_TRY(grow(size));
    size_ = size;
    return {};
  }

 private:
  explicit SpillVector(SpillFile file) : file_(std::move(file)) {}

  T* data() const { return reinterpret_cast<T*>(file_.data()); }
  Status grow(std::uint64_t size) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(size, std::uint64_t{sizeof(T)}, &bytes)) bytes = ~std::size_t{0};
    return file_.reserve(bytes);
  }

  SpillFile file_;
  std::uint64_t size_ = 0;
};

}  // namespace cachalot::cache_sim
