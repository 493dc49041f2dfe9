// A folder of a test's own, for files of given content; removed at the end, with what is mounted on it. Declare it before
// what uses its files.
#pragma once

#include <stdlib.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace cachalot::os {

class ScratchFolder {
 public:
  // @param parent  /dev/shm for a pool, /var/tmp for files that are read past the page cache
  explicit ScratchFolder(const std::string& parent = std::filesystem::temp_directory_path())
      : path_(parent + "/cachalot_test.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~ScratchFolder() {
    umount2(path_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // @return the file's path; folders before its name are made
  std::string write(const std::string& name, std::string_view text) const {
    const std::filesystem::path file = path(name);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  std::string path_;
};

}  // namespace cachalot::os
