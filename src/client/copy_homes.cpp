#include "client/copy_homes.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "os/topology.h"

namespace cachalot::client {
namespace {

using Cores = std::vector<int>;

// "0=0-31;1=32-63", with each of these devices once.
std::optional<std::vector<Cores>> parse_map(std::string_view text, std::uint32_t devices) {
  std::vector<Cores> of(devices);
  for (std::uint32_t given = 0; given < devices; ++given) {
    std::uint32_t device = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (error != std::errc() || device >= devices || !of[device].empty() || !text.starts_with('='))
      return std::nullopt;
    text.remove_prefix(1);
    const std::size_t length = std::min(text.find(';'), text.size());
    std::optional<Cores> cores = os::parse_cores(text.substr(0, length));
    if (!cores) return std::nullopt;
    of[device] = *std::move(cores);
    text.remove_prefix(length);
    if (text.starts_with(';') == (given + 1 == devices)) return std::nullopt;
    if (!text.empty()) text.remove_prefix(1);
  }
  return of;
}

// Of all of these pages; nothing: they lie on several, as where a pool was made with numactl --interleave.
std::optional<int> node_of_pages(const std::byte* data, std::uint64_t bytes) {
  constexpr std::uint64_t kPages = 8;
  const std::optional<int> first = os::node_of_page(data);
  for (std::uint64_t i = 1; first && i < kPages; ++i) {
    if (os::node_of_page(data + bytes / kPages * i) != first) return std::nullopt;
  }
  return first;
}

}  // namespace

std::vector<int> cores_near(os::FileKind kind, const std::string& path, const std::byte* data,
                            std::uint64_t bytes, const std::string& root) {
  std::error_code ignored;
  const std::optional<int> node =
      kind == os::FileKind::kDevdax
          ? os::node_of_dax(std::filesystem::weakly_canonical(path, ignored).filename(), root)
          : node_of_pages(data, bytes);
  if (!node) return {};
  const std::optional<int> with_cores = os::nearest_node_with_cores(*node, root);
  return with_cores ? os::cores_of_node(*with_cores, root) : Cores();
}

Result<std::shared_ptr<const kv::CopyHomes>> find_copy_homes(const std::string& copy_cpus,
                                                             const pool::Pool& pool,
                                                             const std::string& root) {
  std::shared_ptr<const kv::CopyHomes> anywhere;
  const bool finds = copy_cpus == "auto";
  // Where there is one node, all cores are as near as others.
  if (copy_cpus.empty() || (finds && os::nodes_with_cores(root).size() <= 1)) return anywhere;
  const memory::DeviceSet& devices = pool.devices();
  std::optional<std::vector<Cores>> of;
  if (finds) {
    const memory::Interleave& data = pool.access().interleave;
    of.emplace();
    for (std::uint32_t i = 0; i < devices.count(); ++i) {
      of->push_back(cores_near(devices.file(i).kind(), devices.file(i).file_path(),
                               devices.base(i) + data.data_start(i),
                               devices.bytes_each() - data.data_start(i), root));
    }
  } else {
    of = parse_map(copy_cpus, devices.count());
  }
  if (!of) {
    return Error::make(
        Code::kInvalidArgument,
        "copy_cpus: '%.100s': expected \"\", auto, or the CPUs of each of the pool's "
        "%u device(s), as 0=0-31;1=32-63",
        copy_cpus.c_str(), devices.count());
  }
  auto homes = std::make_shared<kv::CopyHomes>();
  for (std::uint32_t i = 0; i < devices.count(); ++i)
    homes->add(devices.base(i), devices.bytes_each(), (*of)[i]);
  // No device's node is known.
  if (homes->count() == 1 && homes->cores(0).empty()) return anywhere;
  return std::shared_ptr<const kv::CopyHomes>(std::move(homes));
}

}  // namespace cachalot::client
