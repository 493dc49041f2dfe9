#include "storage/file/file_backend.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <optional>

#include "base/log.h"
#include "storage/file/body_pieces.h"

namespace cachalot::storage {
namespace {

constexpr std::uint32_t kFewestSlots = 16, kMostSlotsOfSegment = 16384;
constexpr std::uint64_t kMostKeptBytes = std::uint64_t{64} << 20;  // of one idle buffer

}  // namespace

// --- Opening ---------------------------------------------------------------------------------------

// The tools of one call.
class FileBackend::Lease {
 public:
  explicit Lease(FileBackend& backend) : backend_(backend) {
    const std::lock_guard lock(backend.mutex_);
    if (backend.idle_tools_.empty()) {
      tools_.io = IoBatch::make(backend.options_.depth, backend.options_.io);
    } else {
      tools_ = std::move(backend.idle_tools_.back());
      backend.idle_tools_.pop_back();
    }
  }
  ~Lease() {
    if (tools_.buffer.size() > kMostKeptBytes) tools_.buffer = {};
    const std::lock_guard lock(backend_.mutex_);
    backend_.idle_tools_.push_back(std::move(tools_));
  }
  IoBatch& io() { return *tools_.io; }

  // Gives each of `transfers` its part of the buffer.
  template <typename Transfer>
  void lend_buffer(std::span<Transfer> transfers) {
    std::uint64_t bytes = 0;
    for (const Transfer& transfer : transfers) bytes += transfer.body.buffer_bytes();
    if (tools_.buffer.size() < bytes) tools_.buffer = AlignedBytes::unset(bytes);
    std::byte* at = tools_.buffer.data();
    for (Transfer& transfer : transfers) {
      transfer.body.use_buffer(at);
      at += transfer.body.buffer_bytes();
    }
  }
  // Parts of the buffer, of `bytes` each: as many as there are transfers, or as it has room for; one at least.
  std::vector<std::byte*> lend_parts(std::uint64_t bytes, std::size_t transfers) {
    if (bytes == 0) return {};
    const std::size_t parts =
        std::clamp<std::size_t>(kMostKeptBytes / bytes, 1, std::max<std::size_t>(transfers, 1));
    if (tools_.buffer.size() < parts * bytes) tools_.buffer = AlignedBytes::unset(parts * bytes);
    std::vector<std::byte*> lent(parts);
    for (std::size_t i = 0; i < parts; ++i) lent[i] = tools_.buffer.data() + i * bytes;
    return lent;
  }

 private:
  FileBackend& backend_;
  Tools tools_;
};

FileBackend::FileBackend(FileOptions options, Directory directory)
    : options_(std::move(options)), directory_(std::move(directory)) {
  traits_ = {
      .name = "file", .align_bytes = BodyPieces::kAlign, .is_shared = false, .reuses_space = true};
  idle_tools_.push_back({IoBatch::make(options_.depth, options_.io), {}});
}

Result<std::unique_ptr<FileBackend>> FileBackend::open(const FileOptions& options) {
  CACHALOT_TRY_ASSIGN(Directory directory, Directory::open(options.directory, options.owners));
  FileOptions bounded = options;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    bounded.most_open = std::min<std::uint64_t>(bounded.most_open, limit.rlim_cur / 4);
  auto backend = std::unique_ptr<FileBackend>(new FileBackend(bounded, std::move(directory)));
  CACHALOT_TRY(backend->scan());
  return backend;
}

Status FileBackend::scan() {
  constexpr std::size_t kMostLines = 10;
  CACHALOT_TRY_ASSIGN(const std::vector<std::uint32_t> numbers, directory_.segments());
  std::size_t left_out = 0;
  for (const std::uint32_t number : numbers) {
    Result<Segment> segment = Segment::open(directory_, number);
    while (!segment && out_of_descriptors(segment.error()) && close_coldest())
      segment = Segment::open(directory_, number);
    if (segment) {
      adopt(number, *std::move(segment));
      continue;
    }
    const Error& error = segment.error();
    if (error.code == Code::kBusy || error.code == Code::kNoSpace) return error;
    shelves_.emplace(number, nullptr);  // the number stays in use
    if (++left_out > kMostLines) continue;
    base::log(base::LogLevel::kWarn, "storage", "%s: is left out, and left as it is",
              error.message);
  }
  if (left_out > kMostLines) {
    base::log(base::LogLevel::kWarn, "storage", "storage directory %s: %zu files are left out",
              directory_.path().c_str(), left_out);
  }
  return {};
}

void FileBackend::adopt(std::uint32_t number, Segment segment) {
  if (segment.damaged_entries() != 0) {
    base::log(base::LogLevel::kWarn, "storage",
              "%s: %u entries are damaged: their objects are lost", segment.path().c_str(),
              segment.damaged_entries());
  }
  auto shelf = std::make_unique<Shelf>(std::move(segment));
  Shelf& here = *shelf;
  shelves_.emplace(number, std::move(shelf));
  here.in_open = open_.insert(open_.begin(), &here);
  if (open_.size() > options_.most_open) (void)close_coldest();
  for (std::uint32_t slot = here.segment.slots(); slot-- != 0;) {
    const Place place{number, slot};
    const SegmentEntry& entry = here.segment.entry(slot);
    ++here.taken;
    if (entry.is_used == 0) {
      free_slot(place);
      continue;
    }
    next_sequence_ = std::max(next_sequence_, entry.sequence + 1);
    const auto [at, is_new] = index_.emplace(entry.head.key, place);
    if (is_new) continue;
    const Shelf& other = *shelves_.at(at->second.segment);
    if (other.segment.entry(at->second.slot).sequence < entry.sequence) {
      const Place older = std::exchange(at->second, place);
      condemn(older);
    } else {
      condemn(place);
    }
  }
}

// --- Descriptors -----------------------------------------------------------------------------------

Status FileBackend::pin(Shelf& shelf) {
  if (shelf.segment.is_open()) {
    open_.splice(open_.begin(), open_, shelf.in_open);
  } else {
    if (open_.size() >= options_.most_open) (void)close_coldest();
    Status opened = shelf.segment.reopen();
    while (!opened && out_of_descriptors(opened.error()) && close_coldest())
      opened = shelf.segment.reopen();
    CACHALOT_TRY(opened);
    shelf.in_open = open_.insert(open_.begin(), &shelf);
  }
  ++shelf.pins;
  return {};
}

void FileBackend::unpin(Shelf& shelf) {
  --shelf.pins;
  if (open_.size() > options_.most_open) (void)close_coldest();
}

// @return false: all that are open are in use
bool FileBackend::close_coldest() {
  const auto at =
      std::find_if(open_.rbegin(), open_.rend(), [](const Shelf* shelf) { return !shelf->pins; });
  if (at == open_.rend()) return false;
  (*at)->segment.close();
  open_.erase((*at)->in_open);
  return true;
}

// --- Slots -----------------------------------------------------------------------------------------

void FileBackend::free_slot(const Place& place) {
  Shelf& shelf = *shelves_.at(place.segment);
  shelf.segment.clear_entry(place.slot);
  shelf.uses[place.slot] = {};
  --shelf.taken;
  free_[shelf.segment.slot_bytes()].push_back(place);
}

void FileBackend::condemn(const Place& place) {
  SlotUse& use = shelves_.at(place.segment)->uses[place.slot];
  use.is_condemned = true;
  if (use.readers == 0) free_slot(place);
}

Result<FileBackend::Place> FileBackend::take_slot(std::uint64_t slot_bytes) {
  const std::lock_guard lock(mutex_);
  if (free_[slot_bytes].empty()) CACHALOT_TRY(add_segment(slot_bytes));
  std::vector<Place>& free = free_[slot_bytes];
  const Place place = free.back();
  Shelf& shelf = *shelves_.at(place.segment);
  CACHALOT_TRY(pin(shelf));
  free.pop_back();
  ++shelf.taken;
  return place;
}

// Segments of other slots that hold nothing give their space back.
void FileBackend::remove_empty_shelf(std::uint64_t slot_bytes) {
  const auto at = std::find_if(shelves_.begin(), shelves_.end(), [&](const auto& one) {
    const Shelf* const shelf = one.second.get();
    return shelf != nullptr && shelf->taken == 0 && shelf->segment.slot_bytes() != slot_bytes;
  });
  if (at == shelves_.end()) return;
  Shelf& shelf = *at->second;
  std::erase_if(free_[shelf.segment.slot_bytes()],
                [&](const Place& place) { return place.segment == at->first; });
  shelf.segment.remove();
  if (shelf.segment.is_open()) open_.erase(shelf.in_open);
  shelves_.erase(at);
}

// Under mutex_: it is rare, and all that wait for it need what it makes.
Status FileBackend::add_segment(std::uint64_t slot_bytes) {
  remove_empty_shelf(slot_bytes);
  // As many slots as there are already: a small storage takes a small part of the disk.
  std::uint64_t slots = 0;
  for (const auto& [number, shelf] : shelves_) {
    if (shelf != nullptr && shelf->segment.slot_bytes() == slot_bytes)
      slots += shelf->segment.slots();
  }
  const std::uint64_t most = std::clamp<std::uint64_t>(options_.segment_bytes / slot_bytes,
                                                       kFewestSlots, kMostSlotsOfSegment);
  slots = std::clamp<std::uint64_t>(slots, kFewestSlots, most);
  // What is left of a disk that is nearly full is used as well.
  for (;; slots = std::max<std::uint64_t>(slots / 2, kFewestSlots)) {
    const Status made = make_segment(slot_bytes, static_cast<std::uint32_t>(slots));
    if (made || made.error().code != Code::kNoSpace || slots == kFewestSlots) return made;
  }
}

Status FileBackend::make_segment(std::uint64_t slot_bytes, std::uint32_t slots) {
  CACHALOT_TRY(check_free(slots * slot_bytes));
  // A number that is in use after all is left to what has it.
  for (std::uint32_t number = 0;; ++number) {
    if (shelves_.contains(number)) continue;
    Result<Segment> segment = Segment::create(directory_, number, slot_bytes, slots);
    while (!segment && out_of_descriptors(segment.error()) && close_coldest())
      segment = Segment::create(directory_, number, slot_bytes, slots);
    if (segment) {
      adopt(number, *std::move(segment));
      return {};
    }
    if (segment.error().code != Code::kBusy) return segment.error();
    shelves_.emplace(number, nullptr);
  }
}

Status FileBackend::check_free(std::uint64_t more_bytes) const {
  struct statvfs info {};
  if (::statvfs(directory_.path().c_str(), &info) != 0)
    return Error::from_errno(errno, "storage directory %.160s", directory_.path().c_str());
  const std::uint64_t free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize;
  if (free_bytes >= more_bytes && free_bytes - more_bytes >= options_.min_free_bytes) return {};
  return Error::make(Code::kNoSpace,
                     "storage directory %.120s: %" PRIu64 " bytes are free, expected %" PRIu64
                     " for blocks and %" PRIu64 " to stay free",
                     directory_.path().c_str(), free_bytes, more_bytes, options_.min_free_bytes);
}

// --- Put -------------------------------------------------------------------------------------------

struct FileBackend::Write {
  Put* put;
  Place place;
  BodyPieces body;
  std::uint64_t sequence = 0;
};

Status FileBackend::put(std::span<Put> puts, std::uint64_t) {
  std::vector<Write> writes;
  writes.reserve(puts.size());
  for (Put& put : puts) {
    put.status = {};
    {
      const std::lock_guard lock(mutex_);
      if (index_.contains(put.head.key)) continue;
    }
    const Result<Place> place = take_slot(whole_pages(put.head.body_bytes()));
    if (place) {
      writes.push_back({&put, *place, BodyPieces(put.body, put.head.body_bytes())});
    } else {
      put.status = place.error();
    }
  }
  Lease lease(*this);
  lease.lend_buffer(std::span(writes));
  std::vector<IoRequest> requests;
  for (Write& write : writes) {
    write.body.fill_buffer(write.put->body);
    Shelf* shelf = nullptr;
    {
      const std::lock_guard lock(mutex_);
      shelf = shelves_.at(write.place.segment).get();
    }
    requests.push_back({shelf->segment.fd(), true, shelf->segment.slot_offset(write.place.slot),
                        write.body.pieces()});
  }
  lease.io().run(requests);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    if (requests[i].os_error == 0) continue;
    writes[i].put->status = Error::from_errno(
        requests[i].os_error, "storage directory %.120s: write", directory_.path().c_str());
  }
  finish(writes, write_tables(writes, lease.io()));
  return {};
}

Status FileBackend::write_tables(std::span<Write> writes, IoBatch& io) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> changed;
  {
    // In the order of the call, in whichever segments they are: list() gives parents before their children.
    const std::lock_guard lock(mutex_);
    for (Write& write : writes) write.sequence = next_sequence_++;
  }
  for (const Write& write : writes) {
    if (write.put->status) changed[write.place.segment].push_back(write.place.slot);
  }
  for (const auto& [number, slots] : changed) {
    Shelf* shelf = nullptr;
    {
      const std::lock_guard lock(mutex_);
      shelf = shelves_.at(number).get();
    }
    // Bodies first: their entries must not outlive them.
    if (options_.sync && ::fdatasync(shelf->segment.fd()) != 0) {
      return Error::from_errno(errno, "storage file %.120s: flush", shelf->segment.path().c_str());
    }
    const std::lock_guard in_order(shelf->table_mutex);
    Segment::Pages pages;
    {
      const std::lock_guard lock(mutex_);
      for (Write& write : writes) {
        if (write.place.segment != number || !write.put->status) continue;
        shelf->segment.set_entry(write.place.slot, write.put->head, write.sequence);
      }
      pages = shelf->segment.copy_pages(slots);
    }
    CACHALOT_TRY(shelf->segment.write_pages(pages, io));
    if (options_.sync && ::fdatasync(shelf->segment.fd()) != 0) {
      return Error::from_errno(errno, "storage file %.120s: flush", shelf->segment.path().c_str());
    }
  }
  return {};
}

void FileBackend::finish(std::span<Write> writes, const Status& tables) {
  const std::lock_guard lock(mutex_);
  for (Write& write : writes) {
    unpin(*shelves_.at(write.place.segment));
    if (write.put->status && !tables) write.put->status = tables.error();
    if (!write.put->status) {
      free_slot(write.place);
      continue;
    }
    // Another call may have stored the same block meanwhile.
    const auto [at, is_new] = index_.emplace(write.put->head.key, write.place);
    if (!is_new) condemn(std::exchange(at->second, write.place));
  }
}

// --- Get -------------------------------------------------------------------------------------------

struct FileBackend::Read {
  Get* get;
  Place place;
  int fd;
  std::uint64_t offset;
  BodyPieces body;
};

// @return nothing: the object's status says why
std::optional<FileBackend::Read> FileBackend::begin_read(Get& get) {
  const std::lock_guard lock(mutex_);
  const auto at = index_.find(get.key);
  if (at == index_.end()) {
    get.status = Error::make(Code::kNotFound, "storage: has no such object");
    return {};
  }
  const Place place = at->second;
  Shelf& shelf = *shelves_.at(place.segment);
  get.head = shelf.segment.entry(place.slot).head;
  if (get.head.payload_bytes != bytes_of(get.room)) {
    get.status = Error::make(Code::kInvalidArgument,
                             "storage: an object has %" PRIu64 " bytes, expected %" PRIu64,
                             get.head.payload_bytes, bytes_of(get.room));
    return {};
  }
  get.status = pin(shelf);
  if (!get.status) return {};
  ++shelf.uses[place.slot].readers;
  return Read{&get, place, shelf.segment.fd(), shelf.segment.slot_offset(place.slot),
              BodyPieces(get.head.body_bytes())};
}

void FileBackend::end_read(const Place& place) {
  const std::lock_guard lock(mutex_);
  Shelf& shelf = *shelves_.at(place.segment);
  unpin(shelf);
  SlotUse& use = shelf.uses[place.slot];
  if (--use.readers == 0 && use.is_condemned) free_slot(place);
}

void FileBackend::end_get(const Read& read, int os_error) const {
  Get& get = *read.get;
  if (os_error == ENODATA) {
    get.status = Error::make(Code::kCorrupt, "storage directory %.120s: an object is cut off",
                             directory_.path().c_str());
  } else if (os_error != 0) {
    get.status =
        Error::from_errno(os_error, "storage directory %.120s: read", directory_.path().c_str());
  } else {
    const std::byte* const tokens = read.body.empty_buffer(get.room);
    get.tokens.resize(get.head.tokens);
    if (get.head.tokens != 0) std::memcpy(get.tokens.data(), tokens, get.head.tokens * 4ul);
  }
}

// A read begins when a part of the buffer is free: the bytes of one that has ended are copied while others are in flight.
Status FileBackend::get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t) {
  std::vector<Read> reads;
  reads.reserve(gets.size());
  std::uint64_t largest = 0;
  for (Get& get : gets) {
    get.status = {};
    std::optional<Read> read = begin_read(get);
    if (!read) continue;
    largest = std::max(largest, read->body.buffer_bytes());
    reads.push_back(*std::move(read));
  }
  std::vector<IoRequest> requests;
  requests.reserve(reads.size());
  for (Read& read : reads) requests.push_back({read.fd, false, read.offset, read.body.pieces()});
  Lease lease(*this);
  std::vector<std::byte*> free = lease.lend_parts(largest, reads.size());
  const auto begins = [&](std::size_t i) {
    if (free.empty()) return false;
    reads[i].body.use_buffer(free.back());
    free.pop_back();
    return true;
  };
  lease.io().run(requests, begins, [&](std::size_t i) {
    end_read(reads[i].place);
    end_get(reads[i], requests[i].os_error);
    if (std::byte* const part = reads[i].body.buffer(); part != nullptr) free.push_back(part);
    if (reads[i].get->status) arrived(*reads[i].get);
  });
  return {};
}

// --- The rest --------------------------------------------------------------------------------------

Status FileBackend::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                           std::uint64_t) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) is_there[i] = index_.contains(keys[i]);
  return {};
}

Status FileBackend::remove(std::span<const ObjectKey> keys, std::uint64_t) {
  const std::lock_guard lock(mutex_);
  for (const ObjectKey& key : keys) {
    const auto at = index_.find(key);
    if (at == index_.end()) continue;
    condemn(at->second);
    index_.erase(at);
  }
  return {};
}

Status FileBackend::list(const Lister& each, std::uint64_t) {
  std::vector<std::pair<std::uint64_t, ObjectHead>> found;
  {
    const std::lock_guard lock(mutex_);
    found.reserve(index_.size());
    for (const auto& [key, place] : index_) {
      const SegmentEntry& entry = shelves_.at(place.segment)->segment.entry(place.slot);
      found.emplace_back(entry.sequence, entry.head);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [sequence, head] : found) {
    if (!each(head)) break;
  }
  return {};
}

Status FileBackend::check() {
  CACHALOT_TRY(directory_.check());
  const std::lock_guard lock(mutex_);
  for (const auto& [number, shelf] : shelves_) {
    if (shelf != nullptr) CACHALOT_TRY(shelf->segment.check());
  }
  return {};
}

std::string FileBackend::describe_io() const {
  const std::lock_guard lock(mutex_);
  bool is_direct = true;
  for (const auto& [number, shelf] : shelves_) {
    if (shelf != nullptr) is_direct = is_direct && shelf->segment.is_direct();
  }
  const bool is_uring =
      !idle_tools_.empty() && idle_tools_.front().io->kind() == IoBatch::Kind::kUring;
  return std::string(is_uring ? "io_uring" : "preadv") +
         (is_direct ? ", O_DIRECT" : ", page cache");
}

bool FileBackend::is_valid() const {
  const std::lock_guard lock(mutex_);
  std::size_t free = 0, slots = 0, taken = 0;
  for (const auto& [slot_bytes, places] : free_) free += places.size();
  for (const auto& [number, shelf] : shelves_) {
    if (shelf == nullptr) continue;
    slots += shelf->segment.slots();
    taken += shelf->taken;
  }
  if (free + taken != slots || taken != index_.size()) return false;
  for (const auto& [key, place] : index_) {
    const SegmentEntry& entry = shelves_.at(place.segment)->segment.entry(place.slot);
    if (entry.is_used == 0 || !(entry.head.key == key)) return false;
  }
  return true;
}

}  // namespace cachalot::storage
