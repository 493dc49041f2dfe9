// Layer by layer, to overlap copies with computation.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <mutex>

#include "client_object.h"
#include "collected.h"
#include "hash.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

// An open load or store, until its handle, its client or the process ends it.
// @threads any, without the GIL
template <class T>
class Begun final : public Detachable {
 public:
  explicit Begun(T begun) : begun_(std::make_unique<T>(std::move(begun))) {}
  void end() override { reset(nullptr); }
  // Called by its owner. `what`: for the message of later calls.
  void end(const char* what) { reset(what); }
  // For a forked child, in which the pool is not mapped. Takes no lock: a thread of the parent may have held it.
  void abandon() { (void)begun_.release(); }

  template <class F>
  auto call(F&& function) -> decltype(function(std::declval<T&>())) {
    const std::lock_guard lock(one_at_a_time_);
    if (begun_ != nullptr) return function(*begun_);
    if (ended_ != nullptr) {
      return Error::make(Code::kInvalidArgument, "%s: it has ended; begin another one", ended_);
    }
    return Error::make(Code::kInvalidArgument, "client: it has detached from its pool");
  }

 private:
  void reset(const char* what) {
    const std::lock_guard lock(one_at_a_time_);
    if (begun_ != nullptr) ended_ = what;
    begun_.reset();
  }

  std::mutex one_at_a_time_;
  std::unique_ptr<T> begun_;
  const char* ended_ = nullptr;
};

// A LayerLoad or LayerStore. Ends when its client detaches; does nothing in a forked child.
template <class T>
class LayerObject {
 public:
  // `begin` creates it; called without the GIL.
  template <class F>
  static std::unique_ptr<LayerObject> make(nb::object owner, ClientObject& client, F&& begin) {
    std::unique_ptr<LayerObject> object(new LayerObject(std::move(owner), client));
    object->begun_ = value_of(client.call([&](Client& c) -> Result<std::shared_ptr<Begun<T>>> {
      CACHALOT_TRY_ASSIGN(T made, begin(c));
      auto begun = std::make_shared<Begun<T>>(std::move(made));
      client.add(begun);
      return begun;
    }));
    return object;
  }
  LayerObject(const LayerObject&) = delete;
  LayerObject& operator=(const LayerObject&) = delete;
  ~LayerObject() {
    if (begun_ == nullptr) return;
    if (client_.is_forked()) {
      begun_->abandon();
    } else {
      end("");
    }
  }
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner_.ptr());
    return 0;
  }
  void end(const char* what) {
    if (client_.is_forked()) return;  // belongs to the parent
    // If the client is detaching, the call is rejected, and the detaching thread ends the object.
    (void)client_.call([&](Client&) -> Status {
      client_.remove(begun_);
      begun_->end(what);
      return {};
    });
  }

  template <class F>
  auto call(F&& function) -> decltype(function(std::declval<T&>())) {
    if (client_.is_forked()) {
      return Error::make(Code::kUnsupported,
                         "layers: this process is a fork of the one that attached");
    }
    return client_.call(
        [&](Client&) -> decltype(function(std::declval<T&>())) { return begun_->call(function); });
  }

 private:
  LayerObject(nb::object owner, ClientObject& client) : owner_(std::move(owner)), client_(client) {}

  const nb::object owner_;
  ClientObject& client_;
  std::shared_ptr<Begun<T>> begun_;
};
using LoadObject = LayerObject<Client::LayerLoad>;
using StoreObject = LayerObject<Client::LayerStore>;

std::unique_ptr<LoadObject> begin_load(nb::object self, const CacheObject& cache, nb::handle hashes,
                                       nb::handle pages, nb::handle stream, bool pinned) {
  ClientObject& client = client_of(self);
  const LayerOptions options{.cuda_stream = stream_of(stream), .pinned = pinned};
  const CacheId id = id_of(client, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  return LoadObject::make(std::move(self), client,
                          [&](Client& c) { return c.begin_load(id, names.get(), to, options); });
}

std::unique_ptr<StoreObject> begin_store(nb::object self, const CacheObject& cache,
                                         nb::handle hashes, nb::handle pages, nb::handle parent,
                                         nb::handle stream) {
  ClientObject& client = client_of(self);
  const LayerOptions options{.cuda_stream = stream_of(stream)};
  const CacheId id = id_of(client, cache);
  const Hashes names(hashes);
  const std::vector<PageId> from = Numbers::copy(pages, "pages");
  const std::optional<BlockHash> before = parent_of(parent);
  return StoreObject::make(std::move(self), client, [&](Client& c) {
    return c.begin_store(id, before ? &*before : nullptr, names.get(), from, options);
  });
}

// end(), and `with`.
template <class T>
void add_end(nb::class_<LayerObject<T>>& handle, const char* what, const char* enter,
             const char* doc) {
  handle.def(
      "end", [what](LayerObject<T>& self) { self.end(what); }, doc);
  handle.def(
      "__enter__", [](nb::object self) { return self; }, nb::sig(enter));
  handle.def(
      "__exit__", [what](LayerObject<T>& self, nb::args) { self.end(what); },
      nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

void add_layerwise(nb::module_& module) {
  nb::class_<LoadObject> loads(
      module, "LayerLoad", nb::type_slots(kTraverse<LoadObject>),
      "A load layer by layer, from Client.begin_load(), to overlap copies with\n"
      "computation. Open until every layer is loaded, no block is valid any more, or it\n"
      "ends (`with`, end()). While it is open, its cache cannot be unregistered.");
  add_end(loads, "layer load", "def __enter__(self) -> LayerLoad",
          "Ends the load. Its cache can then be unregistered. Calling it again does nothing.");
  loads
      .def_prop_ro(
          "blocks",
          [](LoadObject& self) {
            return value_of(self.call(
                [](Client::LayerLoad& load) -> Result<std::size_t> { return load.blocks(); }));
          },
          "Leading blocks that are still valid.")
      .def(
          "start_layer",
          [](LoadObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerLoad& load) { return load.start_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def start_layer(self, layer: int) -> None"),
          "GPU cache: launches the copy of a layer on the load's stream and returns. Other\n"
          "caches: does nothing. Later work on that stream may use the layer, but results\n"
          "computed from it must not leave the step before load_layer() has returned how many\n"
          "blocks are valid, unless the load is pinned.\n"
          "\n"
          "Raises InvalidArgumentError: no such layer; the layer was started and not loaded\n"
          "since; all are loaded. After an error no copy was launched, and results of work\n"
          "that is already on the stream are void.")
      .def(
          "load_layer",
          [](LoadObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            return value_of(
                self.call([&](Client::LayerLoad& load) { return load.load_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def load_layer(self, layer: int) -> int"),
          "Copies the layer, or waits for the copy that start_layer() launched. Returns how\n"
          "many leading blocks are valid; results computed from later blocks are void.\n"
          "Checksums are verified after the last layer.\n"
          "\n"
          "Raises InvalidArgumentError: no such layer.");
  nb::class_<StoreObject> stores(
      module, "LayerStore", nb::type_slots(kTraverse<StoreObject>),
      "A store layer by layer, from Client.begin_store(), to overlap copies with\n"
      "computation. Open until finish(), or until it ends (`with`, end()). While it is\n"
      "open, its cache cannot be unregistered. Blocks of an unfinished store are not\n"
      "published.");
  add_end(stores, "layer store", "def __enter__(self) -> LayerStore",
          "Ends the store. If it is not finished, its blocks are not published. Its cache can\n"
          "then be unregistered. Calling it again does nothing.");
  stores
      .def(
          "start_layer",
          [](StoreObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerStore& store) { return store.start_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def start_layer(self, layer: int) -> None"),
          "GPU cache: launches the copy of a layer on the store's stream, after the work that\n"
          "computes it, and returns. Other caches: does nothing. Do not write the pages\n"
          "before store_layer() or finish() returns.\n"
          "\n"
          "Raises InvalidArgumentError: no such layer; the layer was started or stored\n"
          "already.")
      .def(
          "store_layer",
          [](StoreObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerStore& store) { return store.store_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def store_layer(self, layer: int) -> None"),
          "Copies the layer of all blocks into the pool, or waits for the copy that\n"
          "start_layer() launched. Blocks get checksums only if the layers are stored in order\n"
          "and the block order keeps each layer in one piece.\n"
          "\n"
          "Raises InvalidArgumentError: no such layer; the layer was stored already.")
      .def(
          "finish",
          [](StoreObject& self) {
            return value_of(self.call([](Client::LayerStore& store) { return store.finish(); }));
          },
          "Waits for started layers, then publishes the blocks. Call it once. Returns how\n"
          "many leading blocks are in the pool, and why not all.\n"
          "\n"
          "Raises InvalidArgumentError: a layer is missing, or the store was finished before;\n"
          "StaleError: another keeper has taken over since begin_store(), store again.");

  auto client = nb::borrow<nb::class_<ClientObject>>(module.attr("Client"));
  client
      .def("begin_load", &begin_load, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("pinned") = false,
           nb::sig("def begin_load(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, stream: cachalot.types.Stream = None, "
                   "pinned: bool = False) -> LayerLoad"),
           "As load(), layer by layer: LayerLoad.load_layer().\n"
           "\n"
           "stream: GPU cache: the stream of the copies of all layers; None: the cache's stream\n"
           "pinned: the pool does not reuse the blocks that begin_load() found while the load\n"
           "    is open, so results of a layer may be used before load_layer() returns. Close\n"
           "    pinned loads soon: they delay the reuse of all evicted blocks\n"
           "\n"
           "Raises as load(). Pinned also UnsupportedError: the client has no pinned_reads;\n"
           "NoKeeperError, TimeoutError: the client had to attach again and could not.")
      .def("begin_store", &begin_store, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("parent") = nb::none(),
           nb::arg("stream") = nb::none(),
           nb::sig("def begin_store(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "parent: cachalot.types.Parent = None, stream: cachalot.types.Stream = None) -> "
                   "LayerStore"),
           "As store(), layer by layer and of at most 32 blocks: LayerStore.store_layer(),\n"
           "then finish(). stream: as for begin_load().\n"
           "\n"
           "Raises as store(); UnsupportedError: in this block order, a layer of a block is\n"
           "not a multiple of 64 bytes.");
}

}  // namespace cachalot::python
