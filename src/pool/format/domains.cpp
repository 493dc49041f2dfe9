#include "pool/format/domains.h"

#include <vector>

#include "memory/mixed_domain.h"

namespace cachalot::pool {
namespace {

constexpr std::string_view kCoherent = "coherent", kNoncoherent = "noncoherent";

// Words that say it for each device.
std::uint32_t words_of(const Geometry& geometry) {
  return geometry.growable ? 2 : geometry.devices;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t comma = text.find(',');
    words.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

Status set_domains(Geometry& geometry, std::string_view text) {
  const std::vector<std::string_view> words = split(text);
  const std::size_t wanted = words_of(geometry);
  if (words.size() != 1 && wanted == 1) {
    return Error::make(Code::kInvalidArgument,
                       "domain: %.80s: %zu words for one device, expected one",
                       std::string(text).c_str(), words.size());
  }
  if (words.size() != 1 && words.size() != wanted) {
    return Error::make(Code::kInvalidArgument,
                       "domain: %.80s: %zu words, expected one, or %zu: one for each device%s",
                       std::string(text).c_str(), words.size(), wanted,
                       geometry.growable ? ", of which the second stands for all added ones" : "");
  }
  std::uint64_t noncoherent = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kNoncoherent) {
      noncoherent |= std::uint64_t{1} << i;
    } else if (words[i] != kCoherent) {
      return Error::make(Code::kInvalidArgument,
                         "domain: '%.40s', expected coherent or noncoherent",
                         std::string(words[i]).c_str());
    }
  }
  const std::uint64_t all =
      words.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << words.size()) - 1;
  geometry.noncoherent_devices = 0;
  if (noncoherent == 0 || noncoherent == all) {
    geometry.domain =
        noncoherent == 0 ? memory::DomainKind::kCoherent : memory::DomainKind::kNoncoherent;
    return {};
  }
  if ((noncoherent & 1) != 0) {
    return Error::make(Code::kInvalidArgument,
                       "domain: %.80s: the first device has the metadata, and is not coherent; "
                       "expected a coherent one first where there is one",
                       std::string(text).c_str());
  }
  geometry.domain = memory::DomainKind::kMixed;
  geometry.noncoherent_devices = noncoherent;
  return {};
}

std::string domains_text(const Geometry& geometry) {
  if (geometry.domain != memory::DomainKind::kMixed) return memory::domain_name(geometry.domain);
  std::string text;
  for (std::uint32_t i = 0; i < words_of(geometry); ++i) {
    if (i != 0) text += ',';
    text += geometry.is_noncoherent(i) ? kNoncoherent : kCoherent;
  }
  return text;
}

Result<std::unique_ptr<memory::Domain>> make_domain(const Geometry& geometry,
                                                    const memory::PoolView& view,
                                                    const char* name) {
  switch (geometry.domain) {
    case memory::DomainKind::kCoherent:
      return memory::make_coherent_domain();
    case memory::DomainKind::kNoncoherent:
      return memory::make_noncoherent_domain();
    case memory::DomainKind::kMixed: {
      // What lies behind the first device of a pool that may grow is none of these ranges, so it is not coherent.
      std::vector<memory::MixedDomain::Range> coherent;
      for (std::uint32_t i = 0; i < view.bases.size(); ++i) {
        if (geometry.is_noncoherent(i)) continue;
        coherent.push_back({view.bases[i], view.bases[i] + view.bytes_each});
      }
      std::unique_ptr<memory::Domain> mixed = std::make_unique<memory::MixedDomain>(
          std::move(coherent), memory::make_coherent_domain(),
          memory::make_noncoherent_domain(memory::Isa::kAuto, memory::CompletePolicy::kReadBack));
      return mixed;
    }
    case memory::DomainKind::kLossy:
      break;
  }
  return Error::make(Code::kUnsupported, "%s: is a pool of a simulated coherence domain", name);
}

}  // namespace cachalot::pool
