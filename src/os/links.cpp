#include "os/links.h"

#include <filesystem>

namespace cachalot::os {

std::string follow_links(const std::string& file) {
  constexpr int kMost = 40;  // as the kernel; more are a ring
  std::filesystem::path at = file;
  std::error_code refused;
  for (int i = 0; i < kMost && std::filesystem::is_symlink(at, refused); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(at, refused);
    if (refused) break;
    at = at.parent_path() / target;  // an absolute one stands alone
  }
  return at;
}

}  // namespace cachalot::os
