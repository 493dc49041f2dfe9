// `cachalot pool fsck`: checks a pool, and repairs one that no keeper serves.

#include "base/words.h"
#include "pool/check/fsck.h"

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "command.h"
#include "output.h"
#include "pool_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

struct FsckFlags {
  Paths paths;
  bool repair = false;
  bool no_payloads = false;
  std::uint32_t host = 0;
  std::uint32_t messages = 10;
  std::string json;
};

const char* keeper_place_text(pool::KeeperPlace keeper) {
  switch (keeper) {
    case pool::KeeperPlace::kHere:
      return "serving";
    case pool::KeeperPlace::kElsewhere:
      return "remote";
    case pool::KeeperPlace::kNone:
      break;
  }
  return "none";
}

void print_fault(std::FILE* out, const pool::Fault& fault, const std::string& device) {
  const pool::FaultText& text = pool::text_of(fault.kind);
  std::fprintf(out, "%s %s: %s offset %" PRIu64, text.is_remnant ? "remnant" : "fault", text.name,
               device.c_str(), fault.offset);
  if (fault.block != pool::kNoBlock) std::fprintf(out, " block %u", fault.block);
  if (fault.slot != pool::kNoBlock) std::fprintf(out, " slot %u", fault.slot);
  std::fprintf(out, ": %s; %s; %s%s\n", fault.what.c_str(), text.follows,
               text.repair != nullptr ? "--repair " : "--repair does not mend it",
               text.repair != nullptr ? text.repair : "");
}

void print_check(std::FILE* out, const pool::FsckReport& report) {
  std::vector<std::uint64_t> shown(pool::kFaultKinds);
  for (const pool::Fault& fault : report.faults) {
    print_fault(out, fault, report.path_of(fault.device));
    ++shown[static_cast<std::size_t>(fault.kind)];
  }
  for (std::size_t kind = 0; kind < pool::kFaultKinds; ++kind) {
    if (report.counts[kind] <= shown[kind]) continue;
    std::fprintf(out, "… and %" PRIu64 " more of %s\n", report.counts[kind] - shown[kind],
                 pool::text_of(static_cast<pool::FaultKind>(kind)).name);
  }
  if (!report.is_whole) {
    std::fprintf(out, "the devices cannot be read as a pool: only their headers were checked\n");
    return;
  }
  const auto& figures = report.check.figures;
  std::fprintf(
      out, "blocks: %s free, %s granted, %s quarantined, %s live, %s bad: %s of %s\n",
      base::grouped(figures.blocks.free).c_str(), base::grouped(figures.blocks.granted).c_str(),
      base::grouped(figures.blocks.quarantined).c_str(), base::grouped(figures.blocks.live).c_str(),
      base::grouped(figures.blocks.bad).c_str(), base::grouped(figures.blocks.sum()).c_str(),
      base::grouped(report.blocks).c_str());
  std::fprintf(out, "payloads: %s verified (%s), %s without a checksum\n",
               base::grouped(figures.payloads).c_str(), bytes_text(figures.payload_bytes).c_str(),
               base::grouped(figures.without_checksum).c_str());
  if (report.is_unproven) {
    std::fprintf(out,
                 "the machine was restarted and the last keeper had not stopped in order: the next "
                 "keeper drops blocks without a checksum\n");
  }
  if (figures.lost_blocks != 0) {
    std::fprintf(out, "published blocks that the next keeper or --repair drops: %s\n",
                 base::grouped(figures.lost_blocks).c_str());
  }
}

void print_verdict(std::FILE* out, const pool::FsckReport& report, const char* pool) {
  const std::uint64_t faults = report.count_faults(), remnants = report.count_remnants();
  if (faults == 0) {
    std::fprintf(out, "%s: clean", pool);
  } else {
    std::fprintf(out, "%s: %s fault%s", pool, base::grouped(faults).c_str(),
                 faults == 1 ? "" : "s");
  }
  if (remnants != 0) {
    std::fprintf(out, ", %s harmless remnant%s of processes that died",
                 base::grouped(remnants).c_str(), remnants == 1 ? "" : "s");
  }
  std::fprintf(out, "\n");
}

Json describe_check(const pool::Fault& fault, const std::string& path) {
  const pool::FaultText& text = pool::text_of(fault.kind);
  Json row = {{"kind", text.name},       {"remnant", text.is_remnant},
              {"device", fault.device},  {"path", path},
              {"offset", fault.offset},  {"what", fault.what},
              {"follows", text.follows}, {"repair", nullptr},
              {"block", nullptr},        {"slot", nullptr}};
  if (text.repair != nullptr) row["repair"] = text.repair;
  if (fault.block != pool::kNoBlock) row["block"] = fault.block;
  if (fault.slot != pool::kNoBlock) row["slot"] = fault.slot;
  return row;
}

Json describe_check(const pool::FsckReport& report) {
  Json faults = Json::array(), counts = Json::object();
  for (const pool::Fault& fault : report.faults)
    faults.push_back(describe_check(fault, report.path_of(fault.device)));
  for (std::size_t kind = 0; kind < pool::kFaultKinds; ++kind) {
    if (report.counts[kind] != 0)
      counts[pool::text_of(static_cast<pool::FaultKind>(kind)).name] = report.counts[kind];
  }
  const auto& figures = report.check.figures;
  return {{"pool", report.paths},
          {"added_devices", report.added_paths},
          {"keeper", keeper_place_text(report.keeper)},
          {"clean", report.count_faults() == 0},
          {"whole", report.is_whole},
          {"epoch", report.check.epoch},
          {"unproven", report.is_unproven},
          {"faults", faults},
          {"counts", counts},
          {"accounting",
           {{"free_blocks", figures.blocks.free},
            {"granted_blocks", figures.blocks.granted},
            {"quarantined_blocks", figures.blocks.quarantined},
            {"live_blocks", figures.blocks.live},
            {"bad_blocks", figures.blocks.bad},
            {"sum", figures.blocks.sum()}}},
          {"lost_blocks", figures.lost_blocks},
          {"payloads",
           {{"verified", figures.payloads},
            {"bytes", figures.payload_bytes},
            {"without_checksum", figures.without_checksum},
            {"notes", figures.notes}}}};
}

// 1: there are faults, after a repair too.
Result<int> fsck(const FsckFlags& flags) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", flags.json, flags.paths));
  std::FILE* const out = human_output(flags.json);
  const pool::FsckOptions options{
      .payloads = !flags.no_payloads, .host = flags.host, .messages = flags.messages};
  const char* const name = flags.paths[0].c_str();
  if (!flags.repair) {
    CACHALOT_TRY_ASSIGN(const pool::FsckReport report, pool::check_pool_at(flags.paths, options));
    print_check(out, report);
    print_verdict(out, report, name);
    CACHALOT_TRY(json.write_json(describe_check(report)));
    return report.count_faults() == 0 ? kExitDone : kExitFault;
  }
  CACHALOT_TRY_ASSIGN(const pool::RepairReport report, pool::repair_pool_at(flags.paths, options));
  print_check(out, report.before);
  print_verdict(out, report.before, name);
  Json result = describe_check(report.before);
  result["repaired"] = nullptr;
  if (report.was_taken_over) {
    const auto& before = report.before.check.figures.blocks;
    const auto& after = report.after.check.figures.blocks;
    std::fprintf(out, "repaired: %s of %s published blocks are left\n",
                 base::grouped(after.live).c_str(), base::grouped(before.live).c_str());
    print_check(out, report.after);
    print_verdict(out, report.after, name);
    result["repaired"] = describe_check(report.after);
  }
  CACHALOT_TRY(json.write_json(result));
  return report.after.count_faults() == 0 ? kExitDone : kExitFault;
}

}  // namespace

void add_pool_fsck(Command& pool, Chosen& chosen) {
  const auto flags = std::make_shared<FsckFlags>();
  Command* const command =
      pool.add_subcommand("fsck", "checks a pool for damage, with or without a keeper");
  add_pool_flag(*command, flags->paths);
  command->add_flag("--repair", flags->repair,
                    "drop what cannot be trusted and write the rest again; no keeper may serve");
  command->add_flag("--no-payloads", flags->no_payloads,
                    "do not read payloads and notes: seconds instead of minutes for a large pool");
  command
      ->add_option("--host", flags->host,
                   "this machine's number in the pool, if several machines share it")
      ->type_name("N")
      ->transform(number(0, pool::kMaxClients - 1))
      ->capture_default_str();
  command
      ->add_option("--messages", flags->messages,
                   "how many faults of a kind are shown; the others are counted")
      ->type_name("N")
      ->capture_default_str()
      ->transform(number(0, 1u << 20));
  command->add_option("--json", flags->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool fsck /dev/shm/kv");
  command->callback([flags, &chosen] {
    chosen.run = [flags] {
      const Result<int> code = fsck(*flags);
      return code ? *code : fail(code.error());
    };
  });
}

}  // namespace cachalot::apps
