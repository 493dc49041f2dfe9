// Keeps nothing: every put succeeds, every get is a miss. For measuring what storage costs without its I/O.
#include <algorithm>

#include "storage/backends.h"
#include "storage/open_kinds.h"

namespace cachalot::storage {
namespace {

class NullBackend final : public Backend {
 public:
  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey>, std::span<bool> is_there, std::uint64_t) override {
    std::fill(is_there.begin(), is_there.end(), false);
    return {};
  }
  Status get(std::span<Get> gets, std::uint64_t) override {
    for (Get& get : gets)
      get.status = Error::make(Code::kNotFound, "storage: null keeps no objects");
    return {};
  }
  Status put(std::span<Put> puts, std::uint64_t) override {
    for (Put& put : puts) put.status = {};
    return {};
  }
  Status remove(std::span<const ObjectKey>, std::uint64_t) override { return {}; }
  Status list(const Lister&, std::uint64_t) override { return {}; }

 private:
  BackendTraits traits_{.name = "null", .keeps_objects = false};
};

}  // namespace

OpenedBackend open_null(const StorageUri& uri, const BackendSecrets&, Opening) {
  if (uri.place.empty()) return std::unique_ptr<Backend>(std::make_unique<NullBackend>());
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": expected nothing after null:", uri.shown.c_str());
}

}  // namespace cachalot::storage
