// Where objects are kept: the one interface of all kinds of storage. How to write one: docs/extend/storage.md.
//
// A backend moves bytes. It does not verify, encrypt, evict, retry or count: Store does, for all of them.
//
// Invariants
//   1. A put that was reported as done is found by get and list, also after the death of this process, until
//      remove() or, if the backend has a limit of its own, until the backend drops it.
//   2. An object is replaced or removed as a whole. A get never returns a head with a part of another body.
//   3. After a call has returned, the backend accesses none of the caller's memory. After the process has been killed, no
//      request that is still in flight writes there: it may be a pool's, which another client uses by then.
//   4. A call returns at about its deadline, whatever the backend's other side does. (The operating system
//      may keep a local disk's call longer: memory that a device writes to cannot be taken back.)
//
// @threads any, simultaneously, unless the backend's header says otherwise
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/cancel_signal.h"
#include "storage/object.h"

namespace cachalot::storage {

// One object to be written. An object that is there already is replaced, or kept: it is the same KV.
struct Put {
  ObjectHead head;              // sealed
  std::span<const Bytes> body;  // pieces, together head.body_bytes()
  Status status = {};
};

// One object to be read.
struct Get {
  ObjectKey key;
  std::span<const Room> room;  // pieces for the payload, together its size
  // Filled by the call.
  ObjectHead head = {};
  std::vector<std::uint32_t> tokens = {};
  bool is_copy = false;  // the block is another host's, which goes on having it
  // kNotFound; kInvalidArgument: the payload is not of the room's size; kCorrupt: it is cut off, or no object
  Status status = {};
};

// Of a server that evicts by itself, in its own accounts.
struct Space {
  std::uint64_t limit = 0;  // 0: it evicts nothing
  std::uint64_t used = 0;
};

struct BackendTraits {
  std::string name;               // "file": in messages and metrics
  std::uint32_t align_bytes = 1;  // pieces of a put that are aligned so are not copied
  bool is_shared = false;         // others may put and remove objects, too
  // A put of the size of a removed object finds room at once, also on a full disk.
  bool reuses_space = false;
  bool evicts = false;        // it may, by itself: space() says so
  bool keeps_objects = true;  // false: each put is accepted, and nothing is there afterwards
  // A put of an object that is there already does not send its body.
  bool asks_before_put = false;
  bool is_listed = true;   // false: list() knows nothing, what is there is only asked for
  bool is_written = true;  // false: every put is refused; what it has are blocks of others
  bool answers_at_once =
      false;  // heads() waits for nothing, and costs about as much as a look into a catalogue
};

// Deadlines are times of base::SteadyClock, in ns.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendTraits& traits() const = 0;

  // Each call: an error of the whole call (kIo, kTimeout, kNoSpace …) counts for all items that have no status of
  // their own, which are then in an unknown state.
  virtual Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                        std::uint64_t deadline_ns) = 0;
  // The heads of objects, in one round trip for each server; nothing: there is no such object, or it is damaged.
  // For a shared backend, whose objects come and go unseen: it is asked for what its list did not have.
  virtual Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
                       std::uint64_t deadline_ns) {
    (void)keys, (void)heads, (void)deadline_ns;
    return Error::make(Code::kUnsupported, "storage %s: is listed, not asked",
                       traits().name.c_str());
  }
  virtual Status get(std::span<Get> gets, std::uint64_t deadline_ns) = 0;
  // As get, and calls arrived(get), in the same thread, for each object that was read. A backend that has several
  // objects in flight calls it while others are, so that the caller's work on one hides behind the reads of the others.
  // It may change the object's status. It calls nothing of the backend.
  using Arrived = std::function<void(Get& get)>;
  virtual Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t deadline_ns) {
    CACHALOT_TRY(get(gets, deadline_ns));
    for (Get& get : gets) {
      if (get.status) arrived(get);
    }
    return {};
  }
  virtual Status put(std::span<Put> puts, std::uint64_t deadline_ns) = 0;
  // Objects that are not there are no error.
  virtual Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) = 0;

  // Calls each(head) for all objects that are there during the whole call, in the order of their puts if the
  // backend knows it. each() returns false to end the call.
  using Lister = std::function<bool(const ObjectHead& head)>;
  virtual Status list(const Lister& each, std::uint64_t deadline_ns) = 0;

  virtual Result<Space> space(std::uint64_t /*deadline_ns*/) { return Space{}; }

  // Whether what it keeps objects in is still in its place: asked once a second, and never waits for long. A backend
  // whose calls would not notice that says so here, and is out of use until it is well again.
  virtual Status check() { return {}; }

  // Of a backend that reads the pools of other hosts: how many it is connected to now.
  virtual std::optional<std::size_t> peers() const { return {}; }

  // Raised, it ends calls that wait for a server, and all later ones, at once: kCancelled. The backend is of no use
  // afterwards. Null: the backend waits for no server.
  virtual std::shared_ptr<CancelSignal> cancel_signal() const { return {}; }
};

inline std::uint64_t bytes_of(std::span<const Room> room) {
  std::uint64_t bytes = 0;
  for (const Room& piece : room) bytes += piece.size();
  return bytes;
}

}  // namespace cachalot::storage
