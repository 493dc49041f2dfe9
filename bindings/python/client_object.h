// A client as a Python object: keeps registered memory alive, can detach while other threads call, and does
// nothing in a forked child.
//
// Invariants
//   1. Memory of a registered cache or buffer is released only when no copy uses it. Memory that a failed GPU
//      may still write is never released. (Memory given as an address is not kept: its owner must keep it.)
//   2. After detach() no LayerLoad or LayerStore of the client holds resources of the pool.
//
// @threads  all functions except call() need the GIL
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

// An object that must end before its client detaches. Shared, so that it is not freed while it is being ended.
class Detachable {
 public:
  virtual ~Detachable() = default;
  virtual void end() = 0;  // called without the GIL, with no call in flight
};

class ClientObject {
 public:
  explicit ClientObject(Client client);
  ClientObject(const ClientObject&) = delete;
  ClientObject& operator=(const ClientObject&) = delete;
  ~ClientObject();

  // Runs the call without the GIL; it must not use Python objects. @errors kInvalidArgument: detaching
  template <class F>
  auto call(F&& function) -> decltype(function(std::declval<Client&>())) {
    const GilRelease release;
    const CallGate::Visit visit(gate_);
    if (!visit) return Error::make(Code::kInvalidArgument, "client: it has detached from its pool");
    return function(client_);
  }
  // For calls that neither copy nor wait.
  const Client& client() const { return client_; }

  void detach();
  Status close();  // the part of detach() that runs without the GIL
  bool is_forked() const { return getpid() != pid_; }

  CacheId register_cache(const PagedCache& cache, std::vector<Memory> tensors);
  void unregister_cache(CacheId cache);
  void register_buffer(Memory memory);
  void unregister_buffer(void* data);

  // Call these inside call(). Then a detaching thread has either rejected the call or sees the new object,
  // and only that thread ends objects.
  void add(std::shared_ptr<Detachable> object) {
    const std::lock_guard lock(detachables_mutex_);
    detachables_.insert(std::move(object));
  }
  void remove(const std::shared_ptr<Detachable>& object) {
    const std::lock_guard lock(detachables_mutex_);
    detachables_.erase(object);
  }

  // For Python's garbage collector: visits the tensors; clears the object when no call is possible any more.
  int traverse(visitproc visit, void* arg) const;
  void collect();

  // Keeps the token of a call whose handle was destroyed, and claims its completion later.
  void drop(Token token) { dropped_.push_back(token); }
  void claim_dropped();

 private:
  Status end();  // called without the GIL, with the gate closed
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
  std::mutex detachables_mutex_;  // a leaf lock; taken with or without the GIL
  std::unordered_set<std::shared_ptr<Detachable>> detachables_;
  std::vector<Token> dropped_;
};

// A registered cache in Python: its number and its client.
struct CacheObject {
  nb::object owner;
  ClientObject* client;
  CacheId id;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner.ptr());
    return 0;
  }
};

// For methods that keep `self`. Raises TypeError: an object of another type, or without an attachment.
ClientObject& client_of(nb::handle self);

// Converts seconds or None, a first layer, and a number of layers or None.
CopyOptions copy_options(nb::handle timeout, nb::handle stream);
// A copy: other threads may run during the call. None: no tokens.
std::vector<std::uint32_t> stored_tokens(nb::handle tokens);
CopyOptions copy_options(nb::handle first_layer, nb::handle layers, nb::handle timeout,
                         nb::handle stream);
// Accepts a stream's number, an object with one (torch.cuda.Stream), or None. Raises TypeError.
std::optional<CudaStream> stream_of(nb::handle stream);

// The cache's number. Raises InvalidArgumentError: a cache of another client.
CacheId id_of(const ClientObject& client, const CacheObject& cache);

void add_objects(nb::class_<ClientObject>& client);

}  // namespace cachalot::python
