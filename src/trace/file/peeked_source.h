// A source whose beginning has been looked at: it is read again from there, and an error met while
// looking comes in its place.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trace/file/byte_source.h"

namespace cachalot::trace {

class PeekedSource final : public ByteSource {
 public:
  static constexpr std::size_t kPeekedBytes = std::size_t{64} << 10;

  // Waits, at a pipe, for `bytes` or the end.
  explicit PeekedSource(std::unique_ptr<ByteSource> source, std::size_t bytes = kPeekedBytes);

  // Valid until read().
  std::string_view beginning() const { return beginning_; }
  // Before read(): leaves out so many bytes of the beginning.
  void pass_over(std::size_t bytes) { given_ = bytes; }
  Result<std::size_t> read(std::span<char> to) override;

 private:
  std::unique_ptr<ByteSource> source_;
  std::string beginning_;
  std::size_t given_ = 0;
  std::optional<Error> error_;
};

}  // namespace cachalot::trace
