#include "output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "command.h"
#include "os/links.h"

namespace cachalot::apps {
namespace {

Error error_of(const std::string& file) {
  Error error = Error::from_errno(errno, "%.150s: writing", file.c_str());
  // A folder that does not exist is a slip of the pen, not an answer.
  if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
  return error;
}

os::FileDescriptor make_file(const std::string& file) {
  return os::FileDescriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

// Space for all of it, before anything that is there is overwritten. Some file systems cannot say; pipes and
// devices have none.
Status reserve(int fd, std::size_t bytes, const std::string& file) {
  if (bytes == 0 || fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0)
    return {};
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return error_of(file);
  return {};
}

// A process that writes the file now writes it to its end first. Not for long: not every file has locks, and
// a holder for this program's whole run (flock(1)) waits for us.
void wait_for_others(int fd) {
  constexpr int kTries = 200;
  for (int i = 0; i < kTries && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++i)
    usleep(5'000);
}

Status write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return flush(stdout);
  return error_of("stdout");
}

}  // namespace

Status check_is_no_input(const char* flag, const std::string& file,
                         std::span<const std::string> inputs) {
  if (file.empty() || file == "-") return {};
  for (const std::string& input : inputs) {
    std::error_code unknown;  // one that is not there yet is no input
    if (!std::filesystem::equivalent(file, input, unknown) || unknown) continue;
    return Error::make(Code::kInvalidArgument, "%s: \"%.120s\" is an input, expected another file",
                       flag, file.c_str());
  }
  return {};
}

bool is_one_file(const std::string& a, const std::string& b) {
  std::error_code unknown;
  if (std::filesystem::equivalent(a, b, unknown) && !unknown) return true;
  return std::filesystem::weakly_canonical(os::follow_links(a), unknown) ==
             std::filesystem::weakly_canonical(os::follow_links(b), unknown) &&
         !unknown;
}

bool is_special(const std::string& file) {
  std::error_code unknown;
  return std::filesystem::exists(file, unknown) && !std::filesystem::is_regular_file(file, unknown);
}

bool is_stdout(const std::string& file) {
  if (file == "-") return true;
  struct stat named {
  }, out{};
  return stat(file.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
         named.st_dev == out.st_dev && named.st_ino == out.st_ino;
}

Status check_are_apart(std::initializer_list<NamedFile> files) {
  for (const NamedFile* one = files.begin(); one != files.end(); ++one) {
    for (const NamedFile* other = files.begin(); other != one; ++other) {
      if (one->file.empty() || other->file.empty()) continue;
      if (one->file == "-" && other->file == "-") {
        return Error::make(Code::kInvalidArgument,
                           "%s and %s are both \"-\", expected only one of them to go to stdout",
                           other->flag, one->flag);
      }
      if (one->file == "-" || other->file == "-") continue;
      // A device takes any number of results.
      if (is_special(one->file) || !is_one_file(one->file, other->file)) continue;
      return Error::make(Code::kInvalidArgument,
                         "%s and %s are both \"%.120s\", expected two files", other->flag,
                         one->flag, one->file.c_str());
    }
  }
  return {};
}

Result<Output> Output::open(const std::string& file) {
  Output output(file);
  if (file.empty() || file == "-") return output;
  output.fd_ = os::FileDescriptor(::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (output.fd_) return output;
  if (errno != ENOENT) return error_of(file);
  output.file_ = os::follow_links(file);
  // Removed again until there is something to read in it: others may wait for the file to appear.
  if (!make_file(output.file_) || unlink(output.file_.c_str()) != 0) return error_of(file);
  return output;
}

// Opens it and makes room; then nothing has been overwritten.
Status Output::prepare(std::size_t bytes) {
  is_new_ = !fd_;
  if (is_new_) fd_ = make_file(file_);
  if (!fd_ && errno == EEXIST) {  // another program's, meanwhile: as if it had been there before
    is_new_ = false;
    fd_ = os::FileDescriptor(::open(file_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  }
  if (!fd_) return error_of(file_);
  wait_for_others(fd_.get());
  return reserve(fd_.get(), bytes, file_);
}

void Output::discard() {
  if (is_new_) unlink(file_.c_str());
  is_new_ = false;
}

bool Output::keeps_nothing() const {
  std::error_code unknown;
  return file_ == "-" || !std::filesystem::is_regular_file(file_, unknown);
}

Status Output::write(std::string_view text) {
  return write_together({{this, std::string(text)}});
}

Status Output::write_json(const nlohmann::json& value) {
  return write(json_line(value));
}

std::string json_line(const nlohmann::json& value) {
  // Bytes that are no UTF-8 (a path may have any) become a replacement character.
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status write_together(std::vector<OutputText> texts) {
  std::erase_if(texts, [](const OutputText& each) { return each.output->file_.empty(); });
  const auto write_each = [&]() -> Status {
    for (const OutputText& each : texts) {
      if (each.output->is_file()) CACHALOT_TRY(each.output->prepare(each.text.size()));
    }
    // Not std::ranges: clang 14 does not compile GCC 12's.
    std::stable_partition(texts.begin(), texts.end(),
                          [](const OutputText& each) { return each.output->keeps_nothing(); });
    for (const OutputText& each : texts) {
      CACHALOT_TRY(each.output->is_file() ? each.output->write_all(each.text)
                                          : write_stdout(each.text));
    }
    return {};
  };
  const Status written = write_each();
  if (!written) {
    for (const OutputText& each : texts) each.output->discard();
  }
  return written;
}

Result<ResultFolder> ResultFolder::make(const char* flag, const std::string& folder) {
  ResultFolder made;
  if (folder.empty()) return made;
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::path each = fs::path(folder); !each.empty() && !fs::exists(each, error);
       each = each.parent_path()) {
    if (each.has_filename()) made.new_.push_back(each);
  }
  fs::create_directories(folder, error);
  if (!error) return made;
  return Error::make(Code::kInvalidArgument, "%s: \"%.120s\": %s, expected a folder", flag,
                     folder.c_str(), error.message().c_str());
}

ResultFolder::~ResultFolder() {
  for (const std::string& each : new_) {
    if (rmdir(each.c_str()) != 0) return;
  }
}

Status Output::write_all(std::string_view text) {
  const auto bytes = static_cast<off_t>(text.size());
  while (!text.empty()) {
    const ssize_t n = ::write(fd_.get(), text.data(), text.size());
    if (n < 0 && errno != EINTR) return error_of(file_);
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  // What was longer before. EINVAL: a pipe or a device, which keeps nothing.
  if (ftruncate(fd_.get(), bytes) != 0 && errno != EINVAL) return error_of(file_);
  // Some file systems say only now that there is no space.
  if (::close(fd_.release()) != 0) return error_of(file_);
  return {};
}

}  // namespace cachalot::apps
