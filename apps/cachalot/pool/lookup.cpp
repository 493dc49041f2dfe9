// `cachalot lookup KEY…`: how much of a chain of blocks is in the pool.

#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/words.h"
#include "client_flags.h"
#include "command.h"
#include "output.h"

namespace cachalot::apps {
namespace {

struct LookupOptions {
  ClientFlags client;
  std::vector<std::string> keys;
  bool asks_storage = false;
  std::string json;
};

constexpr std::uint64_t kStorageNs = 5'000'000'000;

struct Looked {
  std::vector<BlockHash> hashes;
  std::vector<pool::Found> found;  // the prefix that is there
  std::size_t stored = 0;          // blocks after it that the storage behind the pool has
};

Result<Looked> look_up(const LookupOptions& options) {
  Looked looked;
  for (const std::string& key : options.keys) {
    CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(key, options.client.fingerprint));
    looked.hashes.push_back(hash);
  }
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  looked.found.resize(looked.hashes.size());
  looked.found.resize(attached.client->lookup(looked.hashes, looked.found));
  const std::span<const BlockHash> rest = std::span(looked.hashes).subspan(looked.found.size());
  if (rest.empty()) return looked;
  if (!options.asks_storage) {
    if (attached.client->namespace_id() == 0) return looked;
    CACHALOT_TRY_ASSIGN(
        const pool::StorageAnswer answer,
        of_keeper(attached,
                  attached.client->requests().ask_storage(
                      rest.first(std::min<std::size_t>(rest.size(), pool::kMaxStorageHashes)), 0)));
    looked.stored = answer.stored;
    return looked;
  }
  const std::uint64_t until_ns = base::SteadyClock::read() + kStorageNs;
  CACHALOT_TRY_ASSIGN(looked.stored,
                      of_keeper(attached, ask_storage(attached.client.client(), rest, until_ns)));
  return looked;
}

nlohmann::json describe_lookup(const LookupOptions& options, const Looked& looked) {
  nlohmann::json keys = nlohmann::json::array();
  std::FILE* const out = human_output(options.json);
  for (std::size_t i = 0; i < options.keys.size(); ++i) {
    const std::string hex = block_hash::to_hex(looked.hashes[i]);
    const bool is_hit = i < looked.found.size();
    nlohmann::json row = {{"key", options.keys[i]}, {"hash", hex}, {"hit", is_hit}};
    if (is_hit) {
      const pool::Entry& entry = looked.found[i].entry;
      row["bytes"] = entry.length;
      std::fprintf(out, "hit   %s  %s  %u bytes\n", hex.c_str(),
                   base::printable(options.keys[i]).c_str(), entry.length);
    } else if (i < looked.found.size() + looked.stored) {
      row["stored"] = true;
      std::fprintf(out, "stored %s  %s\n", hex.c_str(), base::printable(options.keys[i]).c_str());
    } else {
      std::fprintf(out, "miss  %s  %s\n", hex.c_str(), base::printable(options.keys[i]).c_str());
    }
    keys.push_back(std::move(row));
  }
  return {{"looked_up", options.keys.size()},
          {"hit_blocks", looked.found.size()},
          {"stored_blocks", looked.stored},
          {"keys", keys}};
}

int run_lookup(const LookupOptions& options) {
  Result<Output> json = open_output("--json", options.json, options.client.paths);
  if (!json) return fail(json.error());
  const Result<Looked> looked = look_up(options);
  if (!looked) return fail(looked.error());
  const Status written = json->write_json(describe_lookup(options, *looked));
  if (!written) return fail(written.error());
  return looked->found.empty() && !(options.asks_storage && looked->stored != 0) ? kExitFault
                                                                                 : kExitDone;
}

}  // namespace

void add_lookup(Command& app, Chosen& chosen) {
  auto options = std::make_shared<LookupOptions>();
  options->client.reads_only = true;
  Command* const command = app.add_subcommand("lookup",
                                              "finds the longest prefix of a chain of blocks in a "
                                              "served pool (with --storage: or behind it); "
                                              "exit code 1 if none");
  command
      ->add_option("key", options->keys,
                   std::string("the blocks of a chain, from its root on; all blocks after the "
                               "first miss are misses. ") +
                       kKeyHelp)
      ->required()
      ->expected(1, -1)
      ->type_name("KEY");
  command->add_flag("--storage", options->asks_storage,
                    "also ask storage that other hosts write, too; waits 5 s for it at most");
  add_client_flags(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot lookup chapter-1 chapter-2 --pool /dev/shm/kv");
  command->callback(
      [options, &chosen] { chosen.run = [options] { return run_lookup(*options); }; });
}

}  // namespace cachalot::apps
