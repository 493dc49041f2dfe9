// `cachalot pool grow|shrink`: devices that a pool gets, or gives up, while it is served.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/words.h"
#include "client_flags.h"
#include "command.h"
#include "creation.h"
#include "output.h"
#include "pool/expansion/expansion_device.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct GrowOptions {
  ClientFlags client;
  std::string device;
  std::string size;
  std::uint32_t timeout_s = 60;
  std::string json;
};

// The keeper and all engines open the device by this name, each in its own folder.
Result<std::string> absolute(const std::string& path) {
  if (path.starts_with("memfd:")) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: no other process opens a memfd by its name, expected a path",
                       path.c_str());
  }
  if (path.starts_with("shm:")) return file_name_of(path);
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (error) return Error::make(Code::kInvalidArgument, "%.120s: is no path", path.c_str());
  return whole.lexically_normal().string();
}

Status check_growable(const pool::Pool& pool) {
  if (pool.access().geometry.growable) return {};
  return Error::make(
      Code::kUnsupported,
      "%.120s: cannot grow: it was made without --max-size, which leaves room for the "
      "lines of more blocks",
      pool.paths()[0].c_str());
}

// What a device that is there has for blocks.
Result<std::uint64_t> data_bytes_of(const std::string& device) {
  CACHALOT_TRY_ASSIGN(const os::SharedFile file,
                      os::SharedFile::open(device, os::Access::kReadOnly));
  const std::uint64_t whole = file.bytes() / memory::kStripeBytes * memory::kStripeBytes;
  return whole - std::min(whole, memory::kStripeBytes);
}

Error adds_no_block(const pool::Pool& pool, const std::string& device, std::uint64_t bytes) {
  return Error::make(Code::kInvalidArgument,
                     "%.120s: with %llu bytes of blocks it would add none to the pool, whose "
                     "blocks have %llu bytes",
                     device.c_str(), static_cast<unsigned long long>(bytes),
                     static_cast<unsigned long long>(pool.access().geometry.block_bytes));
}

Error cannot_grow_further(const pool::Pool& pool, std::size_t devices) {
  if (devices >= pool::kMaxExpansions) {
    return Error::make(Code::kNoSpace,
                       "%.120s: has %zu added devices, the most that a pool can have: give the "
                       "last ones up for a larger one (`cachalot pool shrink`)",
                       pool.paths()[0].c_str(), devices);
  }
  return Error::make(Code::kNoSpace, "%.120s: has all the blocks that --max-size left room for",
                     pool.paths()[0].c_str());
}

// Bytes of blocks on the device; 0: as many as one that is there has.
Result<std::uint64_t> bytes_of_device(const GrowOptions& options, const std::string& device,
                                      const pool::Pool& pool) {
  const pool::Access& access = pool.access();
  const auto table = pool.state().read_expansions();
  const std::vector<pool::Expansion> now =
      table ? table->expansions : std::vector<pool::Expansion>();
  const std::uint64_t room = table ? pool::room_to_grow(access, now) : std::uint64_t{0};
  if (room == 0) return cannot_grow_further(pool, now.size());
  std::uint64_t bytes = 0;
  bool is_there = false;
  if (!options.size.empty()) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t given, parse_bytes("--size", options.size));
    const std::uint64_t data = given / memory::kStripeBytes * memory::kStripeBytes;
    if (data < 2 * memory::kStripeBytes || data - memory::kStripeBytes > room) {
      return Error::make(
          Code::kInvalidArgument,
          "--size: %llu bytes, expected 4 MiB to %llu, the most that the pool may grow by",
          static_cast<unsigned long long>(given),
          static_cast<unsigned long long>(pool::expansion_file_bytes(room)));
    }
    bytes = data - memory::kStripeBytes;
  } else if (os::SharedFile::peek(device).ok()) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t there, data_bytes_of(device));
    is_there = there <= room;  // else only a part of it is used
    bytes = std::min(there, room);
  } else {
    bytes = std::min(room, access.geometry.device_bytes - memory::kStripeBytes);
  }
  std::vector<pool::Expansion> with = now;
  with.push_back({{}, bytes, device});
  if (bytes != 0 && pool::blocks_on(access, with) == pool::blocks_on(access, now))
    return adds_no_block(pool, device, bytes);
  return is_there ? 0 : bytes;
}

// The size that was asked for, where it is another one.
std::string rounded_text(const GrowOptions& options, std::uint64_t bytes) {
  const Result<std::uint64_t> wanted = parse_bytes("--size", options.size);
  if (options.size.empty() || !wanted || *wanted == bytes) return "";
  return " (--size " + base::grouped(*wanted) + ": in steps of 2 MiB)";
}

Status write_result(const GrowOptions& options, Output& json, const pool::Pool& pool,
                    const pool::Expansion& device, const pool::ExpansionAnswer& answer,
                    const char* what) {
  const std::uint64_t device_bytes = pool::expansion_file_bytes(device.bytes);
  const std::uint64_t block_bytes = pool.access().geometry.block_bytes;
  std::FILE* const out = human_output(options.json);
  std::fprintf(out, "%s %s of %s bytes%s: the pool has a capacity of %s now, %s\n", what,
               base::printable(device.path).c_str(), base::grouped(device_bytes).c_str(),
               rounded_text(options, device_bytes).c_str(),
               base::counted(answer.capacity, "block").c_str(),
               bytes_text(answer.capacity * block_bytes).c_str());
  CACHALOT_TRY(flush(out));
  return json.write_json({{"device", device.path},
                          {"bytes", device_bytes},
                          {"blocks", answer.blocks},
                          {"capacity_blocks", answer.capacity},
                          {"capacity_bytes", answer.capacity * block_bytes}});
}

// A file of this pool that its keeper has lost, or that a grow which was killed has left: its blocks never come back.
Status remove_lost(const pool::Pool& pool, const std::string& device) {
  const auto there =
      pool::open_expansion(pool.access(), device, os::Access::kReadOnly, os::Owners::kTrusted);
  const auto table = pool.state().read_expansions();
  if (!there || !table) return {};
  for (const pool::Expansion& used : table->expansions) {
    if (used.serial == there->expansion.serial) {
      return Error::make(Code::kBusy, "%.200s: is a device of this pool already", device.c_str());
    }
  }
  return pool::dispose_of_expansion(pool.access(), there->expansion);
}

Status grow(const GrowOptions& options) {
  CACHALOT_TRY_ASSIGN(const std::string device, absolute(options.device));
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY(check_growable(attached.pool));
  CACHALOT_TRY(remove_lost(attached.pool, device));
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, bytes_of_device(options, device, attached.pool));
  const pool::Access& access = attached.pool.access();
  CACHALOT_TRY_ASSIGN(const pool::Expansion made, create_expansion(access, device, bytes));
  const Result<pool::ExpansionAnswer> answer =
      of_keeper(attached, attached.client->requests().add_expansion(made.path, made.serial));
  if (!answer) {
    // An answer that was lost may have been a yes: then the device stays.
    const bool may_be_added =
        answer.error().code == Code::kTimeout || answer.error().code == Code::kNoKeeper;
    if (!may_be_added) (void)pool::dispose_of_expansion(access, made);
    return answer.error();
  }
  return write_result(options, json, attached.pool, made, *answer, "added");
}

// The device by its name in the pool's table; else by what it says of itself.
Result<pool::Expansion> find_device(const GrowOptions& options, const pool::Pool& pool) {
  CACHALOT_TRY_ASSIGN(const std::string device, absolute(options.device));
  const auto table = pool.state().read_expansions();
  for (std::size_t i = 0; table && i < table->expansions.size(); ++i) {
    if (table->expansions[i].path == device) return table->expansions[i];
  }
  for (std::size_t i = 0; table && i < table->lost.size(); ++i) {
    if (table->lost[i].path == device) return table->lost[i];
  }
  CACHALOT_TRY_ASSIGN(
      pool::ExpansionFile there,
      pool::open_expansion(pool.access(), device, os::Access::kReadOnly, os::Owners::kAny));
  return std::move(there.expansion);
}

Error cannot_give_up(const pool::Expansion& device, const Error& error) {
  switch (error.code) {
    case Code::kRefused:
      return Error::make(Code::kBusy,
                         "%.200s: another device was added later, and goes first: `cachalot pool "
                         "info` names it",
                         device.path.c_str());
    case Code::kBusy:
      return Error::make(error.code,
                         "%.200s: blocks of it are pinned, or kept by contexts: end those first",
                         device.path.c_str());
    default:
      return error;
  }
}

// Clients return what they hold of the device in advance, each within a second or with its next put.
Result<pool::ExpansionAnswer> empty_device(const GrowOptions& options, Attached& attached,
                                           const pool::Expansion& device) {
  constexpr std::chrono::milliseconds kBetween(50);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_s);
  const bool is_watched = isatty(STDERR_FILENO) != 0;
  for (;;) {
    const Result<pool::ExpansionAnswer> answer =
        of_keeper(attached, attached.client->requests().give_up_expansion(device.serial));
    if (!answer) return cannot_give_up(device, answer.error());
    if (answer->in_use == 0) {
      if (is_watched) std::fprintf(stderr, "\r\033[K");
      return *answer;
    }
    if (std::chrono::steady_clock::now() >= until) {
      (void)attached.client->requests().keep_expansion();
      return Error::make(
          Code::kTimeout,
          "%.120s: stays, as %u of its blocks were still in use after %u s, %u of them "
          "quarantined (`cachalot pool fence` frees those)",
          device.path.c_str(), answer->in_use, options.timeout_s, answer->held);
    }
    if (is_watched)
      std::fprintf(stderr, "\rgiving %.60s up: %u blocks in use ", device.path.c_str(),
                   answer->in_use);
    std::this_thread::sleep_for(kBetween);
  }
}

Status shrink(const GrowOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY(check_growable(attached.pool));
  CACHALOT_TRY_ASSIGN(const pool::Expansion device, find_device(options, attached.pool));
  Result<pool::ExpansionAnswer> answer = empty_device(options, attached, device);
  // What a shrink that was interrupted at its end, or a grow at its beginning, has left.
  if (!answer && answer.error().code == Code::kNotFound) {
    answer = pool::ExpansionAnswer{attached.pool.state().blocks(),
                                   attached.pool.state().capacity_blocks()};
  }
  if (!answer) return answer.error();
  const Status removed = pool::dispose_of_expansion(attached.pool.access(), device);
  const bool is_another = !removed && removed.error().code == Code::kInvalidArgument;
  if (!removed && !is_another && removed.error().code != Code::kNotFound) {
    return Error::make(removed.error().code, "the pool has given it up, remove it: %s",
                       removed.error().message);
  }
  return write_result(options, json, attached.pool, device, *answer, "gave up");
}

Command* add_command(Command& pool, Chosen& chosen, const char* name, const char* text,
                     Status (*run)(const GrowOptions&),
                     const std::shared_ptr<GrowOptions>& options) {
  options->client.is_operator = true;
  Command* const command = pool.add_subcommand(name, text);
  add_pool_flag(*command, options->client.paths);
  add_host_flag(*command, options->client);
  add_wait_flag(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->callback([options, run, &chosen] {
    chosen.run = [options, run] {
      const Status status = run(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
  return command;
}

}  // namespace

void add_pool_grow(Command& pool, Chosen& chosen) {
  const auto grown = std::make_shared<GrowOptions>();
  Command* const grow_command = add_command(
      pool, chosen, "grow",
      "adds a device to a pool that was made with --max-size, while it is served", grow, grown);
  grow_command
      ->add_option(
          "--device", grown->device,
          "a file that is made, shm:NAME, or a devdax device; all machines find it by this "
          "name")
      ->required()
      ->type_name("PATH");
  grow_command
      ->add_option(
          "--size", grown->size,
          "of a file that is made, in steps of 2 MiB (default: as the first device); a device: "
          "all of it")
      ->type_name("BYTES");
  grow_command->footer(
      "Example: cachalot pool grow /dev/shm/kv --device /dev/shm/kv.more --size 64GiB");

  const auto shrunk = std::make_shared<GrowOptions>();
  Command* const shrink_command = add_command(
      pool, chosen, "shrink",
      "evicts what lies on the device that was added last, and gives it back", shrink, shrunk);
  shrink_command->add_option("--device", shrunk->device, "as it was added")
      ->required()
      ->type_name("PATH");
  shrink_command
      ->add_option("--timeout", shrunk->timeout_s,
                   "how long it waits for clients that store into it; then the device stays")
      ->type_name("SECONDS")
      ->transform(number(1, 86'400))
      ->capture_default_str();
  shrink_command->footer("Example: cachalot pool shrink /dev/shm/kv --device /dev/shm/kv.more");
}

}  // namespace cachalot::apps
