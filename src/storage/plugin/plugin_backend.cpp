#include "storage/plugin/plugin_backend.h"

#include <cachalot/storage_plugin.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <string_view>

#include "storage/value.h"

namespace cachalot::storage {
namespace {

static_assert(sizeof(ObjectKey) == CACHALOT_STORAGE_KEY_BYTES);
static_assert(kHeadBytes == CACHALOT_STORAGE_HEAD_BYTES);

using Table = cachalot_storage_plugin_table;
constexpr const char* kFunction = "cachalot_storage_plugin";
using Message = cachalot_storage_message;

Code code_of(std::int32_t result) {
  switch (result) {
    case CACHALOT_STORAGE_NOT_FOUND:
      return Code::kNotFound;
    case CACHALOT_STORAGE_CORRUPT:
      return Code::kCorrupt;
    case CACHALOT_STORAGE_INVALID_ARGUMENT:
      return Code::kInvalidArgument;
    case CACHALOT_STORAGE_NO_SPACE:
      return Code::kNoSpace;
    case CACHALOT_STORAGE_PERMISSION:
      return Code::kPermission;
    case CACHALOT_STORAGE_TIMEOUT:
      return Code::kTimeout;
    default:
      return Code::kIo;
  }
}

Status status_of(const std::string& name, std::int32_t result, const Message& why) {
  if (result == CACHALOT_STORAGE_OK) return {};
  const std::size_t bytes = strnlen(why.text, sizeof why.text);
  return Error::make(code_of(result), "storage plug-in %.30s: %.*s", name.c_str(),
                     static_cast<int>(bytes == 0 ? 9 : bytes), bytes == 0 ? "no reason" : why.text);
}

cachalot_storage_key key_of(const ObjectKey& key) {
  cachalot_storage_key bytes;
  std::memcpy(bytes.bytes, &key, sizeof bytes);
  return bytes;
}
std::vector<cachalot_storage_key> keys_of(std::span<const ObjectKey> keys) {
  std::vector<cachalot_storage_key> all;
  for (const ObjectKey& key : keys) all.push_back(key_of(key));
  return all;
}

struct Unload {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Unload>;

class PluginBackend final : public Backend {
 public:
  PluginBackend(Library library, const Table& table, void* storage)
      : traits_{.name = table.name, .align_bytes = 1, .is_shared = table.is_shared != 0},
        library_(std::move(library)),
        table_(table),
        storage_(storage) {}
  ~PluginBackend() override { table_.close(storage_); }

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override;
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override;
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override;
  Status list(const Lister& each, std::uint64_t deadline_ns) override;

 private:
  const BackendTraits traits_;
  const Library library_;  // outlives the storage
  const Table& table_;
  void* const storage_;
};

Status PluginBackend::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                             std::uint64_t deadline_ns) {
  const std::vector<cachalot_storage_key> names = keys_of(keys);
  std::vector<unsigned char> answers(keys.size());
  Message why{};
  CACHALOT_TRY(status_of(
      traits_.name,
      table_.exists(storage_, names.data(), names.size(), answers.data(), deadline_ns, &why), why));
  std::transform(answers.begin(), answers.end(), is_there.begin(),
                 [](unsigned char answer) { return answer != 0; });
  return {};
}

Status PluginBackend::remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) {
  const std::vector<cachalot_storage_key> names = keys_of(keys);
  Message why{};
  return status_of(traits_.name,
                   table_.remove(storage_, names.data(), names.size(), deadline_ns, &why), why);
}

Status PluginBackend::get(std::span<Get> gets, std::uint64_t deadline_ns) {
  std::vector<ValueSink> sinks;
  std::vector<cachalot_storage_get> items;
  sinks.reserve(gets.size());
  for (Get& get : gets) {
    get.status = {};
    sinks.emplace_back(get);
    items.push_back({key_of(get.key), &sinks.back(), CACHALOT_STORAGE_OK});
  }
  const cachalot_storage_take take = [](void* to, const void* data,
                                        std::uint64_t bytes) -> std::int32_t {
    return static_cast<ValueSink*>(to)->feed({static_cast<const std::byte*>(data), bytes}) ? 1 : 0;
  };
  Message why{};
  const std::int32_t whole =
      table_.get(storage_, items.data(), items.size(), take, deadline_ns, &why);
  for (std::size_t i = 0; i < gets.size(); ++i) {
    if (items[i].result != CACHALOT_STORAGE_OK) {
      gets[i].status = status_of(traits_.name, items[i].result, why);
    } else if (whole == CACHALOT_STORAGE_OK) {
      sinks[i].finish();
    }
  }
  return status_of(traits_.name, whole, why);
}

// By gets that take no more than the head.
Status PluginBackend::heads(std::span<const ObjectKey> keys,
                            std::span<std::optional<ObjectHead>> heads, std::uint64_t deadline_ns) {
  std::vector<std::string> starts(keys.size());
  std::vector<cachalot_storage_get> items;
  for (std::size_t i = 0; i < keys.size(); ++i)
    items.push_back({key_of(keys[i]), &starts[i], CACHALOT_STORAGE_OK});
  const cachalot_storage_take take = [](void* to, const void* data,
                                        std::uint64_t bytes) -> std::int32_t {
    std::string& start = *static_cast<std::string*>(to);
    start.append(static_cast<const char*>(data),
                 static_cast<std::size_t>(std::min(bytes, kHeadBytes - start.size())));
    return start.size() < kHeadBytes ? 1 : 0;
  };
  Message why{};
  CACHALOT_TRY(status_of(traits_.name,
                         table_.get(storage_, items.data(), items.size(), take, deadline_ns, &why),
                         why));
  Status failure;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    heads[i].reset();
    const std::int32_t result = items[i].result;
    const Result<ObjectHead> head = head_of_value(std::as_bytes(std::span(starts[i])));
    if (result == CACHALOT_STORAGE_OK && head && check_head(*head, keys[i])) heads[i] = *head;
    const bool is_its_own = result == CACHALOT_STORAGE_OK || result == CACHALOT_STORAGE_NOT_FOUND ||
                            result == CACHALOT_STORAGE_CORRUPT;
    if (!is_its_own) failure = status_of(traits_.name, result, why);
  }
  return failure;
}

Status PluginBackend::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  std::vector<std::vector<cachalot_storage_piece>> pieces(puts.size());
  std::vector<cachalot_storage_put> items;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    pieces[i].push_back({&puts[i].head, kHeadBytes});
    for (const Bytes& piece : puts[i].body) pieces[i].push_back({piece.data(), piece.size()});
    items.push_back({key_of(puts[i].head.key), pieces[i].data(), pieces[i].size(),
                     value_bytes(puts[i].head), CACHALOT_STORAGE_OK});
  }
  Message why{};
  const std::int32_t whole = table_.put(storage_, items.data(), items.size(), deadline_ns, &why);
  for (std::size_t i = 0; i < puts.size(); ++i)
    puts[i].status = status_of(traits_.name, items[i].result, why);
  return status_of(traits_.name, whole, why);
}

Status PluginBackend::list(const Lister& each, std::uint64_t deadline_ns) {
  const cachalot_storage_each take = [](void* to, const void* bytes) -> std::int32_t {
    const Result<ObjectHead> head =
        head_of_value({static_cast<const std::byte*>(bytes), kHeadBytes});
    if (!head || !check_head(*head, head->key)) return 1;
    return (*static_cast<const Lister*>(to))(*head) ? 1 : 0;
  };
  Message why{};
  return status_of(traits_.name,
                   table_.list(storage_, take, const_cast<Lister*>(&each), deadline_ns, &why), why);
}

// --- Loading ---------------------------------------------------------------------------------------

Status check_table(const std::string& path, const Table* table) {
  if (table == nullptr) {
    return Error::make(Code::kInvalidArgument, "storage plug-in %.120s: its table is null",
                       path.c_str());
  }
  if (table->version != CACHALOT_STORAGE_PLUGIN_VERSION) {
    return Error::make(Code::kVersionMismatch, "storage plug-in %.120s: version %u, expected %u",
                       path.c_str(), table->version, CACHALOT_STORAGE_PLUGIN_VERSION);
  }
  if (table->struct_bytes < sizeof(Table)) {
    return Error::make(Code::kVersionMismatch,
                       "storage plug-in %.120s: a table of %" PRIu64 " bytes, expected %zu",
                       path.c_str(), table->struct_bytes, sizeof(Table));
  }
  const std::string_view name = table->name == nullptr ? "" : table->name;
  const bool is_name =
      !name.empty() && name.size() <= 30 &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
  const bool has_all = table->open != nullptr && table->close != nullptr &&
                       table->exists != nullptr && table->get != nullptr && table->put != nullptr &&
                       table->remove != nullptr && table->list != nullptr;
  if (is_name && has_all) return {};
  return Error::make(Code::kInvalidArgument, "storage plug-in %.120s: its table has %s",
                     path.c_str(),
                     has_all ? "no name of lower-case letters, digits and _" : "null functions");
}

Result<Library> load(const std::string& path) {
  if (::access(path.c_str(), R_OK) != 0)
    return Error::from_errno(errno, "storage plug-in %.160s", path.c_str());
  // A path without a slash would be searched for elsewhere.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  Library library(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library) return library;
  const char* const why = ::dlerror();
  return Error::make(Code::kInvalidArgument, "storage plug-in %.80s: not a shared library: %.120s",
                     path.c_str(), why == nullptr ? "" : why);
}

}  // namespace

Result<std::unique_ptr<Backend>> open_plugin_backend(const std::string& path,
                                                     const std::string& options) {
  CACHALOT_TRY_ASSIGN(Library library, load(path));
  const auto function =
      reinterpret_cast<decltype(&cachalot_storage_plugin)>(::dlsym(library.get(), kFunction));
  if (function == nullptr) {
    return Error::make(Code::kInvalidArgument, "storage plug-in %.120s: does not export %s",
                       path.c_str(), kFunction);
  }
  const Table* const table = function();
  CACHALOT_TRY(check_table(path, table));
  void* storage = nullptr;
  Message why{};
  CACHALOT_TRY(status_of(table->name, table->open(options.c_str(), &storage, &why), why));
  return std::unique_ptr<Backend>(
      std::make_unique<PluginBackend>(std::move(library), *table, storage));
}

}  // namespace cachalot::storage
