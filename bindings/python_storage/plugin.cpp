// The table of cachalot/storage_plugin.h. Each call goes to a worker, which calls the Python class.
#include <cachalot/storage_plugin.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "interpreter.h"
#include "python_class.h"
#include "workers.h"

namespace cachalot::python_storage {
namespace {

// open() and close() have no deadline.
constexpr std::uint64_t kOpenNs = 60'000'000'000, kCloseNs = 3'000'000'000;

struct Storage {
  std::shared_ptr<Workers> workers;
  std::shared_ptr<PythonClass> python;  // also held by calls that hang
};

std::int32_t tell(const Outcome& outcome, cachalot_storage_message* why) {
  const std::size_t bytes = std::min(outcome.why.size(), sizeof why->text - 1);
  std::memcpy(why->text, outcome.why.data(), bytes);
  why->text[bytes] = '\0';
  return outcome.result;
}

// The table's functions let no exception out.
template <class Run>
std::int32_t guarded(cachalot_storage_message* why, const Run& run) {
  try {
    return tell(run(), why);
  } catch (const std::exception& error) {
    return tell({CACHALOT_STORAGE_IO, error.what()}, why);
  }
}

template <class Work>
std::int32_t run(void* storage, std::uint64_t deadline_ns, cachalot_storage_message* why,
                 const Work& work) {
  return guarded(why, [&] {
    const Storage& own = *static_cast<Storage*>(storage);
    const auto call = std::make_shared<Call>(
        [python = own.python, work](Call& called) { return work(*python, called); });
    return own.workers->run(call, deadline_ns);
  });
}

PythonClass::Keys copy(const cachalot_storage_key* keys, std::uint64_t count) {
  return {keys, keys + count};
}

std::int32_t open(const char* text, void** storage, cachalot_storage_message* why) {
  return guarded(why, [&]() -> Outcome {
    Options options;
    Outcome outcome = Options::parse(text, options);
    if (outcome.result != CACHALOT_STORAGE_OK) return outcome;
    outcome = start_interpreter();
    if (outcome.result != CACHALOT_STORAGE_OK) return outcome;
    auto made = std::make_unique<Storage>(
        Storage{Workers::start(options.threads), std::make_shared<PythonClass>()});
    const auto call = std::make_shared<Call>(
        [python = made->python, options](Call&) { return python->open(options); });
    outcome = made->workers->run(call, now_ns() + kOpenNs);
    if (outcome.result == CACHALOT_STORAGE_OK) {
      *storage = made.release();
    } else {
      made->workers->stop(now_ns() + kCloseNs);
    }
    return outcome;
  });
}

void close(void* storage) {
  const std::unique_ptr<Storage> own(static_cast<Storage*>(storage));
  cachalot_storage_message unused;
  const std::uint64_t deadline_ns = now_ns() + kCloseNs;
  run(storage, deadline_ns, &unused, [](PythonClass& python, Call&) { return python.close(); });
  own->workers->stop(deadline_ns);
}

std::int32_t exists(void* storage, const cachalot_storage_key* keys, std::uint64_t count,
                    unsigned char* is_there, std::uint64_t deadline_ns,
                    cachalot_storage_message* why) {
  return run(storage, deadline_ns, why,
             [all = copy(keys, count), is_there, deadline_ns](PythonClass& python, Call& call) {
               return python.exists(call, all, is_there, deadline_ns);
             });
}

std::int32_t get(void* storage, cachalot_storage_get* gets, std::uint64_t count,
                 cachalot_storage_take take, std::uint64_t deadline_ns,
                 cachalot_storage_message* why) {
  PythonClass::Keys keys;
  for (std::uint64_t i = 0; i < count; ++i) keys.push_back(gets[i].key);
  return run(storage, deadline_ns, why,
             [all = std::move(keys), gets = std::span(gets, count), take, deadline_ns](
                 PythonClass& python, Call& call) {
               return python.get(call, all, gets, take, deadline_ns);
             });
}

std::int32_t put(void* storage, cachalot_storage_put* puts, std::uint64_t count,
                 std::uint64_t deadline_ns, cachalot_storage_message* why) {
  return run(storage, deadline_ns, why,
             [puts = std::span(puts, count), deadline_ns](PythonClass& python, Call& call) {
               return python.put(call, puts, deadline_ns);
             });
}

std::int32_t remove(void* storage, const cachalot_storage_key* keys, std::uint64_t count,
                    std::uint64_t deadline_ns, cachalot_storage_message* why) {
  return run(storage, deadline_ns, why,
             [all = copy(keys, count), deadline_ns](PythonClass& python, Call&) {
               return python.remove(all, deadline_ns);
             });
}

std::int32_t list(void* storage, cachalot_storage_each each, void* to, std::uint64_t deadline_ns,
                  cachalot_storage_message* why) {
  return run(storage, deadline_ns, why, [each, to, deadline_ns](PythonClass& python, Call& call) {
    return python.list(call, each, to, deadline_ns);
  });
}

constexpr cachalot_storage_plugin_table kTable = {
    .struct_bytes = sizeof(cachalot_storage_plugin_table),
    .version = CACHALOT_STORAGE_PLUGIN_VERSION,
    .is_shared = 1,
    .name = "python",
    .open = open,
    .close = close,
    .exists = exists,
    .get = get,
    .put = put,
    .remove = remove,
    .list = list,
};

}  // namespace
}  // namespace cachalot::python_storage

extern "C" const cachalot_storage_plugin_table* cachalot_storage_plugin(void) {
  return &cachalot::python_storage::kTable;
}
