// Whether another user may have put what a name leads to, or may change it.
//
// Looked at is what is open, so it does not matter what a name, or a symbolic link in a folder that every user may
// write to, leads to by then. Folders above it are not looked at.
#pragma once

#include <cachalot/result.h>
#include <sys/stat.h>

namespace cachalot::os {

// OK: it belongs to this process's user or to root, and no others may write to it.
// @param writers     of the mode: S_IWOTH, or S_IWGRP | S_IWOTH where the group counts as others
// @param shown       what it is and its path, for the message
// @param allowed_by  the option that uses it all the same, for the message
// @errors kPermission: it is not trusted
Status check_owner(const struct stat& status, unsigned writers, const char* shown,
                   const char* allowed_by);

}  // namespace cachalot::os
