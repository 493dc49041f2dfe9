// Random reads by fio (the program of Debian's package of that name): what a disk and the kernel give.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

namespace cachalot::apps::bench {

struct FioReads {
  std::string folder;  // where its file lies
  std::uint64_t block_bytes;
  std::uint64_t file_bytes;
  std::uint32_t depth;
};

// What a run of reads gave.
struct ReadRate {
  double gb_s = 0;
  double cpu_s_per_gib = 0;  // user and system, of all threads
};

// Writes the file, so that reads find blocks on the disk.
// @errors kUnsupported: fio is not installed; kIo: it failed
Status write_fio_file(const FioReads& reads);
// Reads for `ms` milliseconds: io_uring, direct. @errors as above
Result<ReadRate> run_fio(const FioReads& reads, std::uint32_t ms);

}  // namespace cachalot::apps::bench
