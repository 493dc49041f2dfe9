// `cachalot pool blocks`: what a pool publishes.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "block_hash/block_hash.h"
#include "command.h"
#include "output.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"
#include "pool_flags.h"

namespace cachalot::apps {
namespace {

struct ListOptions {
  Paths paths;
  std::string json;
};

// A block whose parent goes while the directory is read goes, too, and is left out.
nlohmann::json describe_blocks(const pool::Access& access) {
  std::vector<pool::Entry> entries;
  std::vector<std::uint32_t> entry_of(access.geometry.blocks, pool::kNoBlock);
  pool::for_each_published(access, [&](const pool::Entry& entry) {
    entry_of[entry.block] = static_cast<std::uint32_t>(entries.size());
    entries.push_back(entry);
  });
  const std::vector<BlockHash> namespaces = pool::read_namespaces(access);
  nlohmann::json blocks = nlohmann::json::array();
  std::vector<std::uint32_t> tokens;
  for (const pool::Entry& entry : entries) {
    nlohmann::json parent = nullptr;
    if (entry.parent != pool::kNoBlock) {
      if (entry_of[entry.parent] == pool::kNoBlock) continue;
      const pool::Entry& above = entries[entry_of[entry.parent]];
      parent = block_hash::to_hex({above.hash_low, above.hash_high});
    }
    const BlockHash hash{entry.hash_low, entry.hash_high};
    pool::read_note(access, {entry.block, entry.generation}, hash, tokens);
    const bool is_known = entry.namespace_id - 1 < namespaces.size();
    blocks.push_back(
        {{"hash", block_hash::to_hex(hash)},
         {"namespace", is_known ? block_hash::to_hex(namespaces[entry.namespace_id - 1]) : ""},
         {"parent", parent},
         {"bytes", entry.length},
         {"tokens", tokens}});
  }
  return blocks;
}

Status list(const ListOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  CACHALOT_TRY_ASSIGN(const pool::Pool pool, open_pool_to_read(options.paths));
  const nlohmann::json blocks = describe_blocks(pool.access());
  std::FILE* const out = human_output(options.json);
  for (const nlohmann::json& block : blocks) {
    std::fprintf(out, "%s namespace=%s parent=%s bytes=%u tokens=%zu\n",
                 block["hash"].get<std::string>().c_str(),
                 block["namespace"].get<std::string>().c_str(),
                 block["parent"].is_null() ? "-" : block["parent"].get<std::string>().c_str(),
                 block["bytes"].get<std::uint32_t>(), block["tokens"].size());
  }
  return json.write_json({{"blocks", blocks}});
}

}  // namespace

void add_pool_blocks(Command& pool, Chosen& chosen) {
  const auto options = std::make_shared<ListOptions>();
  Command* const command =
      pool.add_subcommand("blocks", "lists the published blocks: parents and tokens");
  add_pool_flag(*command, options->paths);
  command->add_option("--json", options->json, "write the list to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool blocks /dev/shm/kv --json -");
  command->callback([options, &chosen] {
    chosen.run = [options] {
      const Status status = list(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
}

}  // namespace cachalot::apps
