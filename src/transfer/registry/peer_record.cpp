#include "transfer/registry/peer_record.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/uri.h"
#include "os/process.h"

namespace cachalot::transfer {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMostFacts = 64;
constexpr std::size_t kMostTextBytes = 1024;  // of an address or a fact

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, number);
  return text;
}

// Bytes of the UTF-8 character at the start, 0 if there is none (Unicode 15, table 3-7).
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  // The second byte also excludes longer forms than needed, surrogates, and what is above U+10FFFF.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

// UTF-8 without control characters.
bool is_text(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0 || first < 0x20 || first == 0x7f) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool is_address(const std::string& address) {
  const std::size_t colon = address.find(':');
  return colon != std::string::npos && colon != 0 && colon + 1 < address.size() &&
         address.size() <= kMostTextBytes && is_text(address);
}

// Reads the members of an object. The first that is wrong is the error.
class Members {
 public:
  Members(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  Result<std::string> text(const char* name) const {
    const auto at = object_.find(name);
    if (at == object_.end() || !at->is_string()) return wrong(name, "a text");
    return at->get<std::string>();
  }
  Result<std::vector<std::string>> texts(const char* name) const {
    const auto at = object_.find(name);
    const auto is_string = [](const Json& one) { return one.is_string(); };
    if (at == object_.end() || !at->is_array() || !std::all_of(at->begin(), at->end(), is_string))
      return wrong(name, "an array of texts");
    return at->get<std::vector<std::string>>();
  }
  Result<std::map<std::string, std::string>> map(const char* name) const {
    const auto at = object_.find(name);
    const auto is_string = [](const Json& one) { return one.is_string(); };
    if (at == object_.end() || !at->is_object() || !std::all_of(at->begin(), at->end(), is_string))
      return wrong(name, "an object of texts");
    return at->get<std::map<std::string, std::string>>();
  }
  Error wrong(const char* name, const char* expected) const {
    return Error::make(Code::kCorrupt, "%s: its record has no valid \"%s\", expected %s",
                       what_.c_str(), name, expected);
  }

 private:
  const Json& object_;
  const std::string what_;
};

}  // namespace

Result<PeerRecord> PeerRecord::make(std::string name, std::vector<std::string> addresses) {
  CACHALOT_TRY_ASSIGN(const os::Uuid random, os::random_uuid());
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  return PeerRecord{std::move(name), std::max<std::uint64_t>(random.low, 1), std::move(addresses),
                    hex(boot.high) + hex(boot.low)};
}

Status check_name(std::string_view name) {
  if (!name.empty() && is_text(name) &&
      base::encode_percent(name, false).size() <= kMostNameBytes) {
    return {};
  }
  return Error::make(Code::kInvalidArgument,
                     "peer \"%.60s\": expected a name of UTF-8 without control characters, at "
                     "most %zu bytes as %%xx",
                     std::string(name).c_str(), kMostNameBytes);
}

Status PeerRecord::check() const {
  CACHALOT_TRY(check_name(name));
  const auto wrong = [&](const char* what) {
    return Error::make(Code::kInvalidArgument, "peer \"%.60s\": %s", name.c_str(), what);
  };
  if (incarnation == 0) return wrong("incarnation is 0, expected a random number");
  if (addresses.empty() || addresses.size() > kMostAddresses)
    return Error::make(Code::kInvalidArgument, "peer \"%.60s\": %zu addresses, expected 1 to %zu",
                       name.c_str(), addresses.size(), kMostAddresses);
  for (const std::string& address : addresses) {
    if (is_address(address)) continue;
    return Error::make(Code::kInvalidArgument,
                       "peer \"%.60s\": address \"%.60s\", expected KIND:PLACE", name.c_str(),
                       address.c_str());
  }
  if (machine.empty() || machine.size() > kMostTextBytes || !is_text(machine))
    return wrong("machine is empty, too long or no text, expected a boot id");
  if (facts.size() > kMostFacts) return wrong("more than 64 facts");
  for (const auto& [fact, value] : facts) {
    if (fact.empty() || fact.size() > kMostTextBytes || value.size() > kMostTextBytes ||
        !is_text(fact) || !is_text(value)) {
      return wrong("a fact is empty, longer than 1024 bytes or no text");
    }
  }
  if (encode(*this).size() > kMostRecordBytes) return wrong("its record has more than 16384 bytes");
  return {};
}

std::string encode(const PeerRecord& record) {
  return Json{{"version", kVersion},
              {"name", record.name},
              {"incarnation", hex(record.incarnation)},
              {"addresses", record.addresses},
              {"machine", record.machine},
              {"facts", Json(record.facts.empty() ? Json::object() : Json(record.facts))}}
      .dump();
}

Result<PeerRecord> decode(std::string_view text, std::string_view name, const std::string& source) {
  const std::string what = source + ": peer \"" + std::string(name.substr(0, 60)) + "\"";
  if (text.size() > kMostRecordBytes)
    return Error::make(Code::kCorrupt, "%s: its record has %zu bytes, expected at most %zu",
                       what.c_str(), text.size(), kMostRecordBytes);
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object())
    return Error::make(Code::kCorrupt, "%s: its record is no JSON object", what.c_str());
  const Members members(object, what);
  const auto version = object.find("version");
  if (version == object.end() || !version->is_number_integer())
    return members.wrong("version", "a number");
  if (*version != kVersion)
    return Error::make(Code::kVersionMismatch, "%s: its record has version %s, expected %d",
                       what.c_str(), version->dump().c_str(), kVersion);
  PeerRecord record;
  CACHALOT_TRY_ASSIGN(record.name, members.text("name"));
  CACHALOT_TRY_ASSIGN(const std::string incarnation, members.text("incarnation"));
  CACHALOT_TRY_ASSIGN(record.addresses, members.texts("addresses"));
  CACHALOT_TRY_ASSIGN(record.machine, members.text("machine"));
  CACHALOT_TRY_ASSIGN(record.facts, members.map("facts"));
  const char* const end = incarnation.data() + incarnation.size();
  const auto [stop, failed] = std::from_chars(incarnation.data(), end, record.incarnation, 16);
  if (failed != std::errc() || stop != end || incarnation.size() != 16)
    return members.wrong("incarnation", "16 hexadecimal digits");
  if (record.name != name)
    return Error::make(Code::kCorrupt, "%s: its record is that of \"%.60s\"", what.c_str(),
                       record.name.c_str());
  if (const Status checked = record.check(); !checked)
    return Error::make(Code::kCorrupt, "%s: %.140s", source.c_str(), checked.error().message);
  return record;
}

std::string describe(const PeerRecord& record) {
  return "incarnation " + hex(record.incarnation) + " at " +
         (record.addresses.empty() ? "no address" : record.addresses.front());
}

}  // namespace cachalot::transfer
