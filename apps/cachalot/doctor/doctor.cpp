// `cachalot doctor`: what holds on this machine, in plain words.

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "machine_checks.h"
#include "output.h"
#include "pool_flags.h"
#include "pool_list.h"
#include "service_checks.h"
#include "storage_flags.h"

namespace cachalot::apps {
namespace {

struct DoctorOptions {
  std::vector<std::string> pools, storages;
  std::string registry, key_file, root, json;
};

Result<Findings> examine(const DoctorOptions& options) {
  std::optional<os::SecretKey> key;
  if (!options.key_file.empty()) {
    CACHALOT_TRY_ASSIGN(key, os::SecretKey::read("cluster key file", options.key_file));
  }
  Findings findings = check_machine(options.root);
  for (Finding& one : check_gpus(options.root)) findings.push_back(std::move(one));
  for (const std::string& path : options.pools)
    for (Finding& one : check_pool(path)) findings.push_back(std::move(one));
  if (options.pools.empty()) {
    const std::string note = unreadable_note(options.root + kPoolFolder);
    if (!note.empty())
      findings.push_back({"pools", Health::kOk, note, "run it as the user of the pool"});
    // One that is left from before is no fault of this machine.
    for (const std::string& path : find_pools(options.root + kPoolFolder)) {
      for (Finding& one : check_pool(path)) {
        if (one.health == Health::kFault) {
          one.health = Health::kWarning;
          one.advice += "; if it is of no use any more: cachalot pool destroy " + path;
        }
        findings.push_back(std::move(one));
      }
    }
  }
  for (const std::string& uri : options.storages)
    findings.push_back(check_storage(uri, StorageFlags{}.secrets()));
  if (!options.registry.empty()) findings.push_back(check_registry(options.registry, key));
  return findings;
}

int run_doctor(const DoctorOptions& options) {
  Result<Output> output = open_output("--json", options.json, options.pools);
  if (!output) return fail(output.error());
  const Result<Findings> findings = examine(options);
  if (!findings) return fail(findings.error());
  const nlohmann::json result = findings_json(*findings);
  std::fputs(findings_text(*findings).c_str(), human_output(options.json));
  const Status written = output->write_json(result);
  if (!written) return fail(written.error());
  return result["faults"] == 0 ? kExitDone : kExitFault;
}

}  // namespace

void add_doctor(Command& app, Chosen& chosen) {
  auto options = std::make_shared<DoctorOptions>();
  Command* const command = app.add_subcommand(
      "doctor", "looks at this machine, its pools and what they need, and says what to do");
  command->add_option("--pool", options->pools, "pools to look at (default: those in /dev/shm)")
      ->type_name("PATH")
      ->expected(1)
      ->take_all();
  command->add_option("--storage", options->storages, "as of `cachalot serve`: whether it answers")
      ->type_name("URI")
      ->expected(1)
      ->take_all();
  command->add_option("--peers", options->registry, "as of `cachalot serve`: whether it answers")
      ->type_name("URI");
  command->add_option("--cluster-key-file", options->key_file, "the key of the records in --peers")
      ->type_name("FILE");
  command
      ->add_option(
          "--root", options->root,
          "look for /proc, /sys and /dev below this folder, for example /host in a container")
      ->type_name("FOLDER");
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer(
      "Exit code 1: there is a fault.\nExample: cachalot doctor --storage redis://10.0.0.5:6379 "
      "--peers etcd://10.0.0.9:2379/kv");
  command->callback(
      [options, &chosen] { chosen.run = [options] { return run_doctor(*options); }; });
}

}  // namespace cachalot::apps
