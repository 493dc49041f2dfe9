#include "transfer/link/peer_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "os/process.h"
#include "os/shared_file.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostPieces = 256;

std::string file_of(std::uint32_t process, std::uint64_t fd) {
  return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
}

// @return bytes read, or -errno
ssize_t read_of(std::uint32_t process, iovec* local, std::size_t locals, iovec* remote,
                std::size_t remotes) {
  const ssize_t count =
      process_vm_readv(static_cast<pid_t>(process), local, locals, remote, remotes, 0);
  return count < 0 ? -errno : count;
}

bool probe(std::uint32_t process, const PeerMemoryOffer& offer) {
  std::uint64_t word = 0;
  iovec local{&word, sizeof word}, remote{reinterpret_cast<void*>(offer.probe_at), sizeof word};
  return read_of(process, &local, 1, &remote, 1) == sizeof word && word == offer.probe;
}

}  // namespace

Result<PeerMemory> PeerMemory::open(std::uint32_t process, const PeerMemoryOffer& offer) {
  if (process == 0)
    return Error::make(Code::kUnsupported, "the peer is a process of another machine or container");
  PeerMemory memory;
  memory.process_ = process;
  memory.is_own_ = process == os::own_pid();
  memory.can_copy_ = !memory.is_own_ && probe(process, offer);
  CACHALOT_TRY_ASSIGN(memory.leases_,
                      PeerLeases::open(file_of(process, offer.lease_fd), memory.is_own_));
  for (const SharedSegment& segment : offer.segments) {
    if (memory.is_own_) break;
    CACHALOT_TRY_ASSIGN(const os::SharedFile file,
                        os::SharedFile::open(file_of(process, segment.fd), os::Access::kReadOnly));
    std::uint64_t end = 0;
    if (__builtin_add_overflow(segment.file_offset, segment.bytes, &end) || end > file.bytes() ||
        segment.at > ~segment.bytes) {
      return Error::make(Code::kBadInput,
                         "a shared segment of %llu bytes at %llu of a file of %llu bytes",
                         static_cast<unsigned long long>(segment.bytes),
                         static_cast<unsigned long long>(segment.file_offset),
                         static_cast<unsigned long long>(file.bytes()));
    }
    CACHALOT_TRY_ASSIGN(os::Mapping mapping,
                        file.map({.huge_pages = false, .read_only = true}, end));
    memory.mapped_.push_back({segment, std::move(mapping)});
  }
  if (!memory.is_own_ && !memory.can_copy_ && memory.mapped_.empty()) {
    return Error::make(Code::kUnsupported, "this process may not read the memory of process %u",
                       process);
  }
  return memory;
}

const std::byte* PeerMemory::mapped(const Piece& piece) const {
  for (const Mapped& entry : mapped_) {
    const std::uint64_t inside = piece.at - entry.segment.at;
    if (piece.at >= entry.segment.at && inside <= entry.segment.bytes &&
        piece.bytes <= entry.segment.bytes - inside) {
      return entry.mapping.data() + entry.segment.file_offset + inside;
    }
  }
  return nullptr;
}

Status PeerMemory::copy(const ByteStream& from, const ByteStream& to, std::uint64_t offset,
                        std::uint64_t bytes) const {
  if (is_own_) {
    copy_between(from, to, offset, bytes);
    return {};
  }
  ByteStreamCursor source(from, offset), target(to, offset);
  std::array<iovec, kMostPieces> local, remote;
  while (bytes > 0) {
    std::size_t locals = 0, remotes = 0;
    std::uint64_t wanted = 0;
    Piece read = source.next(bytes);
    if (const std::byte* at = read.bytes == 0 ? nullptr : mapped(read); at != nullptr) {
      for (std::uint64_t done = 0; done < read.bytes;) {
        const Piece write = target.next(read.bytes - done);
        if (write.bytes == 0)
          return Error::make(Code::kInternal, "a push is larger than its window");
        std::memcpy(reinterpret_cast<void*>(write.at), at + done, write.bytes);
        done += write.bytes;
      }
      bytes -= read.bytes;
      continue;
    }
    // Not mapped: as many pieces as one call of the kernel takes.
    if (!can_copy_)
      return Error::make(Code::kIo, "a push names memory that its peer has not registered");
    while (read.bytes > 0) {
      remote[remotes++] = {reinterpret_cast<void*>(read.at), read.bytes};
      wanted += read.bytes;
      if (remotes == kMostPieces || wanted == bytes) break;
      const std::uint64_t before = source.offset();
      read = source.next(bytes - wanted);
      if (read.bytes > 0 && mapped(read) != nullptr) {
        source.seek(before);
        break;
      }
    }
    std::uint64_t given = 0;
    while (given < wanted && locals < kMostPieces) {
      const Piece write = target.next(wanted - given);
      if (write.bytes == 0) return Error::make(Code::kInternal, "a push is larger than its window");
      local[locals++] = {reinterpret_cast<void*>(write.at), write.bytes};
      given += write.bytes;
    }
    const ssize_t count = read_of(process_, local.data(), locals, remote.data(), remotes);
    if (count <= 0)
      return Error::from_errno(count == 0 ? EFAULT : static_cast<int>(-count), "reading process %u",
                               process_);
    bytes -= static_cast<std::uint64_t>(count);
    // Fewer than asked for: fewer local pieces than remote ones, or a bad address, at which the next call fails.
    offset = to.bytes() == 0 ? 0 : (source.offset() - wanted) + static_cast<std::uint64_t>(count);
    source.seek(offset);
    target.seek(offset);
  }
  return {};
}

}  // namespace cachalot::transfer
