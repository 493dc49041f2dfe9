#include "trace/file/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace cachalot::trace {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// A name that leads to no file is the caller's to mend, like any other argument.
Error file_error(int os_error, const std::string& path) {
  Error error = Error::from_errno(os_error, "%s", shown_path(path).c_str());
  if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
  return error;
}

class PlainFile final : public ByteSource {
 public:
  PlainFile(File file, const std::string& path) : file_(std::move(file)), path_(path) {}

  // Whether the file starts like gzip. What is read for that is given out again by read().
  Result<bool> looks_like_gzip() {
    CACHALOT_TRY_ASSIGN(head_bytes_, read_file(head_));
    return head_bytes_ == 2 && head_[0] == '\x1f' && head_[1] == '\x8b';
  }

  Result<std::size_t> read(std::span<char> to) override {
    const std::size_t from_head = std::min(head_bytes_ - head_given_, to.size());
    std::memcpy(to.data(), head_.data() + head_given_, from_head);
    head_given_ += from_head;
    CACHALOT_TRY_ASSIGN(const std::size_t from_file, read_file(to.subspan(from_head)));
    return from_head + from_file;
  }

 private:
  Result<std::size_t> read_file(std::span<char> to) {
    const std::size_t bytes = std::fread(to.data(), 1, to.size(), file_.get());
    if (bytes < to.size() && std::ferror(file_.get()) != 0) return file_error(errno, path_);
    return bytes;
  }

  File file_;
  std::string path_;
  std::array<char, 2> head_{};
  std::size_t head_bytes_ = 0;
  std::size_t head_given_ = 0;
};

class GzipFile final : public ByteSource {
 public:
  static Result<std::unique_ptr<ByteSource>> make(std::unique_ptr<ByteSource> file,
                                                  const std::string& path) {
    auto result = std::unique_ptr<GzipFile>(new GzipFile(std::move(file), path));
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&result->stream_, MAX_WBITS + kGzipOnly) != Z_OK) {
      return Error::make(Code::kNoSpace, "%s: no memory to inflate it", shown_path(path).c_str());
    }
    return std::unique_ptr<ByteSource>(std::move(result));
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  Result<std::size_t> read(std::span<char> to) override {
    constexpr std::size_t kMostBytes = std::numeric_limits<uInt>::max();
    const uInt wanted = static_cast<uInt>(std::min(to.size(), kMostBytes));
    stream_.next_out = reinterpret_cast<Bytef*>(to.data());
    stream_.avail_out = wanted;
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) CACHALOT_TRY(fill());
      if (is_between_members_) CACHALOT_TRY(pass_over_padding());
      if (stream_.avail_in == 0 && is_between_members_) break;
      if (stream_.avail_in == 0) return damage("gzip data ends in the middle");
      CACHALOT_TRY(inflate_some());
    }
    return std::size_t{wanted - stream_.avail_out};
  }

 private:
  GzipFile(std::unique_ptr<ByteSource> file, const std::string& path)
      : file_(std::move(file)), path_(path), input_(std::size_t{64} << 10) {}

  Status fill() {
    CACHALOT_TRY_ASSIGN(const std::size_t bytes, file_->read(input_));
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(bytes);
    return {};
  }

  // A member begins with no zero, so these are what tapes and block devices fill up with.
  Status pass_over_padding() {
    if (stream_.avail_in == 0 || stream_.next_in[0] != 0) return {};
    while (stream_.avail_in > 0) {
      const std::span padding(stream_.next_in, stream_.avail_in);
      if (std::any_of(padding.begin(), padding.end(), [](Bytef byte) { return byte != 0; })) {
        return damage("zeros after its data, and other bytes after these");
      }
      CACHALOT_TRY(fill());
    }
    return {};
  }

  Status inflate_some() {
    if (is_between_members_ && inflateReset(&stream_) != Z_OK) return damage("cannot be inflated");
    is_between_members_ = false;
    const int answer = inflate(&stream_, Z_NO_FLUSH);
    if (answer == Z_STREAM_END) {
      is_between_members_ = true;
    } else if (answer != Z_OK && answer != Z_BUF_ERROR) {
      return damage(stream_.msg != nullptr ? stream_.msg : "cannot be inflated");
    }
    return {};
  }

  Error damage(const char* what) const {
    return Error::make(Code::kBadInput, "%s: damaged gzip file: %s", shown_path(path_).c_str(),
                       what);
  }

  std::unique_ptr<ByteSource> file_;
  std::string path_;
  std::vector<char> input_;
  z_stream stream_{};
  bool is_between_members_ = false;
};

}  // namespace

std::string shown_path(const std::string& path) {
  constexpr std::size_t kShownBytes = 100;
  if (path.size() <= kShownBytes) return path;
  return "..." + path.substr(path.size() - kShownBytes);
}

Result<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& path) {
  File file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) return file_error(errno, path);
  auto plain = std::make_unique<PlainFile>(std::move(file), path);
  CACHALOT_TRY_ASSIGN(const bool is_gzip, plain->looks_like_gzip());
  if (is_gzip) return GzipFile::make(std::move(plain), path);
  return std::unique_ptr<ByteSource>(std::move(plain));
}

Result<std::unique_ptr<ByteSource>> ByteSource::open_text(const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  CACHALOT_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open(path));
  auto peeked = std::make_unique<PeekedSource>(std::move(source), kByteOrderMark.size());
  if (peeked->beginning() == kByteOrderMark) peeked->pass_over(kByteOrderMark.size());
  return std::unique_ptr<ByteSource>(std::move(peeked));
}

PeekedSource::PeekedSource(std::unique_ptr<ByteSource> source, std::size_t bytes)
    : source_(std::move(source)), beginning_(bytes, '\0') {
  const Result<std::size_t> read = source_->read(beginning_);
  if (!read) error_ = read.error();
  beginning_.resize(read ? *read : 0);
}

Result<std::size_t> PeekedSource::read(std::span<char> to) {
  if (error_) return *error_;
  const std::size_t known = std::min(to.size(), beginning_.size() - given_);
  std::memcpy(to.data(), beginning_.data() + given_, known);
  given_ += known;
  if (known == to.size()) return known;
  CACHALOT_TRY_ASSIGN(const std::size_t more, source_->read(to.subspan(known)));
  return known + more;
}

}  // namespace cachalot::trace
