#include "trace/file/byte_sink.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "os/links.h"
#include "trace/file/byte_source.h"

namespace cachalot::trace {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

class ByteSink::Impl {
 public:
  explicit Impl(std::string path) : path_(std::move(path)) {}
  ~Impl() {
    if (is_gzip_) deflateEnd(&stream_);
    if (fd_ >= 0 && fd_ != STDOUT_FILENO) ::close(fd_);
    if (!part_path_.empty()) ::unlink(part_path_.c_str());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status open() {
    if (path_ == "-") {
      fd_ = STDOUT_FILENO;
      return {};
    }
    CACHALOT_TRY(open_file());
    if (!path_.ends_with(".gz")) return {};
    constexpr int kGzip = 16;
    if (deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzip, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
      return Error::make(Code::kNoSpace, "%s: no memory to compress it", shown_path(path_).c_str());
    }
    is_gzip_ = true;
    packed_.resize(kBufferBytes);
    return {};
  }

  Status write(std::string_view bytes) {
    waiting_ += bytes;
    return waiting_.size() < kBufferBytes ? Status{} : flush(false);
  }

  Status finish() {
    CACHALOT_TRY(flush(true));
    if (fd_ == STDOUT_FILENO) return {};
    if (has_no_name_) CACHALOT_TRY(give_name());
    // As before; without permission, as for new files.
    if (mode_) static_cast<void>(::fchmod(fd_, *mode_));
    if (::close(std::exchange(fd_, -1)) != 0) return error();
    if (part_path_.empty()) return {};
    if (::rename(part_path_.c_str(), path_.c_str()) != 0) return error();
    part_path_.clear();
    return {};
  }

 private:
  Error error() const {
    const std::string name = path_ == "-" ? "stdout" : shown_path(path_);
    Error error = Error::from_errno(errno, "%s", name.c_str());
    if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
    return error;
  }

  // A new file beside the name; the thing itself where it is no plain file.
  Status open_file() {
    struct stat there {};
    const bool is_there = ::stat(path_.c_str(), &there) == 0;
    if (is_there && S_ISDIR(there.st_mode)) {
      errno = EISDIR;
      return error();
    }
    if (is_there && !S_ISREG(there.st_mode)) {
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      return fd_ >= 0 ? Status{} : Status(error());
    }
    if (is_there && ::access(path_.c_str(), W_OK) != 0) return error();
    // A link stays, and what it stands for is replaced.
    path_ = os::follow_links(path_);
    if (is_there) mode_ = there.st_mode & 0777;
    // Without a name, so that nothing stays of it when the process is ended.
    const std::string folder = std::filesystem::path(path_).parent_path();
    fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    has_no_name_ = fd_ >= 0;
    if (has_no_name_) return {};
    // A file system that has no such files, or a folder that is not there.
    const std::string part_path = part_path_of_this_process();
    fd_ = ::open(part_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) return error();
    part_path_ = part_path;
    return {};
  }

  std::string part_path_of_this_process() const {
    return path_ + ".part." + std::to_string(::getpid());
  }

  Status give_name() {
    const std::string part_path = part_path_of_this_process();
    const std::string open_file = "/proc/self/fd/" + std::to_string(fd_);
    ::unlink(part_path.c_str());  // of an earlier process of this number
    if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, part_path.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      return error();
    }
    part_path_ = part_path;
    has_no_name_ = false;
    return {};
  }

  Status flush(bool is_last) {
    if (!is_gzip_) {
      CACHALOT_TRY(write_all(waiting_));
      waiting_.clear();
      return {};
    }
    stream_.next_in = reinterpret_cast<Bytef*>(waiting_.data());
    stream_.avail_in = static_cast<uInt>(waiting_.size());
    int answer = Z_OK;
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(packed_.data());
      stream_.avail_out = static_cast<uInt>(packed_.size());
      answer = deflate(&stream_, is_last ? Z_FINISH : Z_NO_FLUSH);
      CACHALOT_TRY(write_all(std::string_view(packed_.data(), packed_.size() - stream_.avail_out)));
    } while (is_last ? answer != Z_STREAM_END : stream_.avail_out == 0);
    waiting_.clear();
    return {};
  }

  Status write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno != EINTR) return error();
      if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }

  std::string path_;
  std::string part_path_;  // what is renamed at the end, or removed
  int fd_ = -1;
  std::optional<mode_t> mode_;  // of the file that it takes the place of
  bool has_no_name_ = false;    // until it is whole
  bool is_gzip_ = false;
  z_stream stream_{};
  std::string waiting_;  // for the next flush
  std::string packed_;
};

Result<ByteSink> ByteSink::open(const std::string& path) {
  auto impl = std::make_unique<Impl>(path);
  CACHALOT_TRY(impl->open());
  return ByteSink(std::move(impl));
}

ByteSink::ByteSink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ByteSink::ByteSink(ByteSink&&) noexcept = default;
ByteSink& ByteSink::operator=(ByteSink&&) noexcept = default;
ByteSink::~ByteSink() = default;

Status ByteSink::write(std::string_view bytes) {
  return impl_->write(bytes);
}
Status ByteSink::finish() {
  return impl_->finish();
}

}  // namespace cachalot::trace
