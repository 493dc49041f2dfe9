// A backend in memory, with faults on request.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "storage/backend.h"

namespace cachalot::storage {

class FakeBackend final : public Backend {
 public:
  struct Object {
    ObjectHead head;
    std::vector<std::byte> body;
    std::uint64_t sequence;
  };
  // Survives its backends, as a server does.
  struct Disk {
    std::mutex mutex;
    std::unordered_map<ObjectKey, Object> objects;
    std::uint64_t next = 0;
    // Of one object.
    std::function<Status(const ObjectKey&)> answer_put, answer_get;
    std::optional<Error> failure;  // of every call
    std::optional<Error> put_failure, get_failure;
    std::function<void(Object& object)> on_get;  // changes what is read
    std::uint64_t calls = 0, puts = 0, gets = 0, questions = 0, lists = 0, head_calls = 0;
    std::function<void()> on_heads;  // called before they are answered
    // Of the backends that are made afterwards.
    bool is_shared = false, is_written = true;

    // From here on every call fails, or (nothing) none. The store's own thread calls meanwhile.
    void fail(const std::optional<Error>& error) {
      const std::lock_guard lock(mutex);
      failure = error;
    }
    void fail_puts(const std::optional<Error>& error) {
      const std::lock_guard lock(mutex);
      put_failure = error;
    }
    void fail_gets(const std::optional<Error>& error) {
      const std::lock_guard lock(mutex);
      get_failure = error;
    }
    std::uint64_t count_calls() { return read(calls); }
    std::uint64_t read(const std::uint64_t& counter) {
      const std::lock_guard lock(mutex);
      return counter;
    }
    std::size_t count() {
      const std::lock_guard lock(mutex);
      return objects.size();
    }
  };

  explicit FakeBackend(Disk& disk) : disk_(disk) {
    traits_.is_shared = disk.is_shared;
    traits_.is_written = disk.is_written;
  }
  const BackendTraits& traits() const override { return traits_; }

  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there, std::uint64_t) override {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.questions;
    CACHALOT_TRY(begin());
    for (std::size_t i = 0; i < keys.size(); ++i) is_there[i] = disk_.objects.contains(keys[i]);
    return {};
  }
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t) override {
    std::function<void()> on_heads;
    {
      const std::lock_guard lock(disk_.mutex);
      on_heads = disk_.on_heads;
    }
    if (on_heads) on_heads();
    const std::lock_guard lock(disk_.mutex);
    ++disk_.head_calls;
    CACHALOT_TRY(begin());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto at = disk_.objects.find(keys[i]);
      heads[i] = at == disk_.objects.end() ? std::nullopt : std::optional(at->second.head);
    }
    return {};
  }
  Status get(std::span<Get> gets, std::uint64_t) override {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.gets;
    CACHALOT_TRY(begin());
    if (disk_.get_failure) return *disk_.get_failure;
    for (Get& get : gets) get.status = get_one(get);
    return {};
  }
  Status put(std::span<Put> puts, std::uint64_t) override {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.puts;
    CACHALOT_TRY(begin());
    if (disk_.put_failure) return *disk_.put_failure;
    for (Put& put : puts) {
      if (disk_.answer_put) put.status = disk_.answer_put(put.head.key);
      if (!put.status) continue;
      Object object{put.head, {}, disk_.next++};
      for (const Bytes& piece : put.body)
        object.body.insert(object.body.end(), piece.begin(), piece.end());
      disk_.objects.insert_or_assign(put.head.key, std::move(object));
    }
    return {};
  }
  Status remove(std::span<const ObjectKey> keys, std::uint64_t) override {
    const std::lock_guard lock(disk_.mutex);
    CACHALOT_TRY(begin());
    for (const ObjectKey& key : keys) disk_.objects.erase(key);
    return {};
  }
  Status list(const Lister& each, std::uint64_t) override {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.lists;
    CACHALOT_TRY(begin());
    std::map<std::uint64_t, const Object*> by_sequence;
    for (const auto& [key, object] : disk_.objects) by_sequence[object.sequence] = &object;
    for (const auto& [sequence, object] : by_sequence) {
      if (!each(object->head)) break;
    }
    return {};
  }

 private:
  Status begin() {
    ++disk_.calls;
    if (disk_.failure) return *disk_.failure;
    return {};
  }
  Status get_one(Get& get) {
    const auto at = disk_.objects.find(get.key);
    if (disk_.answer_get) CACHALOT_TRY(disk_.answer_get(get.key));
    if (at == disk_.objects.end()) return Error::make(Code::kNotFound, "no such object");
    Object object = at->second;
    if (disk_.on_get) disk_.on_get(object);
    get.head = object.head;
    if (object.head.payload_bytes != bytes_of(get.room))
      return Error::make(Code::kInvalidArgument, "another size");
    if (object.body.size() < object.head.body_bytes())
      return Error::make(Code::kCorrupt, "cut off");
    const std::byte* from = object.body.data();
    for (const Room& room : get.room) {
      std::memcpy(room.data(), from, room.size());
      from += room.size();
    }
    get.tokens.resize(object.head.tokens);
    if (!get.tokens.empty()) std::memcpy(get.tokens.data(), from, get.tokens.size() * 4);
    return {};
  }

  Disk& disk_;
  BackendTraits traits_{.name = "fake"};
};

}  // namespace cachalot::storage
