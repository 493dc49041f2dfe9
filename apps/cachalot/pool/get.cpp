// `cachalot get KEY`: reads one block.

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "client_flags.h"
#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct GetOptions {
  ClientFlags client;
  std::string key;
  std::uint64_t storage_wait_s = 5;
  std::string output = "-";
  std::string json;
};

// Has the storage behind the pool bring a block that the pool lacks. @return whether it has it
Result<bool> fetch(const GetOptions& options, Attached& attached, const BlockHash& hash) {
  using namespace std::chrono_literals;
  pool::Client& client = attached.client.client();
  const std::uint64_t until_ns = base::SteadyClock::read() + options.storage_wait_s * 1'000'000'000;
  CACHALOT_TRY_ASSIGN(const std::size_t stored, ask_storage(client, {&hash, 1}, until_ns));
  if (stored == 0) return false;
  CACHALOT_TRY_ASSIGN(pool::StorageAnswer answer,
                      client.requests().ask_storage({&hash, 1}, pool::kStorageFetch));
  while (answer.is_fetching != 0 && base::SteadyClock::read() < until_ns) {
    std::this_thread::sleep_for(1ms);
    CACHALOT_TRY_ASSIGN(answer, client.requests().ask_storage({&hash, 1}, 0));
  }
  return true;
}

Result<std::string> read_block(const GetOptions& options, const BlockHash& hash) {
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  std::string bytes(attached.pool.access().geometry.block_bytes, '\0');
  const std::span<std::byte> room = std::as_writable_bytes(std::span(bytes));
  Result<std::uint32_t> length = attached.client->get(hash, room);
  if (!length && length.error().code == Code::kNotFound && options.storage_wait_s != 0) {
    CACHALOT_TRY_ASSIGN(const bool is_stored, of_keeper(attached, fetch(options, attached, hash)));
    if (is_stored) length = attached.client->get(hash, room);
  }
  CACHALOT_TRY_ASSIGN(const std::uint32_t found,
                      of_key(options.key, of_keeper(attached, std::move(length))));
  bytes.resize(found);
  return bytes;
}

Status get(const GetOptions& options) {
  CACHALOT_TRY(check_are_apart({{"--output", options.output}, {"--json", options.json}}));
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(options.key, options.client.fingerprint));
  CACHALOT_TRY_ASSIGN(Output output, open_output("--output", options.output, options.client.paths));
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(const std::string bytes, read_block(options, hash));
  CACHALOT_TRY(output.write(bytes));
  const std::string hex = block_hash::to_hex(hash);
  if (options.output != "-") {
    std::fprintf(is_stdout(options.output) ? stderr : human_output(options.json),
                 "read %s %zu bytes\n", hex.c_str(), bytes.size());
  }
  return json.write_json({{"key", options.key}, {"hash", hex}, {"bytes", bytes.size()}});
}

int run_get(const GetOptions& options) {
  const Status status = get(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_get(Command& app, Chosen& chosen) {
  auto options = std::make_shared<GetOptions>();
  options->client.reads_only = true;
  Command* const command = app.add_subcommand("get", "reads one block of a served pool");
  command->add_option("key", options->key, kKeyHelp)->required()->type_name("KEY");
  command
      ->add_option("--output", options->output,
                   "write the block's bytes to FILE, or to stdout for -")
      ->type_name("FILE")
      ->capture_default_str();
  command
      ->add_option("--storage-wait", options->storage_wait_s,
                   "how long to wait for a block that only the storage behind the pool has")
      ->type_name("SECONDS")
      ->transform(number(0, 86'400))
      ->capture_default_str();
  add_client_flags(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot get greeting --pool /dev/shm/kv --output block.bin");
  command->callback([options, &chosen] { chosen.run = [options] { return run_get(*options); }; });
}

}  // namespace cachalot::apps
