#include "storage/shared/shared_directory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "storage/shared/object_files.h"
#include "storage/shared/sweep.h"
#include "storage/value.h"

namespace cachalot::storage {
namespace {

constexpr const char* kKind = "shared";
constexpr std::size_t kThreads = 16;
constexpr int kVisitsPerLook = 256;
constexpr std::uint64_t kRoomPauseNs = 10'000'000'000;

bool has_no_room(const Status& status) {
  return !status && (status.error().os_error == ENOSPC || status.error().os_error == EDQUOT);
}

Value value_of(const Put& put) {
  Value value = Value::unset(value_bytes(put.head));
  std::byte* to = value.bytes.get();
  std::memcpy(to, &put.head, kHeadBytes);
  to += kHeadBytes;
  for (const Bytes& piece : put.body) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return value;
}

Result<bool> has(const Directory& root, const ObjectKey& key) {
  CACHALOT_TRY_ASSIGN(const std::optional<ObjectHead> head, read_head(root, key, false));
  return head.has_value();
}

// What is asked for is about to be read, or would be put.
Result<std::optional<ObjectHead>> use_head(const Directory& root, const ObjectKey& key) {
  return read_head(root, key, true);
}

Result<bool> remove_one(const Directory& root, const ObjectKey& key) {
  CACHALOT_TRY(remove_object(root, key));
  return true;
}

Result<std::vector<ObjectHead>> heads_of_folder(const Directory& root, std::uint32_t folder) {
  std::vector<ObjectHead> heads;
  const Result<std::vector<StoredFile>> files = read_folder(root, folder, false);
  if (!files && files.error().code != Code::kNotFound) return files.error();
  if (!files) return heads;
  for (const StoredFile& file : *files) {
    if (!file.is_object) continue;
    CACHALOT_TRY_ASSIGN(const ObjectKey key, parse_object_key(file.name));
    CACHALOT_TRY_ASSIGN(const std::optional<ObjectHead> head, read_head(root, key, false));
    if (head) heads.push_back(*head);
  }
  return heads;
}

// A call as a whole fails if the file system answered for none of its items.
template <class Item>
Status end_items(const Status& ended, std::span<Item* const> items,
                 const std::vector<bool>& answered) {
  if (ended) return {};
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!answered[i]) items[i]->status = ended;
  }
  const bool is_any = std::find(answered.begin(), answered.end(), true) != answered.end();
  return is_any ? Status() : ended;
}

}  // namespace

// Where the directory is now, and its sweep: of all jobs.
struct SharedDirectory::Place {
  explicit Place(const SharedDirectoryOptions& options)
      : path(options.directory), owners(options.owners), sweep(options.limit_bytes) {}

  using Root = std::shared_ptr<const Directory>;
  // @errors why it is out of use
  Result<Root> open_root() {
    const std::lock_guard lock(mutex);
    if (root == nullptr) return state.error();
    return Root(root);
  }

  Status look() {
    Root last;
    {
      const std::lock_guard lock(mutex);
      last = root;
    }
    Status now = last == nullptr ? Error::make(Code::kNotFound, "not opened") : last->check();
    if (!now) {
      const auto use = last == nullptr      ? Directory::Use::kTogether
                       : last->is_at_path() ? Directory::Use::kRestored
                                            : Directory::Use::kAgain;
      Result<Directory> again = Directory::open(path, owners, kKind, use);
      now = again ? Status() : again.error();
      if (again) last = std::make_shared<const Directory>(*std::move(again));
    }
    const std::lock_guard lock(mutex);
    root = last;
    return state = now;
  }

  void keep_up() {
    Status now = look();
    for (int visits = 0; now; ++visits) {
      const Result<Root> at = open_root();
      if (at) sweep.visit(**at);
      const std::lock_guard lock(mutex);
      due_visits = std::max(due_visits - 1, 0.0);
      const Space space = sweep.space();
      if ((due_visits < 1 && space.used <= space.limit) || visits == kVisitsPerLook) break;
    }
    const std::lock_guard lock(mutex);
    is_kept_up = false;
  }

  const std::string path;
  const os::Owners owners;
  Sweep sweep;       // of keep_up(), but for what any thread may call
  std::mutex mutex;  // all below
  Root root;         // null: the file system has not answered yet
  Status state =
      Error::make(Code::kTimeout, "storage directory %.160s: the file system has not answered yet",
                  path.c_str());  // as of the last look
  double due_visits = 0;
  bool is_kept_up = false;  // by a job that waits or runs
};

// --- Opening and upkeep ----------------------------------------------------------------------------

SharedDirectory::SharedDirectory(const SharedDirectoryOptions& options)
    : traits_{.name = "shared_file",
              .is_shared = true,
              .reuses_space = true,
              .evicts = options.limit_bytes != 0,
              .is_listed = false},
      place_(std::make_shared<Place>(options)),
      workers_(kThreads) {}

Result<std::unique_ptr<Backend>> SharedDirectory::open(const SharedDirectoryOptions& options) {
  std::unique_ptr<SharedDirectory> backend(new SharedDirectory(options));
  Status opened;
  (void)backend->workers_.gather<Status>(
      1, [&](std::size_t) { return [place = backend->place_] { return place->look(); }; },
      [&](std::size_t, Status&& found) { opened = found; },
      base::SteadyClock::read() + options.patience_ns);
  if (!opened) return opened.error();
  return std::unique_ptr<Backend>(std::move(backend));
}

void SharedDirectory::begin_upkeep() {
  {
    const std::lock_guard lock(place_->mutex);
    if (std::exchange(place_->is_kept_up, true)) return;
  }
  workers_.add(place_.get(), [place = place_] { place->keep_up(); });
}

Status SharedDirectory::check() {
  begin_upkeep();
  const std::lock_guard lock(place_->mutex);
  return place_->state;
}

Result<Space> SharedDirectory::space(std::uint64_t) {
  return place_->sweep.space();
}

// --- Questions -------------------------------------------------------------------------------------

template <class T>
Status SharedDirectory::ask_each(std::span<const ObjectKey> keys,
                                 Result<T> (*ask)(const Directory&, const ObjectKey&),
                                 const std::function<void(std::size_t, const T&)>& take,
                                 std::uint64_t deadline_ns) {
  const std::size_t parts = std::min(keys.size(), workers_.most());
  const auto first_of = [&](std::size_t part) { return part * keys.size() / parts; };
  Status failure;
  CACHALOT_TRY(workers_.gather<Result<std::vector<T>>>(
      parts,
      [&](std::size_t part) {
        const std::vector<ObjectKey> own(
            keys.begin() + static_cast<std::ptrdiff_t>(first_of(part)),
            keys.begin() + static_cast<std::ptrdiff_t>(first_of(part + 1)));
        return [place = place_, ask, own]() -> Result<std::vector<T>> {
          CACHALOT_TRY_ASSIGN(const Place::Root root, place->open_root());
          std::vector<T> answers;
          for (const ObjectKey& key : own) {
            CACHALOT_TRY_ASSIGN(T answer, ask(*root, key));
            answers.push_back(std::move(answer));
          }
          return answers;
        };
      },
      [&](std::size_t part, Result<std::vector<T>>&& answers) {
        if (!answers) failure = answers.error();
        for (std::size_t i = 0; answers && i < answers->size(); ++i)
          take(first_of(part) + i, (*answers)[i]);
      },
      deadline_ns));
  return failure;
}

Status SharedDirectory::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                               std::uint64_t deadline_ns) {
  return ask_each<bool>(
      keys, has, [&](std::size_t i, const bool& answer) { is_there[i] = answer; }, deadline_ns);
}

Status SharedDirectory::heads(std::span<const ObjectKey> keys,
                              std::span<std::optional<ObjectHead>> heads,
                              std::uint64_t deadline_ns) {
  using Head = std::optional<ObjectHead>;
  return ask_each<Head>(
      keys, use_head, [&](std::size_t i, const Head& head) { heads[i] = head; }, deadline_ns);
}

Status SharedDirectory::remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) {
  return ask_each<bool>(
      keys, remove_one, [](std::size_t, const bool&) {}, deadline_ns);
}

Status SharedDirectory::list(const Lister& each, std::uint64_t deadline_ns) {
  using Heads = Result<std::vector<ObjectHead>>;
  Status failure;
  bool is_over = false;
  CACHALOT_TRY(workers_.gather<Heads>(
      kObjectFolders,
      [&](std::size_t folder) {
        return [place = place_, folder, is_over]() -> Heads {
          if (is_over) return std::vector<ObjectHead>();
          CACHALOT_TRY_ASSIGN(const Place::Root root, place->open_root());
          return heads_of_folder(*root, static_cast<std::uint32_t>(folder));
        };
      },
      [&](std::size_t, Heads&& heads) {
        if (!heads) failure = heads.error();
        for (std::size_t i = 0; heads && !is_over && i < heads->size(); ++i)
          is_over = !each((*heads)[i]);
      },
      deadline_ns));
  return failure;
}

// --- Objects ---------------------------------------------------------------------------------------

Status SharedDirectory::get_each(std::span<Get> gets, const Arrived& arrived,
                                 std::uint64_t deadline_ns) {
  std::vector<Get*> items;
  for (Get& get : gets) items.push_back(&get);
  std::vector<bool> answered(gets.size());
  const Status ended = workers_.gather<Result<Value>>(
      gets.size(),
      [&](std::size_t i) {
        const std::uint64_t most_bytes = kHeadBytes + bytes_of(gets[i].room) + kMostTokenBytes;
        return [place = place_, key = gets[i].key, most_bytes]() -> Result<Value> {
          CACHALOT_TRY_ASSIGN(const Place::Root root, place->open_root());
          return read_object(*root, key, most_bytes);
        };
      },
      [&](std::size_t i, Result<Value>&& value) {
        answered[i] = true;
        if (value) {
          take_value(value->view(), gets[i]);
        } else {
          gets[i].status = value.error();
        }
        if (gets[i].status) arrived(gets[i]);
      },
      deadline_ns);
  return end_items<Get>(ended, items, answered);
}

Status SharedDirectory::put_each(std::span<Put* const> puts, std::uint64_t deadline_ns) {
  std::vector<bool> answered(puts.size());
  std::uint64_t bytes = 0;
  const Status ended = workers_.gather<Status>(
      puts.size(),
      [&](std::size_t i) {
        return [place = place_, key = puts[i]->head.key, value = value_of(*puts[i])]() -> Status {
          CACHALOT_TRY_ASSIGN(const Place::Root root, place->open_root());
          return write_object(*root, key, value.view());
        };
      },
      [&](std::size_t i, Status&& written) {
        answered[i] = true;
        puts[i]->status = written;
        if (written) bytes += value_bytes(puts[i]->head);
      },
      deadline_ns);
  bool is_due = false;
  {
    const std::lock_guard lock(place_->mutex);
    place_->due_visits = std::min(place_->due_visits + place_->sweep.visits_after(bytes),
                                  static_cast<double>(kObjectFolders));
    is_due = place_->due_visits >= 1;
  }
  if (is_due) begin_upkeep();
  return end_items<Put>(ended, puts, answered);
}

// A store that hears of a full disk removes what it knows to be cold, and puts again. If there is still no room, as for a
// host that has just begun, the oldest of some folders go.
Status SharedDirectory::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  std::vector<Put*> items;
  for (Put& put : puts) items.push_back(&put);
  CACHALOT_TRY(put_each(items, deadline_ns));
  std::uint64_t bytes = 0;
  const auto keep_refused = [&] {
    bytes = 0;
    std::erase_if(items, [](const Put* put) { return !has_no_room(put->status); });
    for (const Put* put : items) bytes += value_bytes(put->head);
  };
  keep_refused();
  if (items.empty()) {
    if (!puts.empty()) full_puts_ = 0;
    return {};
  }
  if (full_puts_.fetch_add(1) == 0 || base::SteadyClock::read() < next_room_ns_) return {};
  make_room(puts, bytes, deadline_ns);
  (void)put_each(items, deadline_ns);  // each has its status
  keep_refused();
  // What else is full is not ours: the cache is not given up for it.
  if (!items.empty()) next_room_ns_ = base::SteadyClock::read() + kRoomPauseNs;
  return {};
}

void SharedDirectory::make_room(std::span<const Put> puts, std::uint64_t bytes,
                                std::uint64_t deadline_ns) {
  std::unordered_set<std::string> kept;
  for (const Put& put : puts) kept.insert(to_text(put.head.key));
  (void)workers_.gather<bool>(
      1,
      [&](std::size_t) {
        return [place = place_, bytes, kept, deadline_ns] {
          const Result<Place::Root> root = place->open_root();
          if (root) Sweep::free_some(**root, bytes, kept, deadline_ns);
          return root.ok();
        };
      },
      [](std::size_t, bool&&) {}, deadline_ns);
}

}  // namespace cachalot::storage
