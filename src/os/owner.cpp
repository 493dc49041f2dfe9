#include "os/owner.h"

#include <unistd.h>

#include <string>

namespace cachalot::os {

Status check_owner(const struct stat& status, unsigned writers, const char* shown,
                   const char* allowed_by) {
  const uid_t user = geteuid();
  const bool is_owner_trusted = status.st_uid == user || status.st_uid == 0;
  if (is_owner_trusted && (status.st_mode & writers) == 0) return {};
  const std::string trusted = user == 0 ? "root" : "root or user " + std::to_string(user);
  return Error::make(Code::kPermission,
                     "%.90s: belongs to user %u, mode %04o: expected a %s of %s that others may "
                     "not write to (%s)",
                     shown, status.st_uid, status.st_mode & 07777u,
                     S_ISDIR(status.st_mode) ? "directory" : "file", trusted.c_str(), allowed_by);
}

}  // namespace cachalot::os
