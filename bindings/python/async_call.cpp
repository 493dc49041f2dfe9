// The handles of asynchronous calls.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "client_object.h"
#include "collected.h"
#include "gil_release.h"
#include "hash.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

// Keeps the completion, which the library returns once. Destroying a handle does not end its call.
class AsyncCall {
 public:
  AsyncCall(nb::object owner, ClientObject& client, Token token)
      : owner_(std::move(owner)), client_(client), token_(token) {}
  AsyncCall(const AsyncCall&) = delete;
  AsyncCall& operator=(const AsyncCall&) = delete;
  ~AsyncCall() {
    if (!completion_) client_.drop(token_);
  }

  bool done() {
    check_process();
    // Outlives the lock: a thread that never gets the GIL again holds no lock
    const GilRelease release;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // another thread waits for the completion
    if (completion_) return true;
    // Not through the gate: completions are also valid after the detach.
    return keep(const_cast<Client&>(client_.client()).poll(token_));
  }
  bool wait(nb::handle timeout) {
    check_process();
    return wait_for(optional_seconds(timeout, "timeout"));
  }
  std::size_t result(nb::handle timeout) {
    check_process();
    const std::optional<double> most = optional_seconds(timeout, "timeout");
    if (!wait_for(most)) {
      raise(Error::make(Code::kTimeout, "call: it is not done within %g s", most.value_or(0)));
    }
    check(completion_->status);
    return completion_->blocks;
  }
  std::optional<const char*> reason() {
    if (!done() || !completion_->reason) return std::nullopt;
    return code_name(*completion_->reason);
  }
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner_.ptr());
    return 0;
  }
  void cancel() {
    check_process();
    if (done()) return;
    // Not through the gate: a detaching thread may be waiting for this call.
    const GilRelease release;
    (void)const_cast<Client&>(client_.client()).cancel(token_);
  }

 private:
  void check_process() const {
    if (!client_.is_forked()) return;
    raise(Error::make(Code::kUnsupported, "call: this process is a fork of the one that attached"));
  }
  bool keep(Result<Completion> completion) {
    if (!completion || !completion->is_done) return false;
    completion_.emplace(*std::move(completion));
    return true;
  }
  bool wait_for(std::optional<double> seconds) {
    // Waits in pieces, to handle signals (Ctrl-C) in between.
    constexpr std::uint64_t kPiece = 50'000'000;
    std::uint64_t left = nanoseconds(seconds);
    while (!wait_ns(std::min(left, kPiece))) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (left <= kPiece) return false;
      left -= kPiece;
    }
    return true;
  }
  bool wait_ns(std::uint64_t timeout_ns) {
    const GilRelease release;
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
    const std::unique_lock lock(mutex_, until);
    if (!lock) return false;
    if (completion_) return true;
    const auto left = std::chrono::nanoseconds(until - std::chrono::steady_clock::now()).count();
    return keep(const_cast<Client&>(client_.client())
                    .wait(token_, left > 0 ? static_cast<std::uint64_t>(left) : 0));
  }

  const nb::object owner_;
  ClientObject& client_;
  const Token token_;
  std::timed_mutex mutex_;
  std::optional<Completion> completion_;  // set once, under the mutex
};

std::unique_ptr<AsyncCall> load_async(nb::object self, const CacheObject& cache, nb::handle hashes,
                                      nb::handle pages, nb::handle first_layer, nb::handle layers,
                                      nb::handle timeout, nb::handle stream) {
  ClientObject& client = client_of(self);
  const CacheId id = id_of(client, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  client.claim_dropped();  // first: a client has a limited number of calls that are not claimed
  const Token token =
      value_of(client.call([&](Client& c) { return c.load_async(id, names.get(), to, options); }));
  return std::make_unique<AsyncCall>(std::move(self), client, token);
}

std::unique_ptr<AsyncCall> store_async(nb::object self, const CacheObject& cache, nb::handle hashes,
                                       nb::handle pages, nb::handle parent, nb::handle tokens,
                                       nb::handle timeout, nb::handle stream) {
  ClientObject& client = client_of(self);
  const CacheId id = id_of(client, cache);
  const Hashes names(hashes);
  const std::vector<PageId> from = Numbers::copy(pages, "pages");
  const std::optional<BlockHash> before = parent_of(parent);
  const std::vector<std::uint32_t> kept = stored_tokens(tokens);
  CopyOptions options = copy_options(timeout, stream);
  options.tokens = kept;
  client.claim_dropped();
  const Token token = value_of(client.call([&](Client& c) {
    return c.store_async(id, before ? &*before : nullptr, names.get(), from, options);
  }));
  return std::make_unique<AsyncCall>(std::move(self), client, token);
}

}  // namespace

void add_async_call(nb::module_& module) {
  nb::class_<AsyncCall>(
      module, "AsyncCall", nb::type_slots(kTraverse<AsyncCall>),
      "An asynchronous load or store. Do not touch the pages before it is done. Deleting\n"
      "this object does not end the call.")
      .def("done", &AsyncCall::done, "Returns whether the call is done. Does not wait.")
      .def("wait", &AsyncCall::wait, nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> bool"),
           "Waits up to `timeout` seconds, without limit if None. Returns whether the call is\n"
           "done.")
      .def("result", &AsyncCall::result, nb::arg("timeout") = nb::none(),
           nb::sig("def result(self, timeout: float | None = None) -> int"),
           "Waits, then returns how many leading blocks are loaded (load) or in the pool\n"
           "(store).\n"
           "\n"
           "Raises the call's error; CancelledError: it was cancelled; TimeoutError: the\n"
           "call's own timeout, or it is not done within `timeout` seconds.")
      .def_prop_ro(
          "reason", &AsyncCall::reason, nb::sig("def reason(self) -> str | None"),
          "Of a store that is done: why not all blocks are in the pool, as Stored.reason.\n"
          "Otherwise None.")
      .def("cancel", &AsyncCall::cancel,
           "Stops the call before its next block. The call still completes, and result() then\n"
           "raises CancelledError. Does nothing if the call is done.");

  auto client = nb::borrow<nb::class_<ClientObject>>(module.attr("Client"));
  client
      .def("load_async", &load_async, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("first_layer") = 0,
           nb::arg("layers") = nb::none(), nb::arg("timeout") = nb::none(),
           nb::arg("stream") = nb::none(),
           nb::sig("def load_async(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "first_layer: int = 0, layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> AsyncCall"),
           "Starts load() on a worker thread and returns at once. Do not touch the pages\n"
           "before the call is done.\n"
           "\n"
           "On a GPU the copies run after the work that is on the stream at the call. Work\n"
           "added to any stream later must not touch the pages before the call is done.")
      .def("store_async", &store_async, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::kw_only(), nb::arg("parent") = nb::none(),
           nb::arg("tokens") = nb::none(), nb::arg("timeout") = nb::none(),
           nb::arg("stream") = nb::none(),
           nb::sig("def store_async(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "parent: cachalot.types.Parent = None, "
                   "tokens: cachalot.types.Tokens | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> AsyncCall"),
           "Starts store() on a worker thread and returns at once. Pages and streams: as for\n"
           "load_async().");
}

}  // namespace cachalot::python
