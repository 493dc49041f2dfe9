#include "transfer/ucx/listening.h"

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "os/process.h"
#include "transfer/ucx/open_ucx.h"

namespace cachalot::transfer {
namespace {

Result<std::string> own_socket(const std::string& name) {
  CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016" PRIx64, uuid.low);
  // A socket's name has 107 bytes at most.
  return "unix:@cachalot-" + name.substr(0, 60) + "-" + hex;
}

}  // namespace

Result<Listening> make_listening(const std::string& name, std::span<const std::string> given) {
  Listening listening;
  for (const std::string& address : given) {
    if (address.starts_with("ucx:") && listening.transports.empty()) {
      CACHALOT_TRY_ASSIGN(std::unique_ptr<Transport> ucx, open_ucx({}));
      listening.transports.push_back(std::move(ucx));
    }
    if (address != "auto") {
      listening.addresses.push_back(address);
      continue;
    }
    CACHALOT_TRY_ASSIGN(std::string socket, own_socket(name));
    listening.addresses.push_back(std::move(socket));
  }
  return listening;
}

Result<std::optional<os::SecretKey>> read_cluster_key(const std::string& path,
                                                      std::span<const std::string> listen) {
  if (path.empty()) return std::optional<os::SecretKey>();
  for (const std::string& address : listen) {
    if (!address.starts_with("ucx:")) continue;
    return Error::make(
        Code::kInvalidArgument,
        "address \"%.80s\": UCX links are not encrypted; expected tcp: or unix: with "
        "a cluster key",
        address.c_str());
  }
  CACHALOT_TRY_ASSIGN(const os::SecretKey key, os::SecretKey::read("cluster key file", path));
  return std::optional(key);
}

}  // namespace cachalot::transfer
