// `cachalot put KEY`: stores one block.

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "client_flags.h"
#include "command.h"
#include "output.h"

namespace cachalot::apps {
namespace {

struct PutOptions {
  ClientFlags client;
  std::string key;
  std::string parent;
  std::string file = "-";
  std::string json;
};

using FileHandle = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

int leave_open(std::FILE*) {
  return 0;
}

// Reads all of the file, which must be 1 to `most_bytes` long.
Result<std::vector<std::byte>> read_bytes(const std::string& file, std::uint64_t most_bytes) {
  const char* const name = file == "-" ? "stdin" : file.c_str();
  const FileHandle in(file == "-" ? stdin : std::fopen(name, "rbe"),
                      file == "-" ? leave_open : std::fclose);
  if (in == nullptr) {
    Error error = Error::from_errno(errno, "%.150s: opening", name);
    if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
    return error;
  }
  // One byte more than fits says that it does not fit.
  std::vector<std::byte> bytes(most_bytes + 1);
  const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), in.get());
  if (std::ferror(in.get()) != 0) return Error::from_errno(errno, "%.150s: reading", name);
  if (count == 0) {
    return Error::make(Code::kBadInput, "%.150s: is empty, a block has at least 1 byte", name);
  }
  if (count > most_bytes) {
    return Error::make(Code::kBadInput,
                       "%.150s: is larger than a block of this pool, %" PRIu64 " bytes", name,
                       most_bytes);
  }
  bytes.resize(count);
  return bytes;
}

// @param had_parent  it was in the pool before this block was put
Status check_verdict(pool::Verdict verdict, const PutOptions& options, bool had_parent) {
  switch (verdict) {
    case pool::Verdict::kCommitted:
    case pool::Verdict::kDuplicate:
      return {};
    case pool::Verdict::kNoRoom:
      return Error::make(Code::kNoSpace, "the pool is full and nothing in it can be evicted");
    case pool::Verdict::kNoParent:
      if (had_parent) {
        return Error::make(Code::kNoSpace,
                           "the pool is full: the parent %.60s was evicted to make room (more "
                           "spare blocks avoid this: `pool create --spare-blocks`)",
                           options.parent.c_str());
      }
      return Error::make(Code::kRefused, "the parent %.100s is not in the pool",
                         options.parent.c_str());
    case pool::Verdict::kBadItem:
      return Error::make(Code::kInvalidArgument, "the keeper rejected the block");
    case pool::Verdict::kNotHeld:
      break;
  }
  return Error::make(Code::kStale, "the keeper has taken the block back, try again");
}

// Of the block that was there already, and may have another size than what was put. Nothing if it was
// evicted meanwhile.
std::optional<std::uint64_t> bytes_there(pool::Client& client, const BlockHash& hash) {
  pool::Found found;
  if (client.lookup({&hash, 1}, {&found, 1}) == 0) return {};
  return found.entry.length;
}

Status report(const PutOptions& options, Output& json, const BlockHash& hash, bool is_new,
              std::optional<std::uint64_t> bytes) {
  const std::string hex = block_hash::to_hex(hash);
  const std::string size = bytes ? std::to_string(*bytes) + " bytes" : "evicted meanwhile";
  std::fprintf(human_output(options.json), "%s %s %s\n", is_new ? "stored" : "present", hex.c_str(),
               size.c_str());
  return json.write_json({{"key", options.key},
                          {"hash", hex},
                          {"bytes", bytes ? nlohmann::json(*bytes) : nlohmann::json()},
                          {"stored", is_new}});
}

Status put(const PutOptions& options) {
  const std::string& fingerprint = options.client.fingerprint;
  const Paths& paths = options.client.paths;
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(options.key, fingerprint));
  BlockHash parent;
  if (!options.parent.empty()) {
    CACHALOT_TRY_ASSIGN(parent, parse_key(options.parent, fingerprint));
  }
  CACHALOT_TRY(check_is_no_input("--json", options.json, {&options.file, 1}));
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY_ASSIGN(const std::vector<std::byte> bytes,
                      read_bytes(options.file, attached.pool.access().geometry.block_bytes));
  pool::Found found;
  const bool had_parent =
      !options.parent.empty() && attached.client->lookup({&parent, 1}, {&found, 1}) == 1;
  const pool::PutItem item{hash, bytes};
  pool::Verdict verdict{};
  CACHALOT_TRY(of_keeper(attached, attached.client->put(options.parent.empty() ? nullptr : &parent,
                                                        {&item, 1}, {&verdict, 1})));
  CACHALOT_TRY(of_pool(paths, check_verdict(verdict, options, had_parent)));
  const bool is_new = verdict == pool::Verdict::kCommitted;
  return report(options, json, hash, is_new,
                is_new ? bytes.size() : bytes_there(attached.client.client(), hash));
}

int run_put(const PutOptions& options) {
  const Status status = put(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_put(Command& app, Chosen& chosen) {
  auto options = std::make_shared<PutOptions>();
  Command* const command = app.add_subcommand("put", "stores one block in a served pool");
  command->add_option("key", options->key, kKeyHelp)->required()->type_name("KEY");
  command->add_option("--file", options->file, "the block's bytes; - for stdin")
      ->type_name("FILE")
      ->capture_default_str();
  command
      ->add_option("--parent", options->parent,
                   "the block before this one (default: none, the block is a root)")
      ->type_name("KEY");
  add_client_flags(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot put greeting --pool /dev/shm/kv --file block.bin");
  command->callback([options, &chosen] { chosen.run = [options] { return run_put(*options); }; });
}

}  // namespace cachalot::apps
