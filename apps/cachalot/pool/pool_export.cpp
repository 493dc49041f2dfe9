// `cachalot pool export` and `pool import`: the blocks of a namespace in a file, from one pool to another.

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/words.h"
#include "block_hash/block_hash.h"
#include "client_flags.h"
#include "command.h"
#include "node/archive/export_file.h"
#include "output.h"
#include "pool_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct ExportFlags {
  Paths paths;
  std::string name;  // of the namespace, its id, or its digest
  std::string to;
  std::string json;
};

struct ImportFlags {
  ClientFlags client;
  std::string from;
  std::string json;
};

// The namespaces that NAME may mean: by name or as `put --namespace NAME`, by digest, else by id.
Result<node::ExportedNamespace> find_namespace(const pool::Pool& pool, const std::string& name) {
  const std::vector<pool::NamespaceName> all = pool.state().read_namespaces();
  const BlockHash digest = block_hash::make_namespace(name).digest;
  const auto matches = [&](auto&& is_it) {
    std::vector<node::ExportedNamespace> found;
    for (const pool::NamespaceName& one : all) {
      if (is_it(one)) found.push_back({one.id, one.digest, one.name});
    }
    return found;
  };
  std::vector<node::ExportedNamespace> found = matches([&](const pool::NamespaceName& one) {
    return one.digest == digest || one.name == name || block_hash::to_hex(one.digest) == name;
  });
  if (found.empty()) {
    found = matches([&](const pool::NamespaceName& one) { return std::to_string(one.id) == name; });
  }
  if (found.size() == 1) return found[0];
  std::string known;
  for (const pool::NamespaceName& one : all) {
    known += (known.empty() ? "" : ", ") + std::to_string(one.id) +
             (one.name.empty() ? "" : " (" + one.name.substr(0, 30) + ")");
  }
  return Error::make(
      Code::kNotFound, "--namespace: \"%.60s\" %s; the pool has %.100s", name.c_str(),
      found.empty() ? "is no namespace of the pool" : "is the name of several: give the id",
      known.empty() ? "none" : known.c_str());
}

Status export_blocks(const ExportFlags& flags) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", flags.json, flags.paths));
  CACHALOT_TRY(check_are_apart({{"--to", flags.to}, {"--json", flags.json}}));
  // A pipe would end with the look at it.
  if (!is_special(flags.to)) CACHALOT_TRY(open_output("--to", flags.to, flags.paths));
  CACHALOT_TRY_ASSIGN(const pool::Pool pool, open_pool_to_read(flags.paths));
  CACHALOT_TRY_ASSIGN(const node::ExportedNamespace space,
                      of_pool(flags.paths, find_namespace(pool, flags.name)));
  CACHALOT_TRY_ASSIGN(const node::ExportReport report,
                      node::export_namespace(pool.access(), space, flags.to));
  std::fprintf(
      is_stdout(flags.to) ? stderr : human_output(flags.json), "exported %s blocks, %s, to %s%s\n",
      base::grouped(report.blocks).c_str(), bytes_text(report.bytes).c_str(), flags.to.c_str(),
      report.skipped == 0
          ? ""
          : ("; skipped " + base::grouped(report.skipped) + " that were evicted or damaged")
                .c_str());
  return json.write_json({{"namespace", block_hash::to_hex(space.digest)},
                          {"name", space.name},
                          {"blocks", report.blocks},
                          {"bytes", report.bytes},
                          {"notes", report.notes},
                          {"skipped_blocks", report.skipped}});
}

Status import_blocks(ImportFlags flags) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", flags.json, flags.client.paths));
  CACHALOT_TRY_ASSIGN(node::ImportFile file, node::ImportFile::open(flags.from));
  flags.client.namespace_digest = file.digest();
  flags.client.fingerprint = file.name();
  CACHALOT_TRY_ASSIGN(Attached attached, attach(flags.client));
  pool::KeeperCounters counters;
  const std::uint64_t capacity = attached.pool.state().capacity_blocks();
  const bool is_counted = attached.pool.state().read_keeper_counters(counters);
  const std::uint64_t live = is_counted ? counters[pool::KeeperCounter::kLive] : 0;
  CACHALOT_TRY_ASSIGN(const node::ImportReport report,
                      of_keeper(attached, file.store(attached.client.client(),
                                                     capacity - std::min(live, capacity))));
  const std::uint64_t all = report.blocks + report.there + report.did_not_fit;
  std::fprintf(human_output(flags.json),
               "imported %s of %s blocks, %s; %s were there, %s did not fit\n",
               base::grouped(report.blocks).c_str(), base::grouped(all).c_str(),
               bytes_text(report.bytes).c_str(), base::grouped(report.there).c_str(),
               base::grouped(report.did_not_fit).c_str());
  CACHALOT_TRY(json.write_json({{"namespace", block_hash::to_hex(file.digest())},
                                {"name", file.name()},
                                {"blocks", report.blocks},
                                {"bytes", report.bytes},
                                {"notes", report.notes},
                                {"present_blocks", report.there},
                                {"unfit_blocks", report.did_not_fit},
                                {"dropped_notes", report.notes_too_long}}));
  if (all == 0 || report.did_not_fit != all) return {};
  return Error::make(Code::kNoSpace,
                     "--from: no block of %.120s fits into the pool, whose blocks have %" PRIu64
                     " bytes and of which %" PRIu64 " blocks are free",
                     flags.from.c_str(), attached.pool.access().geometry.block_bytes,
                     capacity - std::min(live, capacity));
}

int end_of(const Status& status) {
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_pool_export(Command& pool, Chosen& chosen) {
  const auto flags = std::make_shared<ExportFlags>();
  Command* const command =
      pool.add_subcommand("export", "writes the blocks of a namespace into a file");
  add_pool_flag(*command, flags->paths);
  command
      ->add_option("--namespace", flags->name,
                   "the namespace: its name, its id or its digest, from `cachalot pool info --all`")
      ->type_name("NAME")
      ->required();
  command->add_option("--to", flags->to, "the file, or stdout for -")
      ->type_name("FILE")
      ->required();
  command->add_option("--json", flags->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool export /dev/shm/kv --namespace default --to blocks.kv");
  command->callback(
      [flags, &chosen] { chosen.run = [flags] { return end_of(export_blocks(*flags)); }; });
}

void add_pool_import(Command& pool, Chosen& chosen) {
  const auto flags = std::make_shared<ImportFlags>();
  Command* const command =
      pool.add_subcommand("import", "stores the blocks of an exported file in a served pool");
  add_pool_flag(*command, flags->client.paths);
  command->add_option("--from", flags->from, "a file of `cachalot pool export`")
      ->type_name("FILE")
      ->required();
  add_host_flag(*command, flags->client);
  add_wait_flag(*command, flags->client);
  command->add_option("--json", flags->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool import /dev/shm/kv --from blocks.kv");
  command->callback(
      [flags, &chosen] { chosen.run = [flags] { return end_of(import_blocks(*flags)); }; });
}

}  // namespace cachalot::apps
