// What a registry keeps of one engine instance that other instances can reach, and its text.
//
// 1. A record that check() passes has a text of at most kMostRecordBytes, which decode() reads back as it was.
// 2. decode() takes any bytes. What it returns has passed check().
//
//   {"version": 1, "name": "decode-0/tp1", "incarnation": "9f3c…", "addresses": ["tcp:10.0.0.1:7001"],
//    "machine": "6b0e…", "facts": {"role": "decode"}}
//
// Members that a reader does not know are ignored. A change that older readers would misunderstand takes a new version.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::transfer {

inline constexpr std::size_t kMostRecordBytes = 16384;
inline constexpr std::size_t kMostNameBytes = 200;  // percent-encoded, as in a file's name
inline constexpr std::size_t kMostAddresses = 16;

struct PeerRecord {
  std::string name;  // unique among live peers: "decode-0/tp1"
  std::uint64_t incarnation =
      0;  // random, not 0, new at each start: a restarted peer is another one
  std::vector<std::string> addresses;  // "tcp:10.0.0.1:7001", "unix:@name"; the preferred one first
  std::string machine;                 // boot id of its machine; equal: shared memory is possible
  std::map<std::string, std::string> facts = {};  // small: version, geometry fingerprint, role

  bool operator==(const PeerRecord&) const = default;

  // A record of this process: a new incarnation on this machine. @errors kIo: no /proc
  static Result<PeerRecord> make(std::string name, std::vector<std::string> addresses);
  // @errors kInvalidArgument: a part is missing, too long, or not UTF-8 without control characters
  Status check() const;
};

// @errors kInvalidArgument: empty, longer than kMostNameBytes, or not UTF-8 without control characters
Status check_name(std::string_view name);

// @param record  has passed check()
std::string encode(const PeerRecord& record);
// @param name    the name under which the text was found
// @param source  of the text, for messages
// @errors kCorrupt: not a record, or that of another name; kVersionMismatch
Result<PeerRecord> decode(std::string_view text, std::string_view name, const std::string& source);

// "incarnation 9f3c… at tcp:10.0.0.1:7001", for messages.
std::string describe(const PeerRecord& record);

}  // namespace cachalot::transfer
