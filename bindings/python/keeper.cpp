#include <cachalot/keeper.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "error.h"
#include "gil_release.h"
#include "keywords.h"
#include "leave.h"
#include "live.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

// Does nothing in a forked child: the keeper and its thread belong to the parent.
class KeeperObject {
 public:
  explicit KeeperObject(const KeeperOptions& options) : pool_(options.pool) {
    Result<EmbeddedKeeper> started = [&] {
      const GilRelease release;
      return EmbeddedKeeper::start(options);
    }();
    keeper_ = std::make_unique<EmbeddedKeeper>(value_of(std::move(started)));
    Live<KeeperObject>::add(this);
  }
  KeeperObject(const KeeperObject&) = delete;
  KeeperObject& operator=(const KeeperObject&) = delete;
  ~KeeperObject() {
    Live<KeeperObject>::remove(this);
    (void)end();
  }

  const std::string& pool() const { return pool_; }
  void stop() {
    if (keeper_ != nullptr && is_forked()) {
      raise(Error::make(Code::kUnsupported,
                        "%.120s: this process is a fork of the one that runs the keeper",
                        pool_.c_str()));
    }
    check(end());
  }
  // The part of stop() without the GIL; also called after Python has ended.
  void close() {
    if (keeper_ != nullptr && !is_forked()) (void)keeper_->stop();
  }
  bool is_forked() const { return getpid() != pid_; }
  bool is_serving() const { return keeper_ != nullptr && !is_forked() && keeper_->is_serving(); }

 private:
  Status end() {
    std::unique_ptr<EmbeddedKeeper> keeper = std::move(keeper_);
    if (keeper == nullptr) return {};
    if (is_forked()) {
      (void)keeper.release();
      return {};
    }
    const GilRelease release;
    Status stopped = keeper->stop();
    keeper.reset();
    return stopped;
  }

  const std::string pool_;
  const pid_t pid_ = getpid();
  std::unique_ptr<EmbeddedKeeper> keeper_;
};

constexpr const char* kSignature =
    "def __init__(self, *, pool: str | os.PathLike[str], block_bytes: int = 0, "
    "capacity_blocks: int = 0, "
    "clients: int = 0, domain: str = '', policy: str = 'lru', allow_foreign_pool: "
    "bool = False, keep_pool: bool = False, size_bytes: int = 0, "
    "without_lost_devices: bool = False) -> None";

}  // namespace

void end_keepers() {
  for (KeeperObject* const keeper : Live<KeeperObject>::all()) keeper->close();
}

void add_keeper(nb::module_& module) {
  nb::class_<KeeperObject>(
      module, "EmbeddedKeeper",
      "A keeper inside this process: for tests, and for an engine that needs its own pool\n"
      "without another process. `cachalot serve` runs the same keeper as a program.\n"
      "\n"
      "    with EmbeddedKeeper(pool='/dev/shm/kv', block_bytes=geometry.block_bytes,\n"
      "                        capacity_blocks=4096):\n"
      "        ...\n"
      "\n"
      "The pool is created if it does not exist, and removed again by stop(). If it\n"
      "exists, sizes, clients and domain that are given must be those of the pool, and its\n"
      "blocks at least as large.\n"
      "\n"
      "block_bytes: size of a block, a multiple of 64\n"
      "capacity_blocks: blocks that may be published at a time, or\n"
      "size_bytes: what the pool takes in all: as many blocks as fit\n"
      "clients: client slots; 0: 64, or those of the existing pool\n"
      "domain: 'coherent' or 'noncoherent'; '': 'coherent', or that of the existing pool\n"
      "policy: the eviction policy, as for `cachalot serve --policy`\n"
      "allow_foreign_pool: as for Client, of a pool that exists\n"
      "keep_pool: stop() leaves the pool to the next keeper\n"
      "without_lost_devices: give devices up, with their blocks, that were added to the\n"
      "    pool and cannot be opened\n"
      "\n"
      "Raises BusyError: the pool has a keeper, or another process has not finished\n"
      "creating it within two seconds; NoSpaceError; InvalidArgumentError: a value that\n"
      "is missing, out of range or not that of the existing pool; errors of opening a\n"
      "pool.")
      .def(
          "__init__",
          [](KeeperObject* self, const nb::object& pool, nb::handle block_bytes,
             nb::handle capacity_blocks, nb::handle clients, const std::string& domain,
             const std::string& policy, bool allow_foreign_pool, bool keep_pool,
             nb::handle size_bytes, bool without_lost_devices, const nb::kwargs& unknown) {
            refuse_unknown(unknown, "EmbeddedKeeper", kSignature);
            KeeperOptions options;
            options.pool = path(pool, "pool");
            options.block_bytes = whole_number(block_bytes, "block_bytes", ~std::uint64_t{0});
            options.capacity_blocks =
                whole_number(capacity_blocks, "capacity_blocks", ~std::uint64_t{0});
            options.size_bytes = whole_number(size_bytes, "size_bytes", ~std::uint64_t{0});
            options.clients = number(clients, "clients");
            options.domain = domain;
            options.policy = policy;
            options.allow_foreign_pool = allow_foreign_pool;
            options.keep_pool = keep_pool;
            options.without_lost_devices = without_lost_devices;
            new (self) KeeperObject(options);
          },
          nb::kw_only(), nb::arg("pool") = nb::none(), nb::arg("block_bytes") = 0,
          nb::arg("capacity_blocks") = 0, nb::arg("clients") = 0, nb::arg("domain") = "",
          nb::arg("policy") = "lru", nb::arg("allow_foreign_pool") = false,
          nb::arg("keep_pool") = false, nb::arg("size_bytes") = 0,
          nb::arg("without_lost_devices") = false, nb::arg("unknown"), nb::sig(kSignature))
      .def_prop_ro("pool", &KeeperObject::pool, "The pool's path.")
      .def("stop", &KeeperObject::stop,
           "Stops the keeper. Removes the pool's files if this keeper created them and they\n"
           "were not replaced, except with keep_pool. Attached clients can still read. Calling it "
           "again does nothing.\n"
           "\n"
           "Raises StaleError: another keeper had taken over, or the pool's files were\n"
           "removed; the keeper has stopped anyway. UnsupportedError: in a forked child.")
      .def_prop_ro(
          "is_serving", &KeeperObject::is_serving,
          "False after stop(), and once another keeper has taken over or the pool's files\n"
          "were removed.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> EmbeddedKeeper"))
      .def(
          "__exit__",
          [](KeeperObject& self, nb::args exception) {
            // A forked child also runs the end of its parent's `with`
            if (self.is_forked()) return;
            leave(exception, [&] { self.stop(); });
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__",
           [](const KeeperObject& self) { return "EmbeddedKeeper(pool='" + self.pool() + "')"; });
}

}  // namespace cachalot::python
