#include "node/archive/export_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "memory/fused_hash.h"
#include "node/archive/pool_payloads.h"
#include "os/links.h"
#include "pool/client/client.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"
#include "storage/value.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot::node {
namespace {

constexpr std::uint64_t kExportMagic = 0x0031'7078'4568'6343;   // "CchExp1", little-endian
constexpr std::uint64_t kTrailerMagic = 0x0031'646e'4568'6343;  // "CchEnd1"
constexpr std::uint32_t kExportVersion = 1;
constexpr std::size_t kBufferBytes = 1 << 20;

using pool::kNoBlock;

std::uint64_t checksum_of(const ExportHead& head, const std::string& name) {
  const std::uint64_t seed = XXH3_64bits(&head, offsetof(ExportHead, checksum));
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

std::uint64_t checksum_of(const ExportTrailer& trailer) {
  return XXH3_64bits(&trailer, offsetof(ExportTrailer, checksum));
}

// Not encrypted. The seal does not cover what encryption adds, which is zero here.
bool is_plain(const storage::ObjectHead& head) {
  constexpr std::size_t kFirst = offsetof(storage::ObjectHead, nonce);
  constexpr unsigned char kZeros[sizeof head - kFirst] = {};
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&head);
  return head.flags == 0 && std::memcmp(bytes + kFirst, kZeros, sizeof kZeros) == 0;
}

// A file that has its name only once it is whole. A pipe, a device or stdout ("-") is written as it is.
class NewFile {
 public:
  static Result<NewFile> make(const std::string& file) {
    const bool is_stdout = file == "-";
    struct stat there {};
    if (is_stdout || (::stat(file.c_str(), &there) == 0 && !S_ISREG(there.st_mode))) {
      NewFile made(is_stdout ? "stdout" : file);
      made.is_special_ = true;
      made.fd_ =
          os::FileDescriptor(is_stdout ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                                       : ::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
      if (!made.fd_) return made.failed("opening");
      return made;
    }
    NewFile made(os::follow_links(file));
    made.fd_ = os::FileDescriptor(
        ::open(made.unfinished().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!made.fd_) return Error::from_errno(errno, "%.120s: creating", made.unfinished().c_str());
    return made;
  }
  NewFile(NewFile&& other) = default;
  ~NewFile() {
    if (fd_ && !is_whole_ && !is_special_) ::unlink(unfinished().c_str());
  }

  Status write(const void* bytes, std::size_t count) {
    const auto* from = static_cast<const std::byte*>(bytes);
    buffer_.insert(buffer_.end(), from, from + count);
    return buffer_.size() < kBufferBytes ? Status() : flush();
  }
  Status finish() {
    CACHALOT_TRY(flush());
    if (is_special_) return {};
    if (fsync(fd_.get()) != 0 && errno != EINVAL) return failed("writing");
    if (rename(unfinished().c_str(), file_.c_str()) != 0) return failed("naming");
    is_whole_ = true;
    return {};
  }

 private:
  explicit NewFile(std::string file) : file_(std::move(file)) {}
  std::string unfinished() const { return file_ + ".new"; }
  Error failed(const char* what) const {
    return Error::from_errno(errno, "%.120s: %s", file_.c_str(), what);
  }
  Status flush() {
    for (std::size_t at = 0; at < buffer_.size();) {
      const ssize_t written = ::write(fd_.get(), buffer_.data() + at, buffer_.size() - at);
      if (written < 0 && errno != EINTR) return failed("writing");
      at += written > 0 ? static_cast<std::size_t>(written) : 0;
    }
    buffer_.clear();
    return {};
  }

  std::string file_;
  os::FileDescriptor fd_;
  std::vector<std::byte> buffer_;
  bool is_whole_ = false, is_special_ = false;
};

// The blocks of a namespace, parents first.
std::vector<pool::Entry> blocks_of(const pool::Access& access, std::uint32_t id) {
  std::vector<pool::Entry> entries;
  std::vector<std::uint32_t> entry_of(access.geometry.blocks, kNoBlock);
  pool::for_each_published(access, [&](const pool::Entry& entry) {
    if (entry.namespace_id != id) return;
    entry_of[entry.block] = static_cast<std::uint32_t>(entries.size());
    entries.push_back(entry);
  });
  // A parent may be gone since; parents that were seen at two moments may even form a circle. Such blocks are skipped
  // later, wherever they stand.
  constexpr std::uint32_t kUnknown = ~0u, kOnPath = kUnknown - 1;
  std::vector<std::uint32_t> depth(entries.size(), kUnknown), path;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    std::uint32_t at = i;
    path.clear();
    while (at != kNoBlock && depth[at] == kUnknown) {
      depth[at] = kOnPath;
      path.push_back(at);
      at = entries[at].parent == kNoBlock ? kNoBlock : entry_of[entries[at].parent];
    }
    std::uint32_t above = at == kNoBlock || depth[at] == kOnPath ? 0 : depth[at] + 1;
    for (auto node = path.rbegin(); node != path.rend(); ++node) depth[*node] = above++;
  }
  std::vector<std::uint32_t> order(entries.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return depth[a] < depth[b]; });
  std::vector<pool::Entry> sorted;
  for (const std::uint32_t i : order) sorted.push_back(entries[i]);
  return sorted;
}

// Writes the objects of one namespace.
class Exporting {
 public:
  Exporting(const pool::Access& access, const ExportedNamespace& space, NewFile& file)
      : access_(access), space_(space), file_(file), payloads_(access) {}

  Result<ExportReport> run() {
    CACHALOT_TRY(write_head());
    for (const pool::Entry& entry : blocks_of(access_, space_.id)) {
      CACHALOT_TRY_ASSIGN(const bool is_written, write_block(entry));
      report_.skipped += !is_written;
    }
    ExportTrailer trailer{};
    trailer.magic = kTrailerMagic;
    trailer.blocks = report_.blocks;
    trailer.seals = XXH3_64bits(seals_.data(), seals_.size() * sizeof seals_[0]);
    trailer.checksum = checksum_of(trailer);
    CACHALOT_TRY(file_.write(&trailer, sizeof trailer));
    CACHALOT_TRY(file_.finish());
    return report_;
  }

 private:
  Status write_head() {
    ExportHead head{};
    head.magic = kExportMagic;
    head.version = kExportVersion;
    head.name_bytes = static_cast<std::uint32_t>(space_.name.size());
    head.space = space_.digest;
    head.block_bytes = access_.geometry.block_bytes;
    head.checksum = checksum_of(head, space_.name);
    CACHALOT_TRY(file_.write(&head, sizeof head));
    return file_.write(space_.name.data(), space_.name.size());
  }

  // False: it is not the block any more that `entry` was, or its parent was not written.
  Result<bool> write_block(const pool::Entry& entry) {
    const BlockHash hash{entry.hash_low, entry.hash_high};
    BlockHash parent;
    if (entry.parent != kNoBlock) {
      const auto above = hash_in_.find(entry.parent);
      if (above == hash_in_.end()) return false;
      parent = above->second;
    }
    pool::Found found;
    pool::ValidatedRead read =
        pool::ValidatedRead::look_up(access_, {&hash, 1}, space_.id, {&found, 1}, true);
    if (read.found().empty() || found.entry.block != entry.block ||
        found.entry.generation != entry.generation) {
      return false;
    }
    payloads_.read(read);
    if (read.found().empty()) return false;
    // The bytes are kept before they are validated: they may be the pool's own memory.
    body_.clear();
    for (const storage::Bytes& piece : payloads_.payload(0))
      body_.insert(body_.end(), piece.begin(), piece.end());
    std::vector<std::uint32_t> tokens;
    pool::read_note(access_, {entry.block, entry.generation}, hash, tokens);
    if (read.validate().valid != 1) return false;
    if (!proves(found.entry)) return false;
    storage::ObjectHead head;
    head.key = {space_.digest, hash};
    head.parent = parent;
    head.payload_bytes = body_.size();
    head.tokens = static_cast<std::uint32_t>(tokens.size());
    const auto* const token_bytes = reinterpret_cast<const std::byte*>(tokens.data());
    body_.insert(body_.end(), token_bytes, token_bytes + tokens.size() * sizeof tokens[0]);
    const storage::Bytes body(body_);
    head.seal = storage::seal_of(head, {&body, 1});
    CACHALOT_TRY(file_.write(&head, sizeof head));
    CACHALOT_TRY(file_.write(body.data(), body.size()));
    seals_.push_back(head.seal);
    hash_in_.emplace(entry.block, hash);
    ++report_.blocks;
    report_.bytes += head.payload_bytes;
    report_.notes += !tokens.empty();
    return true;
  }

  // Of what was copied, where the block has a checksum.
  bool proves(const pool::Entry& entry) const {
    if ((entry.flags & pool::kEntryHasChecksum) == 0) return true;
    std::vector<std::byte> lines = body_;
    lines.resize(pool::padded_bytes(entry.length));
    return memory::hash_lines(lines.data(), lines.size()) == entry.checksum;
  }

  const pool::Access& access_;
  const ExportedNamespace& space_;
  NewFile& file_;
  PoolPayloads payloads_;
  ExportReport report_;
  std::vector<std::byte> body_;
  std::vector<std::uint64_t> seals_;
  std::unordered_map<std::uint32_t, BlockHash> hash_in_;  // of blocks that were written
};

}  // namespace

Result<ExportReport> export_namespace(const pool::Access& access, const ExportedNamespace& space,
                                      const std::string& file) {
  CACHALOT_TRY_ASSIGN(NewFile made, NewFile::make(file));
  return Exporting(access, space, made).run();
}

Error ImportFile::damaged(const char* what) const {
  return Error::make(Code::kCorrupt,
                     "%.120s: %s at byte %" PRIu64 "; %" PRIu64 " blocks came before",
                     file_.c_str(), what, at_, stored_);
}

Result<ImportFile> ImportFile::open(const std::string& file) {
  os::FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "%.120s: opening", file.c_str());
  ImportFile opened(file, std::move(fd));
  CACHALOT_TRY(opened.read_head());
  return opened;
}

Status ImportFile::read(void* to, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  while (bytes != 0) {
    if (taken_ == buffered_) {
      buffer_.resize(kBufferBytes);
      const ssize_t got = ::read(fd_.get(), buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "%.120s: reading", file_.c_str());
      if (got == 0) return damaged("the file ends early");
      buffered_ = static_cast<std::size_t>(got);
      taken_ = 0;
    }
    const std::size_t some = std::min(bytes, buffered_ - taken_);
    std::memcpy(out, buffer_.data() + taken_, some);
    taken_ += some;
    at_ += some;
    out += some;
    bytes -= some;
  }
  return {};
}

Status ImportFile::read_head() {
  const auto bad = [this](const char* what) {
    return Error::make(Code::kBadInput, "%.120s: %s", file_.c_str(), what);
  };
  const Status has_head = read(&head_, sizeof head_);
  if ((!has_head && has_head.error().code == Code::kCorrupt) ||
      (has_head && head_.magic != kExportMagic)) {
    return bad("is no file of `cachalot pool export`");
  }
  CACHALOT_TRY(has_head);
  if (head_.version != kExportVersion) {
    return Error::make(Code::kBadInput, "%.120s: is of version %u, this program reads %u",
                       file_.c_str(), head_.version, kExportVersion);
  }
  if (head_.name_bytes > pool::kMaxNameBytes) return bad("its head is damaged");
  name_.resize(head_.name_bytes);
  CACHALOT_TRY(read(name_.data(), name_.size()));
  if (checksum_of(head_, name_) != head_.checksum) return bad("its head is damaged");
  return {};
}

Result<ImportReport> ImportFile::store(pool::Client& client, std::uint64_t room) {
  const pool::Access& access = client.access();
  ImportReport report;
  std::vector<std::uint64_t> seals;
  std::vector<std::byte> body;
  std::unordered_set<storage::ObjectKey> missing;  // blocks that did not fit
  PoolPayloads payloads(access);
  for (;;) {
    std::uint64_t magic = 0;
    CACHALOT_TRY(read(&magic, sizeof magic));
    if (magic == kTrailerMagic) {
      ExportTrailer trailer{};
      trailer.magic = magic;
      CACHALOT_TRY(read(&trailer.blocks, sizeof trailer - sizeof magic));
      const bool is_good =
          trailer.checksum == checksum_of(trailer) && trailer.blocks == seals.size() &&
          trailer.seals == XXH3_64bits(seals.data(), seals.size() * sizeof seals[0]);
      if (!is_good) return damaged("the trailer does not match the blocks");
      return report;
    }
    storage::ObjectHead head;
    head.magic = magic;
    CACHALOT_TRY(read(&head.key, sizeof head - sizeof magic));
    if (!is_plain(head) || !(head.key.space == head_.space) ||
        !storage::check_head(head, head.key) || head.payload_bytes > head_.block_bytes) {
      return damaged("a block's head is damaged");
    }
    body.resize(head.body_bytes());
    CACHALOT_TRY(read(body.data(), body.size()));
    const storage::Bytes bytes(body);
    if (storage::seal_of(head, {&bytes, 1}) != head.seal)
      return damaged("a block has a wrong checksum");
    seals.push_back(head.seal);

    const storage::ObjectKey parent{head_.space, head.parent};
    const bool has_room = report.blocks < room &&
                          head.payload_bytes <= access.geometry.block_bytes &&
                          (head.is_root() || !missing.contains(parent));
    pool::Found found;
    if (client.lookup({&head.key.block, 1}, {&found, 1}) == 1) {
      ++report.there;
      continue;
    }
    Result<pool::Reservation> reserved =
        has_room ? client.reserve(1)
                 : Result<pool::Reservation>(Error::make(Code::kNoSpace, "full"));
    if (!reserved && reserved.error().code != Code::kNoSpace) return reserved.error();
    if (!reserved) {
      missing.insert(head.key);
      ++report.did_not_fit;
      continue;
    }
    CACHALOT_TRY_ASSIGN(pool::OpenReservation open, (*std::move(reserved)).begin());
    const pool::BlockUse use = open.uses()[0];
    const PoolPayloads::Target target{use.block, static_cast<std::uint32_t>(head.payload_bytes)};
    payloads.begin_write({&target, 1});
    const std::byte* from = body.data();
    for (const storage::Room& piece : payloads.room(0)) {
      std::memcpy(piece.data(), from, piece.size());
      from += piece.size();
    }
    const pool::WrittenBlock written{head.key.block, target.length, payloads.finish_write(0)};
    const bool has_note =
        head.tokens != 0 && head.tokens <= pool::most_note_tokens(access.geometry);
    if (has_note) {
      std::vector<std::uint32_t> tokens(head.tokens);
      std::memcpy(tokens.data(), from, head.tokens * sizeof tokens[0]);
      pool::write_note(access, use, head.key.block, tokens);
    }
    access.domain().order();  // R4
    pool::Verdict verdict = pool::Verdict::kNotHeld;
    CACHALOT_TRY(client.commit(head.is_root() ? nullptr : &head.parent, std::move(open).end(),
                               {&written, 1}, {&verdict, 1}));
    if (verdict != pool::Verdict::kCommitted && verdict != pool::Verdict::kDuplicate) {
      missing.insert(head.key);
      ++report.did_not_fit;
      continue;
    }
    stored_ = ++report.blocks;
    report.bytes += head.payload_bytes;
    report.notes += has_note;
    report.notes_too_long += head.tokens != 0 && !has_note;
  }
}

}  // namespace cachalot::node
