// The content of a file from its beginning to its end, inflated if it is gzip.
//
// gzip is told by its first two bytes. Several members in a row are one file, as gzip has it, and zeros
// behind the last one are padding; cut or damaged data is an error and never a short file. Pipes will do.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::trace {

// @threads one at a time
class ByteSource {
 public:
  // @errors kInvalidArgument: no such file, or a directory; kPermission; kIo
  static Result<std::unique_ptr<ByteSource>> open(const std::string& path);
  // The same of text: without the byte order mark that some programs begin a UTF-8 file with.
  static Result<std::unique_ptr<ByteSource>> open_text(const std::string& path);

  virtual ~ByteSource() = default;

  // Fills `to`, or as much of it as there is; 0 only at the end or for an empty `to`.
  // @errors kBadInput: damaged or cut gzip data; kIo; an error ends the source
  virtual Result<std::size_t> read(std::span<char> to) = 0;
};

// The path as messages show it: its last hundred characters.
std::string shown_path(const std::string& path);

// A source whose beginning has been looked at: it is read again from there, and an error met while
// looking comes in its place.
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
