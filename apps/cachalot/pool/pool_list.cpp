#include "pool_list.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "keeper_hangs.h"
#include "os/file_descriptor.h"
#include "output.h"
#include "pool/format/format.h"
#include "pool_flags.h"
#include "pool_report.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

struct PoolListOptions {
  std::string folder = kPoolFolder;
  std::string json;
};

bool is_first_device(const std::string& path) {
  const os::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  pool::HeaderLine header{};
  return file && pread(file.get(), &header, sizeof header, 0) == sizeof header &&
         header.magic == pool::kMagic && header.device_index == 0;
}

// Files that may be pools: this user cannot tell.
std::uint64_t count_unreadable(const std::string& folder) {
  std::uint64_t unreadable = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored) && access(at->path().c_str(), R_OK) != 0 && errno == EACCES)
      ++unreadable;
  }
  return unreadable;
}

std::string note_of(std::uint64_t unreadable) {
  return base::counted(unreadable, "file") +
         " that this user may not read: pools of other users may be among them";
}

void print_pool_row(const Json& pool) {
  const std::string path = base::printable(pool["pool"].get<std::string>());
  if (pool.contains("error")) {
    std::fprintf(stdout, "%-32s %s\n", path.c_str(),
                 base::printable(pool["error"].get<std::string>()).c_str());
    return;
  }
  const auto number = [&](const char* name) { return pool[name].get<std::uint64_t>(); };
  std::fprintf(stdout, "%-32s %-8s %12s %12s %10s %8s\n", path.c_str(),
               pool["hangs"].get<bool>() ? "hangs" : pool["keeper"].get<std::string>().c_str(),
               bytes_text(number("capacity_bytes")).c_str(),
               bytes_text(number("live_blocks") * number("block_bytes")).c_str(),
               bytes_text(number("block_bytes")).c_str(),
               base::grouped(number("attached")).c_str());
}

Json describe(const std::string& path) {
  const Result<pool::Pool> pool = open_pool_to_read({path});
  if (!pool) return {{"pool", path}, {"error", pool.error().message}};
  const Json all = describe_pool(*pool, keeper_hangs(*pool));
  Json row = {{"pool", path},
              {"keeper", all["keeper"]["state"]},
              {"hangs", all["keeper"]["hangs"]},
              {"capacity_bytes", all["geometry"]["capacity_bytes"]},
              {"block_bytes", all["geometry"]["block_bytes"]},
              {"live_blocks", 0},
              {"attached", all["attached"].size()},
              {"hit_rate", all["totals"]["hit_rate"]}};
  if (all.contains("accounting")) row["live_blocks"] = all["accounting"]["live_blocks"];
  return row;
}

Status list_pools(const PoolListOptions& options) {
  CACHALOT_TRY_ASSIGN(Output output, Output::open(options.json));
  std::error_code error;
  if (!std::filesystem::is_directory(options.folder, error)) {
    return Error::make(Code::kInvalidArgument, "%.200s: is no folder, expected one with pools",
                       options.folder.c_str());
  }
  const std::uint64_t unreadable = count_unreadable(options.folder);
  Json pools = Json::array();
  for (const std::string& path : find_pools(options.folder)) pools.push_back(describe(path));
  if (options.json != "-") {
    if (!pools.empty())
      std::fprintf(stdout, "%-32s %-8s %12s %12s %10s %8s\n", "pool", "keeper", "capacity",
                   "in use", "block", "clients");
    for (const Json& pool : pools) print_pool_row(pool);
    if (pools.empty())
      std::fprintf(stdout, "no pool in %s\n", base::printable(options.folder).c_str());
    if (unreadable != 0) std::fprintf(stdout, "%s\n", note_of(unreadable).c_str());
  }
  return output.write_json({{"pools", pools}, {"unreadable_files", unreadable}});
}

}  // namespace

std::vector<std::string> find_pools(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored) || at->is_symlink(ignored)) continue;
    const std::string path = at->path().string();
    if (is_first_device(path)) found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string unreadable_note(const std::string& folder) {
  const std::uint64_t unreadable = count_unreadable(folder);
  return unreadable == 0 ? "" : note_of(unreadable);
}

void add_pool_list(Command& pool, Chosen& chosen) {
  Command* const command = pool.add_subcommand("list", "shows the pools of this machine");
  const auto options = std::make_shared<PoolListOptions>();
  command->add_option("folder", options->folder, "where to look")->capture_default_str();
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool list");
  command->callback([options, &chosen] {
    chosen.run = [options] {
      const Status status = list_pools(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
}

}  // namespace cachalot::apps
