#include "storage/shared/sweep.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace cachalot::storage {
namespace {

constexpr std::size_t kLeastFolders = 64, kMostObjects = 1u << 16;
constexpr double kVisitsPerLimit = 16;
// Above the nine tenths that a store keeps by removing leaves (server_space.h).
constexpr double kFull = 0.95;
constexpr std::int64_t kAbandonedNs = 3'600'000'000'000;  // an unfinished file of this age
constexpr std::size_t kOldestOf = 256;

std::int64_t wall_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

double Sweep::visits_after(std::uint64_t bytes) const {
  if (limit_ == 0) return 0;
  return static_cast<double>(bytes) / static_cast<double>(limit_) * kVisitsPerLimit *
         kObjectFolders;
}

Space Sweep::space() const {
  const std::uint64_t used = used_.load(std::memory_order_relaxed);
  return used == 0 ? Space{} : Space{limit_, used};
}

double Sweep::share() const {
  return static_cast<double>(sample_.size()) / kObjectFolders;
}

// The age from which on objects have no room; what is as old has.
std::int64_t Sweep::oldest_with_room() const {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::min();
  const double room = kFull * static_cast<double>(limit_) * share();
  if (sample_.size() < kLeastFolders || static_cast<double>(bytes_) <= room) return kAll;
  std::vector<Object> all;
  for (const std::vector<Object>& folder : sample_)
    all.insert(all.end(), folder.begin(), folder.end());
  std::sort(all.begin(), all.end(),
            [](const Object& a, const Object& b) { return a.changed_ns > b.changed_ns; });
  double bytes = 0;
  for (const Object& object : all) {
    bytes += static_cast<double>(object.bytes);
    if (bytes > room) return object.changed_ns;
  }
  return kAll;
}

void Sweep::keep(std::vector<Object> folder) {
  objects_ += folder.size();
  for (const Object& object : folder) bytes_ += object.bytes;
  sample_.push_back(std::move(folder));
  while (sample_.size() > kObjectFolders ||
         (objects_ > kMostObjects && sample_.size() > kLeastFolders)) {
    objects_ -= sample_.front().size();
    for (const Object& object : sample_.front()) bytes_ -= object.bytes;
    sample_.pop_front();
  }
  if (sample_.size() < kLeastFolders) return;
  used_.store(static_cast<std::uint64_t>(static_cast<double>(bytes_) / share()) + 1,
              std::memory_order_relaxed);
}

void Sweep::visit(const Directory& root) {
  const std::uint32_t folder = std::exchange(next_, (next_ + 1) % kObjectFolders);
  const Result<std::vector<StoredFile>> files = read_folder(root, folder, limit_ != 0);
  if (!files && files.error().code != Code::kNotFound) return;
  const std::int64_t oldest = limit_ == 0 ? 0 : oldest_with_room();
  const std::int64_t now_ns = wall_ns();
  std::vector<Object> kept;
  for (const StoredFile& file : files ? *files : std::vector<StoredFile>()) {
    const bool is_left =
        !file.is_object && file.changed_ns != 0 && now_ns - file.changed_ns > kAbandonedNs;
    const bool has_no_room = file.is_object && limit_ != 0 && file.changed_ns < oldest;
    if (is_left || has_no_room) {
      (void)remove_file(root, folder, file.name);
    } else if (file.is_object) {
      kept.push_back({file.changed_ns, file.bytes});
    }
  }
  if (limit_ != 0) keep(std::move(kept));
}

void Sweep::free_some(const Directory& root, std::uint64_t bytes,
                      const std::unordered_set<std::string>& kept, std::uint64_t deadline_ns) {
  struct Found {
    std::uint32_t folder;
    StoredFile file;
  };
  std::vector<Found> found;
  std::uint64_t found_bytes = 0;
  const std::uint32_t first = std::random_device{}() % kObjectFolders;
  for (std::uint32_t i = 0; i < kObjectFolders; ++i) {
    if (found.size() >= kOldestOf && found_bytes >= 2 * bytes) break;
    if (base::SteadyClock::read() >= deadline_ns) break;
    Result<std::vector<StoredFile>> files = read_folder(root, first + i, true);
    if (!files) continue;
    for (StoredFile& file : *files) {
      if (!file.is_object || file.bytes == 0 || kept.contains(file.name)) continue;
      found_bytes += file.bytes;
      found.push_back({first + i, std::move(file)});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.file.changed_ns < b.file.changed_ns; });
  std::uint64_t freed = 0;
  for (const Found& one : found) {
    if (freed >= bytes) break;
    if (remove_file(root, one.folder, one.file.name)) freed += one.file.bytes;
  }
}

}  // namespace cachalot::storage
