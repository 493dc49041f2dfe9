// How a pool is named and described on the command line: shared by `pool create` and `serve`.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flags.h"
#include "output.h"
#include "pool/pool.h"

namespace cachalot::apps {

using Paths = std::vector<std::string>;

// PATH… or --pool PATH…: one, or one per device.
void add_pool_flag(Command& app, Paths& paths);

struct GeometryFlags {
  std::string block_bytes;
  std::string model;
  std::uint32_t block_tokens = 0;
  std::string capacity;
  std::string capacity_blocks;
  std::string size;
  std::string max_size;
  std::string spare_blocks;
  std::string domain = "coherent";
  std::uint32_t devices = 0;  // 0: as many as paths
  std::string device_bytes;
  std::uint32_t clients = 0;  // 0: pool::kDefaultClients
  std::uint32_t hosts = 1;
  std::uint32_t note_bytes = pool::kDefaultNoteBytes;
};
inline constexpr const char* kGeometryGroup = "Geometry";  // of these flags
void add_geometry_flags(Command& app, GeometryFlags& flags);

// The geometry that the flags ask for, device_bytes filled in.
// @errors kInvalidArgument: a flag is missing, contradicts another or is out of range
Result<pool::Geometry> make_geometry(const GeometryFlags& flags, const Paths& paths);
// The flags, with the existing pool's values in place of those that they leave to the default.
GeometryFlags with_defaults_of(GeometryFlags flags, const pool::Geometry& found);

// A keeper that is started again finds the pool it made the first time: it must be the one that the flags describe.
// @errors kInvalidArgument: names what differs
Status check_same_geometry(const pool::Geometry& wanted, const pool::Geometry& found,
                           const char* name);

// A path of the pool's as a file's name: "shm:NAME" is one in /dev/shm.
std::string file_name_of(const std::string& path);

// Output::open() of the file of this flag: a result must not take the place of the pool, or of one that is
// about to be made.
// @param paths  none: there is no pool
// @errors as Output::open(); kInvalidArgument: it is a device of the pool, by this name or another
Result<Output> open_output(const char* flag, const std::string& file, const Paths& paths);

// Also a pool of another user.
void add_foreign_flag(Command& app, bool& allow_foreign);

// Maps a pool without paying for huge pages. @errors as Pool::open
Result<pool::Pool> open_pool(const Paths& paths, bool allow_foreign);
// The same for a command that only looks, also at a pool of another user: the right to read is enough.
Result<pool::Pool> open_pool_to_read(const Paths& paths);

// The error with the pool's path in front, unless it has it already.
Error of_pool(const Paths& paths, const Error& error);
template <class T>
Result<T> of_pool(const Paths& paths, Result<T> result) {
  if (result) return result;
  return of_pool(paths, result.error());
}

}  // namespace cachalot::apps
