// A secret of 32 bytes out of a file: the key of a storage, or that of a cluster.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <string>

namespace cachalot::os {

struct SecretKey {
  std::array<unsigned char, 32> bytes{};

  // A file of 32 bytes, or of 64 hexadecimal digits and perhaps a newline.
  // @param  subject  what the file is, for messages: "cluster key file"
  // @errors kNotFound, kPermission: the process may not read it, or others may; kInvalidArgument: another content
  static Result<SecretKey> read(const char* subject, const std::string& path);
};

}  // namespace cachalot::os
