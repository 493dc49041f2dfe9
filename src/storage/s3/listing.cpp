#include "storage/s3/listing.h"

#include <charconv>
#include <optional>
#include <utility>

namespace cachalot::storage {
namespace {

// What is between <name> and </name>, and takes it off the front of `xml`.
std::optional<std::string_view> take_element(std::string_view& xml, const std::string& name) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  const std::size_t start = xml.find(open);
  const std::size_t end = start == std::string_view::npos ? start : xml.find(close, start);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view inside = xml.substr(start + open.size(), end - start - open.size());
  xml.remove_prefix(end + close.size());
  return inside;
}

std::string unescape(std::string_view text) {
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  std::string plain;
  while (!text.empty()) {
    const std::size_t semicolon = text[0] == '&' ? text.find(';') : std::string_view::npos;
    if (semicolon == std::string_view::npos) {
      plain += text[0];
      text.remove_prefix(1);
      continue;
    }
    const std::string_view name = text.substr(1, semicolon - 1);
    for (const auto& [known, c] : kNamed) {
      if (name == known) plain += c;
    }
    if (name.starts_with('#')) {
      const bool is_hex = name.starts_with("#x");
      unsigned code = 0;
      (void)std::from_chars(name.data() + (is_hex ? 2 : 1), name.data() + name.size(), code,
                            is_hex ? 16 : 10);
      plain += static_cast<char>(code < 128 ? code : '?');  // names of ours are ASCII
    }
    text.remove_prefix(semicolon + 1);
  }
  return plain;
}

}  // namespace

Result<S3Listing> S3Listing::parse(std::string_view xml) {
  if (xml.find("<ListBucketResult") == std::string_view::npos ||
      xml.find("</ListBucketResult>") == std::string_view::npos) {
    return Error::make(Code::kIo, "s3: the answer is no list of a bucket");
  }
  S3Listing listing;
  std::string_view rest = xml;
  while (std::optional<std::string_view> object = take_element(rest, "Contents")) {
    const std::optional<std::string_view> name = take_element(*object, "Key");
    if (!name) return Error::make(Code::kIo, "s3: a list has an object without a name");
    listing.names.push_back(unescape(*name));
  }
  rest = xml;
  const std::optional<std::string_view> is_cut = take_element(rest, "IsTruncated");
  rest = xml;
  if (is_cut && *is_cut == "true") {
    const std::optional<std::string_view> next = take_element(rest, "NextContinuationToken");
    if (!next || next->empty())
      return Error::make(Code::kIo, "s3: a list is cut off and has no token");
    listing.next = unescape(*next);
  }
  return listing;
}

}  // namespace cachalot::storage
