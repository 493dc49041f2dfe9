// `cachalot replay`: engine processes replay a trace through a pool of their own.

#include "replay/pool/replay.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "command.h"
#include "eviction/policy_kind.h"
#include "geometry/model.h"
#include "memory/line.h"
#include "model_flag.h"
#include "pool/format/domains.h"
#include "pool_flags.h"
#include "replay_output.h"
#include "storage_flags.h"
#include "trace_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

constexpr std::uint64_t kDefaultBlockBytes = 65536;
constexpr std::uint64_t kDefaultCapacityBlocks = 20000;
constexpr std::uint32_t kDefaultEngines = 2, kDefaultHostEngines = 1;
constexpr std::uint64_t kLeastLinkBytes = 100'000;
constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};

// As they stand on the command line.
struct Flags {
  replay::ReplayOptions options;
  TraceFlags trace;
  std::string block_bytes, capacity, capacity_blocks;
  std::string speed = "max";
  std::string verify = "full";
  std::string json;
  StorageFlags storage;
  std::uint32_t engines = 0;  // 0: the default
  std::string link_bandwidth;
  std::string host_policy = replay::host_policy_name(replay::HostPolicy::kRoundRobin);
};

volatile sig_atomic_t told_to_end = 0;

void note_end(int) {
  told_to_end = 1;
}

// While it lives, signals that end a program end the replay instead, which then cleans up.
class SignalsEndTheReplay {
 public:
  SignalsEndTheReplay() {
    struct sigaction action {};
    action.sa_handler = note_end;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~SignalsEndTheReplay() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  }
  SignalsEndTheReplay(const SignalsEndTheReplay&) = delete;
  SignalsEndTheReplay& operator=(const SignalsEndTheReplay&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction old_[std::size(kSignals)] = {};
};

class TerminalSink final : public replay::ProgressSink {
 public:
  TerminalSink() : is_terminal_(isatty(STDERR_FILENO) == 1) {}
  ~TerminalSink() override {
    if (is_terminal_) clear_progress_line();
  }
  void on_progress(const replay::Progress& progress) override {
    if (is_terminal_) print_progress(progress);
  }
  bool should_stop() override { return told_to_end != 0; }

 private:
  bool is_terminal_;
};

Result<double> parse_speed(const std::string& text) {
  if (text == "max") return 0.0;
  double speed = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), speed);
  if (problem != std::errc() || end != text.data() + text.size() || !(speed > 0) ||
      !(speed < 1e12)) {
    return Error::make(Code::kInvalidArgument,
                       "--speed: \"%.60s\" is neither max nor a positive factor", text.c_str());
  }
  return speed;
}

Status set_block_bytes(const Flags& flags, replay::ReplayOptions& options) {
  options.block_bytes = kDefaultBlockBytes;
  if (!flags.block_bytes.empty()) {
    CACHALOT_TRY_ASSIGN(options.block_bytes, parse_bytes("--block-bytes", flags.block_bytes));
    if (options.block_bytes == 0 || options.block_bytes % memory::kLineBytes != 0) {
      return Error::make(Code::kInvalidArgument, "--block-bytes: %llu, expected a multiple of 64",
                         static_cast<unsigned long long>(options.block_bytes));
    }
  }
  if (options.model.empty()) return {};
  CACHALOT_TRY_ASSIGN(const geometry::Model model, geometry::parse_model(options.model));
  options.model = model.name;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(model.kv_bytes_per_token(), options.block_tokens, &bytes) ||
      bytes > (std::uint64_t{1} << 62)) {
    return Error::make(Code::kInvalidArgument,
                       "--block-tokens: %llu tokens of %.120s exceed 2^62 bytes",
                       static_cast<unsigned long long>(options.block_tokens), model.name.c_str());
  }
  constexpr std::uint64_t kLine = memory::kLineBytes;
  options.block_bytes = (bytes + kLine - 1) / kLine * kLine;
  return {};
}

Status set_capacity(const Flags& flags, replay::ReplayOptions& options) {
  options.capacity_blocks = kDefaultCapacityBlocks;
  if (!flags.capacity_blocks.empty()) {
    CACHALOT_TRY_ASSIGN(options.capacity_blocks,
                        parse_blocks("--capacity-blocks", flags.capacity_blocks));
  }
  if (flags.capacity.empty()) return {};
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, parse_bytes("--capacity", flags.capacity));
  options.capacity_blocks = bytes / std::max<std::uint64_t>(options.block_bytes, 1);
  if (options.capacity_blocks != 0) return {};
  return Error::make(
      Code::kInvalidArgument, "--capacity: %llu bytes are less than one block of %llu",
      static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(options.block_bytes));
}

Status set_trace(const TraceFlags& flags, replay::ReplayOptions& options) {
  CACHALOT_TRY_ASSIGN(const trace::RequestTraceOptions reading, trace_options(flags));
  options.trace = flags.file;
  options.skip_bad_lines = reading.skip_bad_lines;
  options.trace_format = reading.format;
  options.synthetic_prefix = reading.synthetic_prefix;
  options.time_unit_ms = reading.time_unit_ms;
  options.warn = reading.warn;
  options.block_tokens = flags.block_tokens != 0 ? flags.block_tokens : kDefaultBlockTokens;
  // What is no file can be read once only.
  std::error_code unknown;
  const bool is_file = std::filesystem::is_regular_file(flags.file, unknown);
  if (flags.block_tokens != 0 || !is_file) return {};
  CACHALOT_TRY_ASSIGN(const trace::RequestTrace trace, open_trace_with_ids(flags));
  options.block_tokens = trace.block_tokens();
  return {};
}

Result<replay::ReplayOptions> options_of(const Flags& flags) {
  replay::ReplayOptions options = flags.options;
  CACHALOT_TRY(check_is_no_input("--json", flags.json, {&flags.trace.file, 1}));
  CACHALOT_TRY(set_trace(flags.trace, options));
  CACHALOT_TRY(set_block_bytes(flags, options));
  CACHALOT_TRY(set_capacity(flags, options));
  CACHALOT_TRY_ASSIGN(options.speed, parse_speed(flags.speed));
  pool::Geometry devices;
  devices.devices = options.devices;
  const Status has_domains = pool::set_domains(devices, options.domain);
  if (!has_domains) return Error::make(Code::kInvalidArgument, "--%s", has_domains.error().message);
  const bool has_hosts = options.hosts.count != 0;
  options.engines = flags.engines != 0 ? flags.engines
                    : has_hosts        ? kDefaultHostEngines
                                       : kDefaultEngines;
  CACHALOT_TRY_ASSIGN(options.hosts.policy, replay::parse_host_policy(flags.host_policy));
  if (!flags.link_bandwidth.empty()) {
    CACHALOT_TRY_ASSIGN(options.hosts.link_bytes_per_s,
                        parse_bytes("--link-bandwidth", flags.link_bandwidth));
    if (options.hosts.link_bytes_per_s < kLeastLinkBytes) {
      return Error::make(Code::kInvalidArgument, "--link-bandwidth: %.40s, expected at least 100KB",
                         flags.link_bandwidth.c_str());
    }
  }
  if (flags.storage.uris.size() > 1 && !has_hosts) {
    return Error::make(Code::kInvalidArgument, "--storage: %zu times, expected one storage",
                       flags.storage.uris.size());
  }
  options.storage.uris = flags.storage.uris;
  options.storage.secrets = flags.storage.secrets();
  CACHALOT_TRY_ASSIGN(options.storage.limits, flags.storage.limits());
  CACHALOT_TRY(flags.storage.check_holds_a_block(options.block_bytes));
  CACHALOT_TRY_ASSIGN(options.storage.write_bytes_per_day, flags.storage.write_bytes_per_day());
  CACHALOT_TRY_ASSIGN(options.storage.write_policy, flags.storage.policy());
  options.verify = flags.verify == "full"     ? replay::VerifyMode::kFull
                   : flags.verify == "sample" ? replay::VerifyMode::kSample
                                              : replay::VerifyMode::kOff;
  return options;
}

// What was chosen because nothing else was asked for.
void tell_defaults(std::FILE* to, const Flags& flags, const replay::ReplayOptions& options) {
  if (flags.block_bytes.empty() && options.model.empty()) {
    std::fprintf(to, "neither --block-bytes nor --model was given: blocks of 64 KiB\n");
  }
  if (flags.capacity.empty() && flags.capacity_blocks.empty()) {
    std::fprintf(to, "neither --capacity nor --capacity-blocks was given: %llu blocks\n",
                 static_cast<unsigned long long>(options.capacity_blocks));
  }
}

int run_replay(const Flags& flags) {
  const Result<replay::ReplayOptions> options = options_of(flags);
  if (!options) return fail(options.error());
  Result<Output> json = open_output("--json", flags.json, flags.options.pool_paths);
  if (!json) return fail(json.error());
  // The table would be in the way of a script that reads JSON from stdout.
  std::FILE* const people = human_output(flags.json);
  const auto report = [&] {
    const SignalsEndTheReplay signals;
    TerminalSink sink;
    return replay::replay(*options, sink);
  }();
  if (!report && report.error().code == Code::kNoSpace) {
    return fail(Error::make(
        Code::kNoSpace,
        "%.300s; the replay is of %llu blocks of %llu bytes: --capacity-blocks sets how many",
        report.error().message, static_cast<unsigned long long>(options->capacity_blocks),
        static_cast<unsigned long long>(options->block_bytes)));
  }
  if (!report) return fail(report.error());
  tell_defaults(people, flags, *options);
  print_report(people, *options, *report);
  static_cast<void>(flush(people));  // finish() tells
  const Status written = json->write_json(to_json(*options, *report));
  if (!written) return fail(written.error());
  if (report->is_sound()) return kExitDone;
  return fail(Error::make(Code::kCorrupt,
                          "replay: %llu blocks with wrong bytes, %llu damaged reads, expected none",
                          static_cast<unsigned long long>(report->verify_errors),
                          static_cast<unsigned long long>(report->damaged_reads)));
}

}  // namespace

namespace {

void add_host_flags(Command& command, Flags& flags, Flag* pool) {
  constexpr const char* kGroup = "Hosts";
  replay::HostOptions& hosts = flags.options.hosts;
  Flag* const count =
      command
          .add_option("--hosts", hosts.count,
                      "N pools of the capacity each, with a keeper and engines of their own, as on "
                      "N machines")
          ->type_name("N")
          ->transform(number(1, replay::kMaxHosts))
          ->excludes(pool)
          ->group(kGroup);
  Flag* const peers =
      command
          .add_flag("--peers", hosts.has_peers,
                    "each host reads blocks that the pools of the others have, over tcp:127.0.0.1")
          ->needs(count)
          ->group(kGroup);
  command.add_flag("--keep-peer-copies", hosts.keeps_copies, "as of serve")
      ->needs(peers)
      ->group(kGroup);
  Flag* const networks =
      command
          .add_flag(
              "--netns", hosts.has_networks,
              "each host has a network namespace of its own, joined by a bridge (needs root and "
              "iproute2)")
          ->needs(peers)
          ->group(kGroup);
  command
      .add_option("--link-bandwidth", flags.link_bandwidth,
                  "bytes a second that each host sends at most (default: no limit)")
      ->type_name("SIZE")
      ->needs(networks)
      ->group(kGroup);
  command
      .add_option("--host-policy", flags.host_policy,
                  "which host takes a request: round_robin; random, by the seed; prefix: by its "
                  "first block, so that equal beginnings meet")
      ->check(one_of({"round_robin", "random", "prefix"}))
      ->needs(count)
      ->group(kGroup)
      ->capture_default_str();
  command
      .add_flag("--in-order", hosts.is_in_order,
                "each request begins after the one before has ended, on whatever host, and all "
                "hosts know of its blocks: the hits repeat")
      ->needs(count)
      ->group(kGroup);
}

}  // namespace

void add_replay(Command& app, Chosen& chosen) {
  auto flags = std::make_shared<Flags>();
  replay::ReplayOptions& options = flags->options;
  Command* command = app.add_subcommand("replay",
                                        "replays a trace through a new pool, with a keeper and "
                                        "engine processes; verifies every byte");
  add_trace_flags(*command, flags->trace);
  command
      ->add_option("--engines", flags->engines,
                   "engine processes, with --hosts of each host (default: 2, with --hosts 1)")
      ->transform(number(1, replay::kMaxEngines));
  Flag* bytes = command->add_option("--block-bytes", flags->block_bytes,
                                    "bytes of a block, a multiple of 64 (default: 64KiB)");
  add_model_flag(*command, options.model, LayersOf::kModel,
                 "instead: the block of this model, all layers")
      ->excludes(bytes);
  Flag* blocks = command->add_option("--capacity-blocks", flags->capacity_blocks,
                                     "blocks that may be published at a time (default: 20000)");
  command->add_option("--capacity", flags->capacity, "instead: bytes of these blocks, such as 2GiB")
      ->excludes(blocks);
  command
      ->add_option(
          "--policy", options.policy,
          "which blocks are evicted when the pool is full: " + eviction::pool_policy_names())
      ->type_name(eviction::pool_policy_names("|"))
      ->capture_default_str();
  command
      ->add_option("--domain", options.domain,
                   "noncoherent: memory without cache coherence; or one for each device")
      ->type_name("coherent|noncoherent[,…]")
      ->capture_default_str();
  command->add_option("--devices", options.devices, "devices to interleave")
      ->transform(number(1, pool::kMaxDevices))
      ->capture_default_str();
  command->add_option("--limit", options.limit_requests, "stop after N requests")
      ->type_name("N")
      ->transform(number(1, kAnyNumber));
  command
      ->add_option("--passes", options.passes,
                   "replay the trace N times, each pass after the end of the one before, figures "
                   "apart: the first fills the pool, the next ones hit it")
      ->type_name("N")
      ->transform(number(1, replay::kMaxPasses))
      ->capture_default_str();
  command->add_option("--speed", flags->speed, "factor of the trace's time, or max: without pauses")
      ->capture_default_str();
  command
      ->add_option("--verify", flags->verify,
                   "what is verified of each block: full, sample (every 16th line), off")
      ->check(one_of({"full", "sample", "off"}))
      ->capture_default_str();
  command->add_option("--seed", options.seed, "changes hashes and bytes")
      ->transform(number(0, kAnyNumber))
      ->capture_default_str();
  Flag* const pool =
      command->add_option("--pool", options.pool_paths,
                          "where to create the pool, which is removed at the end: one path, or one "
                          "per device (default: memfd)");
  add_host_flags(*command, *flags, pool);
  add_storage_flags(*command, flags->storage);
  command->add_option("--json", flags->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer(
      "Example: cachalot replay --trace conversation_trace.jsonl.gz --engines 4 --block-bytes "
      "64KiB "
      "--capacity-blocks 20000 --json -\n"
      "         cachalot replay --trace conversation_trace.jsonl.gz --limit 1000 --passes 2\n"
      "         cachalot replay --trace conversation_trace.jsonl.gz --hosts 4 --peers "
      "--block-bytes "
      "4KiB --capacity-blocks 5000\n"
      "read_gb_s and write_gb_s are bytes over the time that engines spent inside read and put "
      "(copy, "
      "checksum, validation, waiting for the keeper or a core); total_gb_s is both over wall_s.\n"
      "lookup_us is one request's lookup; request_us lasts from taking a request to its last "
      "commit.\n"
      "Exit code 1: a byte was wrong; 3: the storage did not answer, or never worked.");
  command->callback([flags, &chosen] { chosen.run = [flags] { return run_replay(*flags); }; });
}

}  // namespace cachalot::apps
