// A client as Python holds it: with the memory that it was told of kept alive, safe against
// detaching while other threads call, and harmless in a forked child.
//
// Invariants
//   1. Memory of a registered cache or buffer is let go only when no copy uses it any more; what a GPU may
//      still write to, of which a copy failed, never. (What was given as an address is its owner's to keep.)
//   2. After detach() no LayerLoad or LayerStore of it holds anything of the pool.
//
// @threads  all but call() needs the GIL
#pragma once

#include <cachalot/client.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call_gate.h"
#include "error.h"
#include "gil_release.h"
#include "memory.h"

namespace cachalot::python {

class ClientObject;

// What must end before its client detaches: shared, so that nothing is freed under who ends it.
class Detachable {
 public:
  virtual ~Detachable() = default;
  virtual void end() = 0;  // without the GIL, no call under way
};

class ClientObject {
 public:
  explicit ClientObject(Client client);
  ClientObject(const ClientObject&) = delete;
  ClientObject& operator=(const ClientObject&) = delete;
  ~ClientObject();

  // Calls without the GIL; nothing of Python may be touched inside. @errors kInvalidArgument: detaching
  template <class F>
  auto call(F&& function) -> decltype(function(std::declval<Client&>())) {
    const GilRelease release;
    const CallGate::Visit visit(gate_);
    if (!visit) return Error::make(Code::kInvalidArgument, "client: it has detached from its pool");
    return function(client_);
  }
  // For what copies nothing and never waits.
  const Client& client() const { return client_; }

  void detach();
  Status close();  // what detach() does without the GIL
  bool is_forked() const { return getpid() != pid_; }

  CacheId register_cache(const PagedCache& cache, std::vector<Memory> tensors);
  void unregister_cache(CacheId cache);
  void register_buffer(Memory memory);
  void unregister_buffer(void* data);

  // Inside call(): so one that detaches has either refused the call or sees what it began, and nothing
  // ends while it detaches but by its hand.
  void add(std::shared_ptr<Detachable> object) {
    const std::lock_guard lock(detachables_mutex_);
    detachables_.insert(std::move(object));
  }
  void remove(const std::shared_ptr<Detachable>& object) {
    const std::lock_guard lock(detachables_mutex_);
    detachables_.erase(object);
  }

  // For Python's collector: the tensors; and what the destructor does, when nobody can call any more.
  int traverse(visitproc visit, void* arg) const;
  void collect();

  // Of a call whose handle is gone: claimed later, so that nobody has to hold on to handles.
  void drop(Token token) { dropped_.push_back(token); }
  void claim_dropped();

 private:
  Status end();  // without the GIL, the gate closed
  void let_go(const Status& detached);

  Client client_;
  const pid_t pid_ = getpid();
  CallGate gate_;
  std::mutex detaching_;  // taken without the GIL
  struct Tensors {
    std::vector<Memory> memory;
    bool on_gpu = false;
  };
  static void keep_until_exit(Tensors tensors);
  std::unordered_map<std::uint32_t, Tensors> caches_;
  std::map<void*, Memory> buffers_;
  std::mutex detachables_mutex_;  // held for nothing else; the GIL may be held or not
  std::unordered_set<std::shared_ptr<Detachable>> detachables_;
  std::vector<Token> dropped_;
};

// A registered cache in Python: its number, and whose it is.
struct CacheObject {
  nb::object owner;
  ClientObject* client;
  CacheId id;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner.ptr());
    return 0;
  }
};

// Of a method that keeps its `self`. Raises TypeError: another type's object, or one that did not attach.
ClientObject& client_of(nb::handle self);

// Seconds or None, a first layer, and so many of them or None.
CopyOptions copy_options(nb::handle timeout, nb::handle stream);
CopyOptions copy_options(nb::handle first_layer, nb::handle layers, nb::handle timeout,
                         nb::handle stream);
// A stream's number, or an object that has one (torch.cuda.Stream); None: none. Raises TypeError.
std::optional<CudaStream> stream_of(nb::handle stream);

// The cache's number. Raises InvalidArgumentError: another client's.
CacheId id_of(const ClientObject& client, const CacheObject& cache);

void add_objects(nb::class_<ClientObject>& client);

}  // namespace cachalot::python
