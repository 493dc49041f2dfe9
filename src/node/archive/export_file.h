// The blocks of one namespace in a file, to carry them to another pool: `cachalot pool export` and `import`.
//
//   head      ExportHead, then the namespace's name
//   objects   each as storage keeps it (storage/object.h), parents first
//   trailer   ExportTrailer: how many blocks there must be
//
// Bytes: docs/formats/export-file.md. Each object carries its own seal; head and trailer have checksums.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "pool/format/access.h"
#include "pool/pool_client.h"
#include "storage/object.h"

namespace cachalot::node {

struct ExportHead {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t name_bytes;
  BlockHash space;            // digest of the namespace
  std::uint64_t block_bytes;  // of the pool that it came from: no payload is larger
  std::uint64_t reserved[2];
  std::uint64_t checksum;  // XXH3-64 of the 56 bytes before and the name
};
static_assert(sizeof(ExportHead) == 64);

struct ExportTrailer {
  std::uint64_t magic;
  std::uint64_t blocks;
  std::uint64_t seals;     // XXH3-64 of all objects' seals in order
  std::uint64_t checksum;  // XXH3-64 of the 24 bytes before
};
static_assert(sizeof(ExportTrailer) == 32);

struct ExportedNamespace {
  std::uint32_t id = 0;  // in the pool
  BlockHash digest;
  std::string name;
};

struct ExportReport {
  std::uint64_t blocks = 0, bytes = 0, notes = 0;
  // Blocks that were evicted meanwhile, have a wrong checksum, or continue such a block.
  std::uint64_t skipped = 0;
};

// Writes all blocks that the pool publishes in a namespace, with or without a keeper. Payloads are read by rule R6 and
// verified by their checksums, where they have one.
// @param  file  new; nothing of that name is there afterwards if it fails
// @errors kIo, kNoSpace, kPermission: names the file
Result<ExportReport> export_namespace(const pool::Access& access, const ExportedNamespace& space,
                                      const std::string& file);

struct ImportReport {
  std::uint64_t blocks = 0, bytes = 0, notes = 0;
  std::uint64_t there = 0;        // the pool has them already
  std::uint64_t did_not_fit = 0;  // no room, also for the blocks that they continue
  std::uint64_t notes_too_long =
      0;  // the block came, its tokens did not: the pool's notes are shorter
};

class ImportFile {
 public:
  // @errors kBadInput: not such a file, another version, a damaged head; names the file
  static Result<ImportFile> open(const std::string& file);

  const BlockHash& digest() const { return head_.space; }
  const std::string& name() const { return name_; }
  std::uint64_t block_bytes() const { return head_.block_bytes; }

  // Stores the blocks as a client of their namespace, each after its seal was verified, parents first. Nothing is
  // evicted for them: what comes when the pool is full does not fit.
  // @param  room  blocks that may be added
  // @errors kCorrupt: a damaged block, or a file that ends early; what came before stays. As Client::commit
  Result<ImportReport> store(pool::Client& client, std::uint64_t room);

 private:
  ImportFile(std::string file, os::FileDescriptor fd)
      : file_(std::move(file)), fd_(std::move(fd)) {}
  Status read_head();
  Status read(void* to, std::size_t bytes);
  Error damaged(const char* what) const;

  std::string file_;
  os::FileDescriptor fd_;
  ExportHead head_{};
  std::string name_;
  std::uint64_t at_ = 0;      // bytes read
  std::uint64_t stored_ = 0;  // blocks
  std::vector<std::byte> buffer_;
  std::size_t buffered_ = 0, taken_ = 0;
};

}  // namespace cachalot::node
