// `cachalot context create|renew|drop|list|retain`: blocks that stay, with their prefixes, until a time.

#include <charconv>
#include <cinttypes>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/words.h"
#include "block_hash/block_hash.h"
#include "client_flags.h"
#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct ContextOptions {
  ClientFlags client;
  std::string key;
  std::string handle;
  std::string session;
  std::uint64_t ttl_s = 3600;
  std::string json;
};

std::string handle_text(std::uint64_t handle) {
  char text[24];
  std::snprintf(text, sizeof text, "%" PRIx64, handle);
  return text;
}

Result<std::uint64_t> parse_handle(const std::string& text) {
  std::uint64_t handle = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), handle, 16);
  if (error == std::errc() && end == text.data() + text.size() && handle != 0) return handle;
  return Error::make(Code::kInvalidArgument,
                     "context: handle \"%.60s\", expected hexadecimal digits as `context create` "
                     "prints them",
                     base::printable(text).c_str());
}

std::uint64_t seconds_left(std::uint64_t expires_unix_s) {
  const auto now_s = static_cast<std::uint64_t>(std::time(nullptr));
  return expires_unix_s > now_s ? expires_unix_s - now_s : 0;
}

nlohmann::json describe_context(std::uint64_t handle, std::uint32_t blocks,
                                std::uint64_t expires_unix_s) {
  return {{"handle", handle_text(handle)},
          {"blocks", blocks},
          {"expires_unix_s", expires_unix_s},
          {"seconds_left", seconds_left(expires_unix_s)}};
}

void print_context(std::FILE* out, const nlohmann::json& context) {
  std::fprintf(out, "%s  %" PRIu64 " blocks, %" PRIu64 " s left\n",
               context["handle"].get<std::string>().c_str(), context["blocks"].get<std::uint64_t>(),
               context["seconds_left"].get<std::uint64_t>());
}

Status create_context(const ContextOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(options.key, options.client.fingerprint));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY_ASSIGN(
      const pool::ContextAnswer answer,
      of_key(options.key,
             of_keeper(attached, attached.client->requests().create_context(hash, options.ttl_s))));
  const nlohmann::json created =
      describe_context(answer.handle, answer.blocks, answer.expires_unix_s);
  print_context(human_output(options.json), created);
  return json.write_json(created);
}

Status renew_context(const ContextOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(const std::uint64_t handle, parse_handle(options.handle));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY_ASSIGN(
      const pool::ContextAnswer answer,
      of_keeper(attached, attached.client->requests().renew_context(handle, options.ttl_s)));
  const nlohmann::json renewed =
      describe_context(answer.handle, answer.blocks, answer.expires_unix_s);
  print_context(human_output(options.json), renewed);
  return json.write_json(renewed);
}

Status drop_context(const ContextOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(const std::uint64_t handle, parse_handle(options.handle));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY(of_keeper(attached, attached.client->requests().drop_context(handle)));
  std::fprintf(human_output(options.json), "dropped %s\n", handle_text(handle).c_str());
  return json.write_json({{"handle", handle_text(handle)}, {"dropped", true}});
}

Status retain_context(const ContextOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(options.key, options.client.fingerprint));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY_ASSIGN(
      const pool::ContextAnswer answer,
      of_key(options.key, of_keeper(attached, attached.client->requests().retain(
                                                  options.session + "#0", hash, options.ttl_s))));
  std::fprintf(
      human_output(options.json), "%s last\n",
      (base::counted(answer.blocks, "block") + (answer.blocks == 1 ? " goes" : " go")).c_str());
  return json.write_json({{"blocks", answer.blocks}, {"expires_unix_s", answer.expires_unix_s}});
}

Status list_contexts(const ContextOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(
      const pool::Pool pool,
      pool::Pool::open(options.client.paths, {.allow_foreign = true, .read_only = true}));
  nlohmann::json all = nlohmann::json::array();
  for (const pool::ContextLine& line : pool.state().read_contexts()) {
    nlohmann::json one = describe_context(line.handle, line.blocks, line.expires_unix_s);
    one["namespace"] = line.namespace_id;
    one["hash"] = block_hash::to_hex({line.hash_low, line.hash_high});
    print_context(human_output(options.json), one);
    all.push_back(std::move(one));
  }
  if (all.empty()) std::fprintf(human_output(options.json), "none\n");
  std::fprintf(human_output(options.json),
               "what sessions retain is known to the keeper alone: `cachalot lookup` shows which "
               "blocks are there\n");
  return json.write_json({{"contexts", all}});
}

void add_handle(Command& command, ContextOptions& options) {
  command.add_option("handle", options.handle, "as `context create` and `context list` print it")
      ->required()
      ->type_name("HANDLE");
}

void add_time(Command& command, ContextOptions& options) {
  command.add_option("--for", options.ttl_s, "how long it stays, from now on")
      ->type_name("SECONDS")
      ->transform(number(1, pool::kMostContextSeconds))
      ->capture_default_str();
}

// The flags that all have, and what runs it.
void finish(Command& command, const std::shared_ptr<ContextOptions>& options,
            Status (*run)(const ContextOptions&), Chosen& chosen) {
  add_client_flags(command, options->client);
  command.add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command.callback([options, run, &chosen] {
    chosen.run = [options, run] {
      const Status status = run(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
}

}  // namespace

void add_context(Command& app, Chosen& chosen) {
  Command* const context = app.add_subcommand(
      "context", "blocks that stay in a pool, with their prefixes, until a time");

  auto create = std::make_shared<ContextOptions>();
  create->client.reads_only = true;
  Command* command = context->add_subcommand(
      "create", "keeps a block and its prefix; prints the handle of the context");
  command->add_option("key", create->key, kKeyHelp)->required()->type_name("KEY");
  add_time(*command, *create);
  finish(*command, create, create_context, chosen);
  command->footer("Example: cachalot context create greeting --pool /dev/shm/kv --for 600");

  auto renew = std::make_shared<ContextOptions>();
  renew->client.reads_only = true;
  command = context->add_subcommand("renew", "lets the time of a context begin anew");
  add_handle(*command, *renew);
  add_time(*command, *renew);
  finish(*command, renew, renew_context, chosen);
  command->footer("Example: cachalot context renew 100000001 --pool /dev/shm/kv --for 600");

  auto drop = std::make_shared<ContextOptions>();
  drop->client.reads_only = true;
  command = context->add_subcommand("drop", "ends a context: its blocks may be evicted again");
  add_handle(*command, *drop);
  finish(*command, drop, drop_context, chosen);
  command->footer("Example: cachalot context drop 100000001 --pool /dev/shm/kv");

  auto retain = std::make_shared<ContextOptions>();
  retain->client.reads_only = true;
  command = context->add_subcommand(
      "retain", "says that a session will use a block and its prefix again: they are evicted last");
  command->add_option("session", retain->session, "any text; its next block takes this one's place")
      ->required()
      ->type_name("SESSION");
  command->add_option("key", retain->key, kKeyHelp)->required()->type_name("KEY");
  add_time(*command, *retain);
  finish(*command, retain, retain_context, chosen);
  command->footer("Example: cachalot context retain agent-7 greeting --pool /dev/shm/kv --for 600");

  auto list = std::make_shared<ContextOptions>();
  command = context->add_subcommand(
      "list", "shows the contexts of all namespaces; not what sessions retain, which is a hint");
  finish(*command, list, list_contexts, chosen);
  command->footer("Example: cachalot context list --pool /dev/shm/kv");

  context->footer("Example: cachalot context create greeting --pool /dev/shm/kv --for 600");
}

}  // namespace cachalot::apps
