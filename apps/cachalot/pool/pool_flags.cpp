#include "pool_flags.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "geometry/model.h"
#include "memory/line.h"
#include "model_flag.h"
#include "pool/format/domains.h"
#include "pool/sizing.h"
#include "values.h"

namespace cachalot::apps {
namespace {

Result<std::uint64_t> block_bytes_given(const GeometryFlags& flags) {
  if (flags.block_tokens != 0) {
    return Error::make(Code::kInvalidArgument,
                       "--block-tokens: %u with --block-bytes, expected it with --model only",
                       flags.block_tokens);
  }
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, parse_bytes("--block-bytes", flags.block_bytes));
  if (bytes != 0 && bytes % memory::kLineBytes == 0) return bytes;
  return Error::make(Code::kInvalidArgument,
                     "--block-bytes: %" PRIu64 ", expected a multiple of 64", bytes);
}

Result<std::uint64_t> wanted_block_bytes(const GeometryFlags& flags) {
  if (flags.block_bytes.empty() == flags.model.empty()) {
    return Error::make(
        Code::kInvalidArgument,
        "the size of a block: give either --block-bytes, or --model and --block-tokens");
  }
  if (!flags.block_bytes.empty()) return block_bytes_given(flags);
  if (flags.block_tokens == 0) {
    return Error::make(Code::kInvalidArgument,
                       "--block-tokens: is required with --model, at least 1");
  }
  CACHALOT_TRY_ASSIGN(const geometry::Model model, geometry::parse_model(flags.model));
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(model.kv_bytes_per_token(), flags.block_tokens, &bytes) ||
      bytes > (std::uint64_t{1} << 62)) {
    return Error::make(Code::kInvalidArgument,
                       "--block-tokens: %u tokens of %.120s exceed 2^62 bytes", flags.block_tokens,
                       model.name.c_str());
  }
  return (bytes + 63) / 64 * 64;
}

Result<std::uint64_t> capacity_of(const GeometryFlags& flags, std::uint64_t block_bytes) {
  if (!flags.capacity_blocks.empty())
    return parse_blocks("--capacity-blocks", flags.capacity_blocks);
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, parse_bytes("--capacity", flags.capacity));
  if (bytes >= block_bytes) return bytes / block_bytes;
  return Error::make(Code::kInvalidArgument,
                     "--capacity: %" PRIu64 " bytes do not hold one block of %" PRIu64 " bytes",
                     bytes, block_bytes);
}

// @param shape  all but what follows from the size
Result<pool::Geometry> sized(const GeometryFlags& flags, const pool::Geometry& shape) {
  const int given = !flags.size.empty() + !flags.capacity.empty() + !flags.capacity_blocks.empty();
  if (given != 1) {
    return Error::make(Code::kInvalidArgument,
                       "the size of the pool: give one of --size, --capacity and "
                       "--capacity-blocks");
  }
  if (flags.size.empty()) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t capacity, capacity_of(flags, shape.block_bytes));
    if (flags.spare_blocks.empty()) return pool::with_capacity(shape, capacity);
    CACHALOT_TRY_ASSIGN(const std::uint64_t spare,
                        parse_blocks("--spare-blocks", flags.spare_blocks));
    return pool::with_capacity(shape, capacity, spare);
  }
  if (!flags.spare_blocks.empty() || !flags.device_bytes.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--size: with %s, expected --capacity or --capacity-blocks there",
                       flags.spare_blocks.empty() ? "--device-bytes" : "--spare-blocks");
  }
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, parse_bytes("--size", flags.size));
  Result<pool::Geometry> fits = pool::fitting(shape, bytes);
  if (!fits) return Error::make(fits.error().code, "--size: %s", fits.error().message);
  return fits;
}

// After devices and growable.
Status set_domains(const GeometryFlags& flags, pool::Geometry& geometry) {
  const Status is_set = pool::set_domains(geometry, flags.domain);
  if (is_set) return {};
  return Error::make(is_set.error().code, "--%s", is_set.error().message);
}

}  // namespace

void add_pool_flag(Command& app, Paths& paths) {
  app.add_option("path,--pool", paths,
                 "the pool: a file, shm:NAME or a devdax device; for several devices all of them "
                 "in order, or the first if the others are PATH.1, PATH.2, …")
      ->required()
      ->expected(1, -1)
      ->type_name("PATH");
}

void add_geometry_flags(Command& app, GeometryFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)->type_name(type)->group(kGeometryGroup);
  };
  add("--block-bytes", flags.block_bytes, "BYTES", "bytes of a block, a multiple of 64");
  add_model_flag(
      app, flags.model, LayersOf::kBlock,
      "instead: the block of this model, all layers; with and without windows: those that vLLM "
      "keeps in one block")
      ->group(kGeometryGroup);
  add("--block-tokens", flags.block_tokens, "N", "tokens of a block, with --model")
      ->transform(number(1, 1u << 20));
  add("--size", flags.size, "BYTES", "what the pool takes in all: as many blocks as fit");
  add("--max-size", flags.max_size, "BYTES",
      "the pool may grow by devices that are added later, until it takes this in all; its lines "
      "take 0.1 to 2 % "
      "of this from the beginning");
  add("--capacity", flags.capacity, "BYTES",
      "instead: bytes of blocks that may be published at a time; the pool takes up to an eighth "
      "more, and what its lines take");
  add("--capacity-blocks", flags.capacity_blocks, "N",
      "instead: blocks that may be published at a time");
  add("--spare-blocks", flags.spare_blocks, "N",
      "blocks beyond the capacity, for grants (default: 64 and 64 a client, at most 32 MiB a "
      "client "
      "and an eighth of the capacity)");
  add("--domain", flags.domain, "coherent|noncoherent[,…]",
      "coherent, or noncoherent: memory without cache coherence; or one for each device, a "
      "coherent "
      "one first: coherent,noncoherent (with --max-size the second is of all added devices)")
      ->capture_default_str();
  add("--devices", flags.devices, "D", "devices to interleave (default: the number of paths)")
      ->transform(number(1, pool::kMaxDevices));
  add("--device-bytes", flags.device_bytes, "BYTES", "size of each device (default: as needed)");
  add("--clients", flags.clients, "N",
      "client slots for engines, over all hosts; each host has one more for operators. An engine "
      "takes one, and one for each rank")
      ->transform(number(1, pool::kMaxClients))
      ->default_str(std::to_string(pool::kDefaultClients));
  add("--note-bytes", flags.note_bytes, "BYTES",
      "room beside each block for its tokens, which events name: 32 and 4 a token, a multiple of "
      "64; "
      "0: none")
      ->transform(number(0, pool::kMaxNoteBytes))
      ->capture_default_str();
  add("--hosts", flags.hosts, "N", "machines that share the pool")
      ->transform(number(1, pool::kMaxClients))
      ->capture_default_str();
}

Result<pool::Geometry> make_geometry(const GeometryFlags& flags, const Paths& paths) {
  pool::Geometry geometry;
  geometry.devices = flags.devices != 0 ? flags.devices : static_cast<std::uint32_t>(paths.size());
  if (paths.size() != 1 && paths.size() != geometry.devices) {
    return Error::make(Code::kInvalidArgument,
                       "the pool: %zu paths were given for %u device%s, expected one, or all",
                       paths.size(), geometry.devices, geometry.devices == 1 ? "" : "s");
  }
  if (flags.max_size.empty()) CACHALOT_TRY(set_domains(flags, geometry));
  const std::uint32_t clients = flags.clients != 0 ? flags.clients : pool::kDefaultClients;
  if (flags.hosts > clients) {
    return Error::make(Code::kInvalidArgument,
                       "--hosts: %u hosts and %u client slots: expected at least one slot for each",
                       flags.hosts, clients);
  }
  // One more of each host is the operators'.
  geometry.clients = clients + flags.hosts;
  geometry.hosts = flags.hosts;
  if (geometry.clients > pool::kMaxClients) {
    return Error::make(Code::kInvalidArgument,
                       "--clients: %u client slots, and one for operators on each of %u hosts, are "
                       "more than %u",
                       clients, flags.hosts, pool::kMaxClients);
  }
  CACHALOT_TRY_ASSIGN(geometry.block_bytes, wanted_block_bytes(flags));
  geometry.note_bytes = flags.note_bytes;
  CACHALOT_TRY_ASSIGN(geometry, sized(flags, geometry));
  if (!flags.max_size.empty()) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t most, parse_bytes("--max-size", flags.max_size));
    Result<pool::Geometry> grows = pool::with_room_to_grow(geometry, most, !flags.size.empty());
    if (!grows) return Error::make(grows.error().code, "--max-size: %s", grows.error().message);
    geometry = *std::move(grows);
    CACHALOT_TRY(set_domains(flags, geometry));
  }
  if (!flags.device_bytes.empty()) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, parse_bytes("--device-bytes", flags.device_bytes));
  }
  CACHALOT_TRY(pool::lay_out(geometry));
  return geometry;
}

GeometryFlags with_defaults_of(GeometryFlags flags, const pool::Geometry& found) {
  if (flags.clients == 0) flags.clients = found.engine_clients();
  if (flags.spare_blocks.empty() && flags.size.empty())
    flags.spare_blocks = std::to_string(found.blocks - found.capacity_blocks);
  return flags;
}

Status check_same_geometry(const pool::Geometry& wanted, const pool::Geometry& found,
                           const char* name) {
  struct Field {
    const char* what;
    std::uint64_t wanted, found;
  };
  if (pool::domains_text(wanted) != pool::domains_text(found)) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with another domain: %s, the flags say %s", name,
                       pool::domains_text(found).c_str(), pool::domains_text(wanted).c_str());
  }
  const Field fields[] = {
      // What flags say comes before what follows from them: of --size and the others the capacity does.
      {"block bytes", wanted.block_bytes, found.block_bytes},
      {"devices", wanted.devices, found.devices},
      {"client slots", wanted.engine_clients(), found.engine_clients()},
      {"hosts", wanted.hosts, found.hosts},
      {"note bytes", wanted.note_bytes, found.note_bytes},
      {"room to grow (1: it has)", wanted.growable, found.growable},
      {"capacity in blocks", wanted.capacity_blocks, found.capacity_blocks},
      {"spare blocks", wanted.blocks - wanted.capacity_blocks,
       found.blocks - found.capacity_blocks},
      {"device bytes", wanted.device_bytes, found.device_bytes},
  };
  for (const Field& field : fields) {
    if (field.wanted == field.found) continue;
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with other %s: %" PRIu64 ", the flags say %" PRIu64
                       "; serve it without --create, or remove it first: cachalot pool destroy",
                       name, field.what, field.found, field.wanted);
  }
  return {};
}

std::string file_name_of(const std::string& path) {
  constexpr std::string_view kShm = "shm:";
  return path.starts_with(kShm) ? "/dev/shm/" + path.substr(kShm.size()) : path;
}

Result<Output> open_output(const char* flag, const std::string& file, const Paths& paths) {
  if (file.empty() || file == "-") return Output::open(file);
  for (const std::string& path : pool::device_paths(paths, pool::kMaxDevices)) {
    if (!is_one_file(file, file_name_of(path))) continue;
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%.120s\" is a device of the pool, expected another file", flag,
                       file.c_str());
  }
  return Output::open(file);
}

void add_foreign_flag(Command& app, bool& allow_foreign) {
  app.add_flag("--allow-foreign-pool", allow_foreign,
               "also use a pool whose files belong to neither this user nor root, or that every "
               "user may write to");
}

Result<pool::Pool> open_pool(const Paths& paths, bool allow_foreign) {
  return pool::Pool::open(paths,
                          {.huge_pages = false, .populate = false, .allow_foreign = allow_foreign});
}

Result<pool::Pool> open_pool_to_read(const Paths& paths) {
  Result<pool::Pool> writable = open_pool(paths, true);
  if (writable || writable.error().code != Code::kPermission) return writable;
  pool::OpenOptions options;
  options.huge_pages = false;
  options.read_only = options.allow_foreign = true;
  return pool::Pool::open(paths, options);
}

Error of_pool(const Paths& paths, const Error& error) {
  if (std::strstr(error.message, paths[0].substr(0, 60).c_str()) != nullptr) return error;
  Error named = Error::make(error.code, "%.110s: %s", paths[0].c_str(), error.message);
  named.os_error = error.os_error;
  named.detail = error.detail;
  return named;
}

}  // namespace cachalot::apps
