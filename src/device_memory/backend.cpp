#include "device_memory/backend.h"

namespace cachalot::device_memory {

// Each call: the book under the lock, the device without it, the book again.

Result<Address> Backend::reserve(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(book_.check_reserve(bytes));
  }
  CACHALOT_TRY_ASSIGN(const Address range, do_reserve(bytes));
  const std::lock_guard lock(mutex_);
  book_.add_range(range, bytes);
  counts_.reserve += 1;
  return range;
}

// Out of the book first: as soon as the device has the addresses back, another thread's reserve() may
// get them.
Status Backend::free_range(Address range) {
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY_ASSIGN(bytes, book_.remove_range(range));
  }
  const Status done = do_free(range, bytes);
  const std::lock_guard lock(mutex_);
  if (done) {
    counts_.free_range += 1;
  } else {
    book_.add_range(range, bytes);
  }
  return done;
}

Result<Handle> Backend::create(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(book_.begin_create(bytes));
  }
  const Result<std::uint64_t> native = do_create(bytes);
  const std::lock_guard lock(mutex_);
  if (!native) {
    book_.bytes_gone(bytes);
    return native.error();
  }
  counts_.create += 1;
  return book_.finish_create({.native = *native, .bytes = bytes});
}

Status Backend::release(Handle handle) {
  std::vector<Memory> freed;
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(book_.release(handle, &freed));
    counts_.release += 1;
  }
  return give_back(freed);
}

Status Backend::map(Address at, Handle handle) {
  AddressBook::MapCall call;
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY_ASSIGN(call, book_.begin_map(at, handle));
  }
  const Status done = do_map(at, call.memory);
  std::vector<Memory> freed;
  {
    const std::lock_guard lock(mutex_);
    if (done) {
      book_.finish_map(call);
      counts_.map += 1;
      return {};
    }
    book_.cancel_map(call, &freed);
  }
  // The handle may have been released while this call held its memory.
  CACHALOT_TRY(give_back(freed));
  return done;
}

Status Backend::set_access(Address at, std::uint64_t bytes, Access access) {
  AddressBook::SpanCall call;
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY_ASSIGN(call, book_.begin_span("set_access", at, bytes));
  }
  const Status done = do_set_access(call.span, access);
  const std::lock_guard lock(mutex_);
  book_.finish_span(call);
  if (done) counts_.set_access += 1;
  return done;
}

Status Backend::unmap(Address at, std::uint64_t bytes) {
  AddressBook::SpanCall call;
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY_ASSIGN(call, book_.begin_span("unmap", at, bytes));
  }
  const Status done = do_unmap(call.span);
  std::vector<Memory> freed;
  {
    const std::lock_guard lock(mutex_);
    if (!done) {
      book_.finish_span(call);
      return done;
    }
    book_.finish_unmap(call, &freed);
    counts_.unmap += 1;
  }
  return give_back(freed);
}

// Tries all of them; the first that fails is the error.
Status Backend::give_back(const std::vector<Memory>& freed) {
  Status result;
  for (const Memory& memory : freed) {
    const Status done = do_release(memory);
    if (done) {
      const std::lock_guard lock(mutex_);
      book_.bytes_gone(memory.bytes);
    } else if (result) {
      result = done;
    }
  }
  return result;
}

Result<HandleInfo> Backend::info(Handle handle) {
  const std::lock_guard lock(mutex_);
  CACHALOT_TRY_ASSIGN(const auto* const physical, book_.find_live("info", handle));
  return HandleInfo{.bytes = physical->memory.bytes, .mappings = physical->mappings};
}

Result<Memory> Backend::memory_of(const char* call, Handle handle) {
  const std::lock_guard lock(mutex_);
  CACHALOT_TRY_ASSIGN(const auto* const physical, book_.find_live(call, handle));
  return physical->memory;
}

// No other thread calls any more, so there is no lock, and no caller to report a failure to.
void Backend::undo_all() {
  const AddressBook::Leftovers left = book_.leftovers();
  for (const Span& span : left.mappings) static_cast<void>(do_unmap(span));
  for (const Memory& memory : left.memory) static_cast<void>(do_release(memory));
  for (const Span& range : left.ranges) static_cast<void>(do_free(range.at, range.bytes));
}

void Backend::set_limit_bytes(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  book_.set_limit_bytes(bytes);
}

CallCounts Backend::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::uint64_t Backend::physical_bytes() const {
  const std::lock_guard lock(mutex_);
  return book_.physical_bytes();
}

std::uint64_t Backend::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return book_.reserved_bytes();
}

std::uint64_t Backend::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return book_.mapped_bytes();
}

}  // namespace cachalot::device_memory
