#include "transfer/link/frame.h"

#include <algorithm>

#include "base/crc32c.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint32_t kMagic = 0x58465243u;         // "CRFX"
constexpr std::uint32_t kTrailerMagic = 0x54465243u;  // "CRFT"
constexpr std::uint64_t kWordBytes = 8;

std::uint32_t checksum_of(FrameHeader header, std::span<const std::byte> body) {
  header.crc = 0;
  std::uint32_t crc = base::kCrc32cInit;
  std::uint64_t word;
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  for (std::size_t i = 0; i < sizeof header; i += kWordBytes) {
    std::memcpy(&word, bytes + i, kWordBytes);
    crc = base::crc32c_word(crc, word);
  }
  for (std::size_t i = 0; i < body.size(); i += kWordBytes) {
    std::memcpy(&word, body.data() + i, kWordBytes);
    crc = base::crc32c_word(crc, word);
  }
  return crc;
}

}  // namespace

std::vector<std::byte> encode(const Frame& frame, std::uint64_t payload_bytes) {
  FrameHeader header{};
  header.magic = kMagic;
  header.type = static_cast<std::uint16_t>(frame.type);
  header.version = kWireVersion;
  header.body_bytes = static_cast<std::uint32_t>(frame.body.size());
  header.payload_bytes = payload_bytes;
  header.crc = checksum_of(header, frame.body);
  std::vector<std::byte> bytes(sizeof header + frame.body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(frame.body.begin(), frame.body.end(), bytes.begin() + sizeof header);
  return bytes;
}

Status check_beginning(std::span<const std::byte> bytes) {
  // An alert (21) or a handshake (22) of TLS.
  if (bytes.size() < 2 || (bytes[0] != std::byte{21} && bytes[0] != std::byte{22}) ||
      bytes[1] != std::byte{3})
    return {};
  return Error::make(Code::kPermission,
                     "the peer encrypts with its cluster key; this process has no cluster key, or "
                     "was told not to encrypt");
}

Status check_header(const FrameHeader& header, std::uint32_t most_body_bytes) {
  if (header.magic != kMagic) {
    return Error::make(Code::kBadInput,
                       "not a Cachalot transfer peer: its frame begins with %#x, expected %#x",
                       header.magic, kMagic);
  }
  if (header.version != kWireVersion) {
    return Error::make(Code::kVersionMismatch,
                       "the peer speaks transfer version %u, this engine version %u",
                       header.version, kWireVersion);
  }
  if (header.body_bytes > most_body_bytes || header.body_bytes % kWordBytes != 0) {
    return Error::make(Code::kBadInput,
                       "a frame's body has %u bytes; expected whole words, at most %u",
                       header.body_bytes, most_body_bytes);
  }
  if (header.payload_bytes > kMostPayloadBytes) {
    return Error::make(Code::kBadInput, "a frame's payload has %llu bytes; expected at most %llu",
                       static_cast<unsigned long long>(header.payload_bytes),
                       static_cast<unsigned long long>(kMostPayloadBytes));
  }
  if (header.payload_bytes != 0 && header.type != static_cast<std::uint16_t>(FrameType::kChunk)) {
    return Error::make(Code::kBadInput, "a frame of type %u has a payload", header.type);
  }
  return {};
}

Status check_body(const FrameHeader& header, std::span<const std::byte> body) {
  if (checksum_of(header, body) == header.crc) return {};
  return Error::make(Code::kCorrupt, "a frame of type %u has a wrong CRC", header.type);
}

FrameTrailer make_trailer(PayloadState state, std::uint64_t checksum) {
  return {checksum, static_cast<std::uint32_t>(state), kTrailerMagic};
}

Status check_trailer(const FrameTrailer& trailer) {
  const bool known = trailer.state == static_cast<std::uint32_t>(PayloadState::kValid) ||
                     trailer.state == static_cast<std::uint32_t>(PayloadState::kVoid);
  if (trailer.magic == kTrailerMagic && known) return {};
  return Error::make(Code::kBadInput, "a payload's trailer is not valid");
}

BodyWriter& BodyWriter::word(std::uint64_t value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  body_.insert(body_.end(), bytes, bytes + kWordBytes);
  return *this;
}

BodyWriter& BodyWriter::bytes(std::span<const std::byte> value) {
  word(value.size());
  body_.insert(body_.end(), value.begin(), value.end());
  body_.resize((body_.size() + kWordBytes - 1) / kWordBytes * kWordBytes);
  return *this;
}

BodyWriter& BodyWriter::text(std::string_view value) {
  return bytes(std::as_bytes(std::span(value)));
}

BodyWriter& BodyWriter::error(const Error& value) {
  return word(static_cast<std::uint64_t>(value.code)).text(value.message);
}

BodyWriter& BodyWriter::words(std::span<const std::uint64_t> values) {
  word(values.size());
  const auto raw = std::as_bytes(values);
  body_.insert(body_.end(), raw.begin(), raw.end());
  return *this;
}

BodyWriter& BodyWriter::stream(const ByteStream& value) {
  word(value.turns()).word(value.sections().size());
  for (const Strided& section : value.sections()) {
    word(section.base()).word(section.run_bytes()).word(section.axes().size());
    for (const Axis& axis : section.axes()) {
      word(axis.count).word(axis.stride).word(axis.per_offset).words(axis.offsets);
    }
  }
  return *this;
}

void BodyReader::fail(const char* what) {
  if (status_.ok()) status_ = Error::make(Code::kBadInput, "a frame's body is not valid: %s", what);
  rest_ = {};
}

std::uint64_t BodyReader::word() {
  if (rest_.size() < kWordBytes) {
    fail("it is too short");
    return 0;
  }
  std::uint64_t value;
  std::memcpy(&value, rest_.data(), kWordBytes);
  rest_ = rest_.subspan(kWordBytes);
  return value;
}

std::vector<std::byte> BodyReader::bytes(std::uint64_t most_bytes) {
  const std::uint64_t count = word();
  const std::uint64_t padded = (count + kWordBytes - 1) / kWordBytes * kWordBytes;
  if (count > most_bytes || padded < count || padded > rest_.size()) {
    fail("a text or a list is too long");
    return {};
  }
  std::vector<std::byte> value(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(count));
  rest_ = rest_.subspan(padded);
  return value;
}

std::string BodyReader::text(std::uint64_t most_bytes) {
  const std::vector<std::byte> value = bytes(most_bytes);
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

Error BodyReader::error() {
  const std::uint64_t code = word();
  const bool is_known = code >= 1 && code <= static_cast<std::uint64_t>(Code::kCancelled);
  return Error::make(is_known ? static_cast<Code>(code) : Code::kRefused, "%s",
                     text(Error::kMessageBytes).c_str());
}

std::vector<std::uint64_t> BodyReader::words(std::uint64_t most) {
  const std::uint64_t count = word();
  if (count > most || count > rest_.size() / kWordBytes) {
    fail("a list is too long");
    return {};
  }
  std::vector<std::uint64_t> values(count);
  if (count > 0) std::memcpy(values.data(), rest_.data(), count * kWordBytes);
  rest_ = rest_.subspan(count * kWordBytes);
  return values;
}

Strided BodyReader::strided() {
  const std::uint64_t base = word(), run_bytes = word(), count = word();
  if (count > kMostAxes) {
    fail("a stream has too many axes");
    return {};
  }
  std::vector<Axis> axes(count);
  for (Axis& axis : axes) {
    axis.count = word();
    axis.stride = word();
    axis.per_offset = word();
    axis.offsets = words(kMostBodyBytes / kWordBytes);
  }
  if (!status_.ok()) return {};
  Result<Strided> stream = Strided::make(base, std::move(axes), run_bytes);
  if (!stream) {
    status_ = stream.error();
    return {};
  }
  return *std::move(stream);
}

ByteStream BodyReader::stream() {
  const std::uint64_t turns = word(), count = word();
  if (count > kMostSections) {
    fail("a stream has too many sections");
    return {};
  }
  std::vector<Strided> sections;
  for (std::uint64_t i = 0; i < count && status_.ok(); ++i) sections.push_back(strided());
  if (!status_.ok()) return {};
  Result<ByteStream> stream = ByteStream::make(turns, std::move(sections));
  if (!stream) {
    status_ = stream.error();
    return {};
  }
  return *std::move(stream);
}

Status BodyReader::end() {
  if (status_.ok() && !rest_.empty()) fail("bytes are left");
  return status_.ok() ? Status() : Status(status_.error());
}

}  // namespace cachalot::transfer
