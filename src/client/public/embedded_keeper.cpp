#include <cachalot/keeper.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "client/fork_guard.h"
#include "pool/format/domains.h"
#include "pool/making.h"
#include "pool/open_when_made.h"
#include "pool/pool.h"
#include "pool/sizing.h"

namespace cachalot {
namespace {

// @param clients  slots of engines
Result<pool::Geometry> pool_geometry_of(const KeeperOptions& options, std::uint32_t clients) {
  if ((options.capacity_blocks == 0) == (options.size_bytes == 0)) {
    return Error::make(Code::kInvalidArgument,
                       "a new pool: %" PRIu64 " blocks of capacity and a size of %" PRIu64
                       " bytes were given, expected one of the two",
                       options.capacity_blocks, options.size_bytes);
  }
  if (options.block_bytes == 0 || options.block_bytes > ~std::uint64_t{0} - memory::kLineBytes) {
    return Error::make(Code::kInvalidArgument, "block bytes: %" PRIu64 " is no size of a block",
                       options.block_bytes);
  }
  if (clients >= pool::kMaxClients) {
    return Error::make(Code::kInvalidArgument, "clients: %u is not within 1 to %u", clients,
                       pool::kMaxClients - 1);
  }
  pool::Geometry geometry;
  CACHALOT_TRY(pool::set_domains(geometry, options.domain.empty() ? "coherent" : options.domain));
  geometry.block_bytes = pool::padded_bytes(options.block_bytes);
  geometry.clients = clients + geometry.hosts;  // plus one operator slot per host
  geometry.note_bytes = pool::kDefaultNoteBytes;
  return options.size_bytes != 0 ? pool::fitting(geometry, options.size_bytes)
                                 : pool::with_capacity(geometry, options.capacity_blocks);
}

Status check_same(const KeeperOptions& options, const pool::Geometry& found) {
  const auto differs = [&](const char* what, std::uint64_t wanted, std::uint64_t is) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with other %s: %" PRIu64 ", not %" PRIu64,
                       options.pool.c_str(), what, is, wanted);
  };
  if (options.block_bytes > found.block_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with blocks of %" PRIu64
                       " bytes; expected at least %" PRIu64,
                       options.pool.c_str(), found.block_bytes, options.block_bytes);
  }
  if (options.capacity_blocks != 0 && options.capacity_blocks != found.capacity_blocks) {
    return differs("capacity in blocks", options.capacity_blocks, found.capacity_blocks);
  }
  // An earlier version took a size as the bytes of published blocks: the pools that it made are used.
  const bool is_of_earlier_version =
      found.capacity_blocks == options.size_bytes / found.block_bytes;
  if (options.size_bytes != 0 && options.block_bytes != 0 && !is_of_earlier_version) {
    KeeperOptions with_its_blocks = options;
    with_its_blocks.block_bytes = found.block_bytes;
    CACHALOT_TRY_ASSIGN(const pool::Geometry wanted,
                        pool_geometry_of(with_its_blocks, found.engine_clients()));
    if (pool::total_bytes(wanted) != pool::total_bytes(found))
      return differs("bytes in all", pool::total_bytes(wanted), pool::total_bytes(found));
  }
  if (options.clients != 0 && options.clients != found.engine_clients()) {
    return differs("client slots", options.clients, found.engine_clients());
  }
  if (options.domain.empty()) return {};
  pool::Geometry wanted = found;
  CACHALOT_TRY(pool::set_domains(wanted, options.domain));
  if (pool::domains_text(wanted) == pool::domains_text(found)) return {};
  return Error::make(Code::kInvalidArgument, "%.120s: exists with another domain: %s, not %s",
                     options.pool.c_str(), pool::domains_text(found).c_str(),
                     options.domain.c_str());
}

// Opens a pool that another process may still be creating.
Result<pool::Pool> open_when_made(const KeeperOptions& options) {
  constexpr std::uint32_t kPatienceMs = 2000;
  return pool::open_when_made({options.pool}, {.allow_foreign = options.allow_foreign_pool},
                              kPatienceMs);
}

struct Opened {
  pool::Pool pool;
  bool was_made;
  bool is_removed = false;  // when the keeper stops
};

Result<Opened> make_or_open(const KeeperOptions& options) {
  Result<pool::Pool> found = open_when_made(options);
  if (!found && found.error().code == Code::kNotFound) {
    pool::CreateOptions create;
    create.paths = {options.pool};
    CACHALOT_TRY_ASSIGN(
        create.geometry,
        pool_geometry_of(options, options.clients == 0 ? pool::kDefaultClients : options.clients));
    Result<pool::Pool> made = pool::Pool::create(create);
    if (made) return Opened{*std::move(made), true};
    if (made.error().code != Code::kBusy) return made.error();
    found = open_when_made(options);  // another process created it first
  }
  if (!found) return found.error();
  CACHALOT_TRY(check_same(options, found->access().geometry));
  return Opened{*std::move(found), false};
}

// The working directory may change before the keeper stops.
std::string fixed_path(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::path fixed = std::filesystem::absolute(path, unknown);
  return path.starts_with("shm:") || path.empty() || unknown ? path : fixed.string();
}

}  // namespace

struct EmbeddedKeeper::Impl {
  Impl(Opened opened, pool::PoolKeeper serving)
      : pool(std::move(opened.pool)), keeper(std::move(serving)), removes(opened.is_removed) {}
  ~Impl() { (void)end(); }

  Status end() {
    if (!thread.joinable()) return {};
    stop.store(true, std::memory_order_relaxed);
    thread.join();
    keeper.reset();  // releases its lock
    if (removes) {
      if (const Status removed = pool.remove(); !removed && outcome) return removed;
    }
    return std::move(outcome);
  }

  pool::Pool pool;
  std::optional<pool::PoolKeeper> keeper;
  const bool removes;
  const std::uint64_t forks = client::fork_generation();
  std::atomic<bool> stop = false;       // relaxed: the join orders everything else
  std::atomic<bool> has_ended = false;  // relaxed: nothing is read after it
  Status outcome;
  std::thread thread;
};

EmbeddedKeeper::EmbeddedKeeper(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddedKeeper::EmbeddedKeeper(EmbeddedKeeper&&) noexcept = default;
EmbeddedKeeper& EmbeddedKeeper::operator=(EmbeddedKeeper&& from) noexcept {
  EmbeddedKeeper taken(std::move(from));
  std::swap(impl_, taken.impl_);  // `taken` stops the previous keeper
  return *this;
}
EmbeddedKeeper::~EmbeddedKeeper() {
  // A forked child has no thread to join, and the pool belongs to the parent.
  if (impl_ != nullptr && client::fork_generation() != impl_->forks) (void)impl_.release();
}

Result<EmbeddedKeeper> EmbeddedKeeper::start(const KeeperOptions& given) {
  KeeperOptions options = given;
  options.pool = fixed_path(given.pool);
  CACHALOT_TRY_ASSIGN(Opened opened, make_or_open(options));
  pool::KeeperOptions serve;
  serve.policy = options.policy;
  serve.without_lost_devices = options.without_lost_devices;
  Result<pool::PoolKeeper> keeper = opened.pool.serve(serve);
  if (!keeper) {
    if (opened.was_made) (void)opened.pool.remove();
    return keeper.error();
  }
  opened.is_removed = opened.was_made && !options.keep_pool;
  auto impl = std::make_unique<Impl>(std::move(opened), *std::move(keeper));
  try {
    impl->thread = std::thread([at = impl.get()] {
      at->outcome = at->keeper->run(at->stop, [at] { return at->pool.check_still_there(); });
      at->has_ended.store(true, std::memory_order_relaxed);
    });
  } catch (const std::system_error& error) {
    impl->keeper.reset();
    if (impl->removes) (void)impl->pool.remove();
    return Error::from_errno(error.code().value(), "%.120s: a thread for its keeper",
                             options.pool.c_str());
  }
  return EmbeddedKeeper(std::move(impl));
}

bool EmbeddedKeeper::is_serving() const {
  return impl_ != nullptr && !impl_->has_ended.load(std::memory_order_relaxed);
}

Status EmbeddedKeeper::stop() {
  if (impl_ == nullptr) return Error::make(Code::kInvalidArgument, "keeper: it was moved from");
  if (client::fork_generation() != impl_->forks) {
    return Error::make(
        Code::kUnsupported,
        "keeper: it is the thread of another process, which this one was forked from");
  }
  return impl_->end();
}

}  // namespace cachalot
