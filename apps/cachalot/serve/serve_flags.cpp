#include "serve_flags.h"

#include <array>

#include "base/byte_size.h"
#include "base/log.h"
#include "base/log_format.h"
#include "block_hash/block_hash.h"
#include "client_flags.h"
#include "eviction/policy_kind.h"
#include "flag_file.h"
#include "serve_metrics.h"
#include "values.h"

namespace cachalot::apps {
namespace {

constexpr std::array kLogLevels = {"debug", "info", "warn", "error", "off"};

base::LogLevel log_level_of(const std::string& name) {
  std::size_t level = 0;
  while (level + 1 < kLogLevels.size() && name != kLogLevels[level]) ++level;
  return static_cast<base::LogLevel>(level);
}

// "NAMESPACE:KEY", or a key of the namespace that other commands use unless told otherwise.
Result<pool::PinnedBlock> parse_pin(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string fingerprint =
      colon == std::string::npos ? ClientFlags{}.fingerprint : text.substr(0, colon);
  const std::string key = colon == std::string::npos ? text : text.substr(colon + 1);
  if (fingerprint.empty() || key.empty()) {
    return Error::make(Code::kInvalidArgument, "--pin: \"%.120s\", expected NAMESPACE:KEY or KEY",
                       text.c_str());
  }
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(key, fingerprint));
  return pool::PinnedBlock{block_hash::make_namespace(fingerprint).digest, hash};
}

// Of a fingerprint, or of the digest that `pool info` shows, because engines' fingerprints are long.
BlockHash digest_of(const std::string& namespace_text) {
  const Result<BlockHash> digest = block_hash::parse_block_hash(namespace_text);
  return digest ? *digest : block_hash::make_namespace(namespace_text).digest;
}

// "NAMESPACE=SIZE".
Result<pool::NamespaceQuota> parse_quota(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const Result<std::uint64_t> bytes =
      equals == std::string::npos || equals == 0
          ? Result<std::uint64_t>(Error::make(Code::kInvalidArgument, "no size"))
          : base::parse_byte_size("--quota", text.substr(equals + 1));
  if (!bytes) {
    return Error::make(Code::kInvalidArgument,
                       "--quota: \"%.120s\", expected NAMESPACE=SIZE, as a-tenant=64GiB",
                       text.c_str());
  }
  return pool::NamespaceQuota{digest_of(text.substr(0, equals)), *bytes};
}

// "NAMESPACE=N".
Result<pool::NamespacePriority> parse_priority(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (equals == 0 || number.size() != 1 || number[0] < '0' || number[0] > '7') {
    return Error::make(
        Code::kInvalidArgument,
        "--priority: \"%.120s\", expected NAMESPACE=N with N from 0 (evicted first) to 7",
        text.c_str());
  }
  return pool::NamespacePriority{digest_of(text.substr(0, equals)),
                                 static_cast<std::uint32_t>(number[0] - '0')};
}

void add_several_hosts_flags(Command& command, ServeFlags& flags, Flag* standby, Flag* take_over) {
  command
      .add_option("--host", flags.host,
                  "this machine's number in the pool, if several machines share it; keepers run on "
                  "hosts 0 and 1")
      ->type_name("N")
      ->transform(number(0, pool::kMaxClients - 1))
      ->capture_default_str();
  Flag* const agent = command.add_flag("--agent", flags.agent,
                                       "no keeper: only tells the keeper, which is on another "
                                       "machine, when engines of this one end");
  agent->excludes(standby);
  agent->excludes(take_over);
  command.add_flag("--replace-host", flags.replace_host,
                   "the machine that had this --host before is off, and stays off");
  command
      .add_option(
          "--take-over-after", flags.take_over_after_s,
          "of a standby: take over from a keeper on another machine that has been silent for "
          "this time; 0: never")
      ->type_name("SECONDS")
      ->transform(number(0, 86'400))
      ->capture_default_str();
}

}  // namespace

Result<pool::KeeperOptions> ServeFlags::keeper_options() const {
  pool::KeeperOptions keeper_options;
  keeper_options.policy = policy;
  keeper_options.copies_first = peers.is_given() && !peers.keeps_copies;
  keeper_options.ttl_ns = ttl_s * 1'000'000'000;
  keeper_options.max_grants = max_grants;
  keeper_options.host = host;
  keeper_options.without_lost_devices = without_lost_devices;
  keeper_options.suspect_after_ns = suspect_after_ms * 1'000'000;
  for (const std::string& text : pins) {
    CACHALOT_TRY_ASSIGN(const pool::PinnedBlock pin, parse_pin(text));
    keeper_options.pins.push_back(pin);
  }
  for (const std::string& text : priorities) {
    CACHALOT_TRY_ASSIGN(const pool::NamespacePriority priority, parse_priority(text));
    for (const pool::NamespacePriority& other : keeper_options.priorities) {
      if (!(other.namespace_digest == priority.namespace_digest)) continue;
      return Error::make(Code::kInvalidArgument,
                         "--priority: \"%.120s\": the namespace is named twice", text.c_str());
    }
    keeper_options.priorities.push_back(priority);
  }
  for (const std::string& text : quotas) {
    CACHALOT_TRY_ASSIGN(const pool::NamespaceQuota quota, parse_quota(text));
    for (const pool::NamespaceQuota& other : keeper_options.quotas) {
      if (!(other.namespace_digest == quota.namespace_digest)) continue;
      return Error::make(Code::kInvalidArgument,
                         "--quota: \"%.120s\": the namespace is named twice", text.c_str());
    }
    keeper_options.quotas.push_back(quota);
  }
  CACHALOT_TRY(keeper_options.check());
  return keeper_options;
}

void ServeFlags::set_log() const {
  base::set_log_level(log_level_of(log_level));
  base::set_log_format(log_format == "json" ? base::LogFormat::kJson : base::LogFormat::kText);
}

void add_serve_flags(Command& app, ServeFlags& flags) {
  Command* const command = &app;
  ServeFlags* const options = &flags;
  options->command = command;
  add_flag_file(*command, "--config");
  command->add_flag("--check-config", options->check_config,
                    "check all flags, print ok or what is wrong, and end");
  add_pool_flag(*command, options->paths);
  Flag* const create = command->add_flag(
      "--create", options->create,
      "create the pool if it does not exist; an existing pool must have this geometry");
  add_foreign_flag(*command, options->allow_foreign_pool);
  command
      ->add_option(
          "--policy", options->policy,
          "which blocks are evicted when the pool is full: " + eviction::pool_policy_names())
      ->type_name(eviction::pool_policy_names("|"))
      ->capture_default_str();
  command
      ->add_option(
          "--ttl", options->ttl_s,
          "evict blocks that were not used for this time, even if the pool is not full; 0: never")
      ->type_name("SECONDS")
      ->transform(number(0, 1'000'000'000))
      ->capture_default_str();
  command
      ->add_option(
          "--pin", options->pins,
          "a block that is never evicted once it is stored, nor its prefix; repeatable. KEY: as "
          "for `cachalot lookup`, without a colon; without NAMESPACE: of `default`")
      ->type_name("NAMESPACE:KEY");
  command
      ->add_option("--priority", options->priorities,
                   "0 to 7: blocks of namespaces of lower priority are evicted first; default of "
                   "all others: " +
                       std::to_string(pool::KeeperOptions::kDefaultPriority) + "; repeatable")
      ->type_name("NAMESPACE=N");
  command
      ->add_option(
          "--quota", options->quotas,
          "of the bytes in blocks: a namespace that has more gives way first when the pool "
          "is full; its fingerprint, or its digest as `cachalot pool info` shows it; "
          "repeatable")
      ->type_name("NAMESPACE=SIZE");
  command
      ->add_option("--max-grants", options->max_grants,
                   "limit of blocks that one client holds in advance")
      ->type_name("N")
      ->transform(number(1, 1u << 20))
      ->capture_default_str();
  command
      ->add_option("--suspect-after", options->suspect_after_ms,
                   "after this time without heartbeats a client is suspected, and its blocks are "
                   "quarantined; 0: never")
      ->type_name("MS")
      ->transform(number(0, 86'400'000))
      ->capture_default_str();
  options->events.add(*command);
  Flag* const standby = command->add_flag("--standby", options->standby,
                                          "wait until the pool has no live keeper, then take over");
  Flag* const take_over = command->add_flag("--take-over", options->take_over,
                                            "take over even from a live keeper, if it hangs");
  take_over->excludes(standby);
  command->add_flag(
      "--without-lost-devices", options->without_lost_devices,
      "of a pool that has grown: give up added devices that cannot be opened, with their blocks; "
      "without this flag the keeper does not start then");
  command
      ->add_option("--wait-for-devices", options->wait_for_devices_s,
                   "of a standby: how long it waits, when it should take over, for an added device "
                   "that it cannot open; then it takes over without the device; 0: without end")
      ->type_name("SECONDS")
      ->transform(number(0, 86'400))
      ->capture_default_str();
  add_several_hosts_flags(*command, *options, standby, take_over);
  add_metrics_flag(*command, options->metrics);
  add_storage_flags(*command, options->storage);
  add_peer_flags(*command, options->peers);
  command->add_option("--log-format", options->log_format, "text, or json: an object a line")
      ->type_name("NAME")
      ->check(one_of({"text", "json"}))
      ->capture_default_str();
  command->add_option("--log-level", options->log_level, "log on stderr")
      ->type_name("NAME")
      ->check(one_of(std::vector<std::string>(kLogLevels.begin(), kLogLevels.end())))
      ->capture_default_str();
  command
      ->add_option("--json", options->json,
                   "write the ready line as JSON to FILE, or to stdout for -")
      ->type_name("FILE");
  add_geometry_flags(*command, options->geometry);
  for (Flag* option : command->get_options()) {
    if (option->get_group() == kGeometryGroup) option->needs(create);
  }
}

Result<std::unique_ptr<ServeFlags>> read_again(const ServeFlags& flags, LooseCommand& command) {
  auto now = std::make_unique<ServeFlags>();
  add_serve_flags(command.command(), *now);
  CACHALOT_TRY(command.parse(flags.arguments));
  return now;
}

}  // namespace cachalot::apps
