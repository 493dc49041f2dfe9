#include "client_object.h"

#include <algorithm>

#include "live.h"
#include "numbers.h"

namespace cachalot::python {

ClientObject::ClientObject(Client client) : client_(std::move(client)) {
  Live<ClientObject>::add(this);
}

ClientObject::~ClientObject() {
  Live<ClientObject>::remove(this);
  collect();
}

void ClientObject::collect() {
  if (is_forked()) {  // the pool belongs to the parent; ~Client does nothing
    let_go({});
    return;
  }
  const Status ended = [&] {
    const GilRelease release;
    return close();
  }();
  let_go(ended);
}

int ClientObject::traverse(visitproc visit, void* arg) const {
  const auto traverse_all = [&](const std::vector<Memory>& tensors) {
    for (const Memory& memory : tensors) {
      if (const int stop = memory.traverse(visit, arg); stop != 0) return stop;
    }
    return 0;
  };
  for (const auto& [number, tensors] : caches_) {
    if (const int stop = traverse_all(tensors.memory); stop != 0) return stop;
  }
  for (const auto& [data, memory] : buffers_) {
    if (const int stop = memory.traverse(visit, arg); stop != 0) return stop;
  }
  return 0;
}

// Never destroyed: Python ends before static destructors run.
void ClientObject::keep_until_exit(Tensors tensors) {
  static auto* const kept = new std::vector<Tensors>;
  kept->push_back(std::move(tensors));
}

// kIo: a GPU may write until the process ends. kBusy: a copy that this object does not know is in flight.
void ClientObject::let_go(const Status& detached) {
  if (!detached && (detached.error().code == Code::kIo || detached.error().code == Code::kBusy)) {
    for (auto& [number, tensors] : caches_) {
      if (tensors.on_gpu) keep_until_exit(std::move(tensors));
    }
  }
  // Removed from the members first: destroying them may run Python code, and its collector visits the members.
  std::exchange(caches_, {});
  std::exchange(buffers_, {});
}

Status ClientObject::end() {
  std::unordered_set<std::shared_ptr<Detachable>> begun;
  {
    const std::lock_guard lock(detachables_mutex_);
    begun.swap(detachables_);
  }
  for (const std::shared_ptr<Detachable>& object : begun) object->end();
  return client_.detach();
}

Status ClientObject::close() {
  const std::lock_guard lock(detaching_);
  gate_.close();
  Status status = end();
  gate_.open();  // from here on the client itself rejects calls
  return status;
}

void ClientObject::detach() {
  if (is_forked()) check(client_.detach());
  const Status ended = [&] {
    const GilRelease release;
    return close();
  }();
  let_go(ended);
  check(ended);
}

CacheId ClientObject::register_cache(const PagedCache& cache, std::vector<Memory> tensors) {
  const CacheId id = value_of(call([&](Client& client) { return client.register_cache(cache); }));
  caches_.emplace(static_cast<std::uint32_t>(id),
                  Tensors{std::move(tensors), cache.cuda_device.has_value()});
  return id;
}

void ClientObject::unregister_cache(CacheId cache) {
  const Status gone = call([&](Client& client) { return client.unregister_cache(cache); });
  const bool is_lost = !gone && gone.error().code == Code::kIo;  // detached anyway
  if (gone || is_lost) {
    auto tensors = caches_.extract(static_cast<std::uint32_t>(cache));
    if (is_lost && !tensors.empty()) keep_until_exit(std::move(tensors.mapped()));
  }
  check(gone);
}

void ClientObject::register_buffer(Memory memory) {
  check(call([&](Client& client) { return client.register_buffer(memory.data, memory.bytes()); }));
  void* const data = memory.data;
  buffers_.insert_or_assign(data, std::move(memory));
}

void ClientObject::unregister_buffer(void* data) {
  check(call([&](Client& client) { return client.unregister_buffer(data); }));
  buffers_.extract(data);
}

void ClientObject::claim_dropped() {
  if (dropped_.empty()) return;
  std::erase_if(dropped_, [&](Token token) {
    const Result<Completion> completion = client_.poll(token);
    return !completion || completion->is_done;
  });
}

void end_clients() {
  for (ClientObject* const client : Live<ClientObject>::all()) {
    if (!client->is_forked()) (void)client->close();
  }
}

ClientObject& client_of(nb::handle self) {
  if (!nb::isinstance<ClientObject>(self)) refuse_type(self, "self: ", "a Client");
  return instance_of<ClientObject>(self, "self");
}

std::optional<CudaStream> stream_of(nb::handle stream) {
  if (stream.is_none()) return std::nullopt;
  const nb::object number =
      nb::hasattr(stream, "cuda_stream") ? stream.attr("cuda_stream") : nb::borrow(stream);
  return reinterpret_cast<CudaStream>(whole_number(number, "stream", UINTPTR_MAX));
}

CopyOptions copy_options(nb::handle timeout, nb::handle stream) {
  CopyOptions options;
  options.cuda_stream = stream_of(stream);
  options.timeout_ns = nanoseconds(optional_seconds(timeout, "timeout"));
  return options;
}

std::vector<std::uint32_t> stored_tokens(nb::handle tokens) {
  return tokens.is_none() ? std::vector<std::uint32_t>() : Numbers::copy(tokens, "tokens");
}

CopyOptions copy_options(nb::handle first_layer, nb::handle layers, nb::handle timeout,
                         nb::handle stream) {
  CopyOptions options = copy_options(timeout, stream);
  options.first_layer = number(first_layer, "first_layer");
  options.layers = optional_number(layers, "layers").value_or(kAllLayers);
  return options;
}

CacheId id_of(const ClientObject& client, const CacheObject& cache) {
  if (cache.client != &client) refuse("cache: it was registered with another client");
  return cache.id;
}

}  // namespace cachalot::python
