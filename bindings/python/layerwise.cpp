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
  nb::class_<LoadObject> loads(module, "LayerLoad", nb::type_slots(kTraverse<LoadObject>),
                               "A load that goes on layer by layer. Until every layer is loaded, "
                               "or it ends (`with`, end()), "
                               "its cache\n"
                               "is not unregistered.");
  add_end(loads, "layer load", "def __enter__(self) -> LayerLoad",
          "Needs the cache no more; a second time does nothing.");
  loads
      .def_prop_ro(
          "blocks",
          [](LoadObject& self) {
            return value_of(self.call(
                [](Client::LayerLoad& load) -> Result<std::size_t> { return load.blocks(); }));
          },
          "Leading blocks that are there still.")
      .def(
          "start_layer",
          [](LoadObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerLoad& load) { return load.start_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def start_layer(self, layer: int) -> None"),
          "Of a GPU's cache: launches the copy of a layer on the load's stream and returns. "
          "load_layer() waits for\n"
          "it; before it has said how many blocks are right, nothing that was computed from the "
          "layer may leave the\n"
          "step. Does nothing for other caches.")
      .def(
          "load_layer",
          [](LoadObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            return value_of(
                self.call([&](Client::LayerLoad& load) { return load.load_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def load_layer(self, layer: int) -> int"),
          "Returns how many leading blocks are right in this layer: what was computed from those "
          "behind is void.");
  nb::class_<StoreObject> stores(
      module, "LayerStore", nb::type_slots(kTraverse<StoreObject>),
      "A store that goes on layer by layer; what is not finished is not published. Until it is, or "
      "it ends\n"
      "(`with`, end()), its cache is not unregistered.");
  add_end(
      stores, "layer store", "def __enter__(self) -> LayerStore",
      "Gives up what was not finished, and needs the cache no more; a second time does nothing.");
  stores
      .def(
          "start_layer",
          [](StoreObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerStore& store) { return store.start_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def start_layer(self, layer: int) -> None"),
          "Of a GPU's cache: launches the copy of a layer on the store's stream, behind what "
          "computes it, and\n"
          "returns; store_layer() or finish() waits. Does nothing for other caches.")
      .def(
          "store_layer",
          [](StoreObject& self, nb::handle layer) {
            const std::uint32_t wanted = number(layer, "layer");
            check(self.call([&](Client::LayerStore& store) { return store.store_layer(wanted); }));
          },
          nb::arg("layer"), nb::sig("def store_layer(self, layer: int) -> None"),
          "Copies one layer of all blocks from the engine's pages into the pool.")
      .def(
          "finish",
          [](StoreObject& self) {
            return value_of(self.call([](Client::LayerStore& store) { return store.finish(); }));
          },
          "Publishes the blocks.");

  auto client = nb::borrow<nb::class_<ClientObject>>(module.attr("Client"));
  client
      .def("begin_load", &begin_load, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("pinned") = false,
           nb::sig("def begin_load(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, stream: cachalot.types.Stream = None, "
                   "pinned: bool = False) -> LayerLoad"),
           "As load(), layer by layer: see LayerLoad.load_layer(). pinned: the blocks are kept "
           "while "
           "it is open, so\n"
           "that what is computed from them may leave the step before they are counted; the client "
           "has pinned_reads.")
      .def("begin_store", &begin_store, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("parent") = nb::none(),
           nb::arg("stream") = nb::none(),
           nb::sig("def begin_store(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "parent: cachalot.types.Parent = None, stream: cachalot.types.Stream = None) -> "
                   "LayerStore"),
           "As store() of at most 32 blocks, layer by layer: see LayerStore.store_layer() and "
           "finish().");
}

}  // namespace cachalot::python
