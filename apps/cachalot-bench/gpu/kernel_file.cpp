#include "kernel_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

namespace cachalot::apps::bench {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

template <class T>
T at(const std::vector<unsigned char>& bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size())
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// What the header announces; 0: it is no header.
// @shape  fat binary: magic (4), version (2), header's bytes (2), bytes after it (8)
//         cubin: ELF of 64 bits; the section headers come last: their place at 40, size at 58, number at 60
std::uint64_t announced_bytes(const std::vector<unsigned char>& bytes) {
  constexpr std::uint32_t kFatBinary = 0xba55ed50, kElf = 0x464c457f;
  const auto magic = at<std::uint32_t>(bytes, 0);
  std::uint64_t first = 0, rest = 0;
  if (magic == kFatBinary) {
    first = at<std::uint16_t>(bytes, 6);
    rest = at<std::uint64_t>(bytes, 8);
  } else if (magic == kElf && at<unsigned char>(bytes, 4) == 2) {
    first = at<std::uint64_t>(bytes, 40);
    rest = std::uint64_t{at<std::uint16_t>(bytes, 58)} * at<std::uint16_t>(bytes, 60);
  }
  if (first == 0 || rest == 0) return 0;
  return rest > std::numeric_limits<std::uint64_t>::max() - first ? rest : first + rest;
}

}  // namespace

Result<std::vector<unsigned char>> read_kernels(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, "%s: opening", path.c_str());
  std::vector<unsigned char> bytes(kMostBytes + 1);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  const std::uint64_t announced = announced_bytes(bytes);
  if (announced == 0 || bytes.size() > kMostBytes) {
    return Error::make(Code::kInvalidArgument,
                       "%s: expected kernels as nvcc -fatbin or -cubin writes them", path.c_str());
  }
  if (announced > bytes.size()) {
    return Error::make(Code::kInvalidArgument,
                       "%s: not whole: %zu bytes; its header announces %llu", path.c_str(),
                       bytes.size(), static_cast<unsigned long long>(announced));
  }
  return bytes;
}

}  // namespace cachalot::apps::bench
