#include "trace/request/synthetic_prefix.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 24;

template <class Number>
bool read_whole(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() && !text.empty();
}

// False: not a part, a value out of its range, or a part again.
bool read_part(std::string_view part, SyntheticPrefix& prefix, unsigned& seen) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
  constexpr std::string_view kNames[] = {"shared", "continue", "seed"};
  const auto which = static_cast<unsigned>(std::find(kNames, kNames + 3, name) - kNames);
  if (which == 3 || (seen >> which & 1u) != 0) return false;
  seen |= 1u << which;
  if (which == 0) return read_whole(value, prefix.shared_tokens);
  if (which == 2) return read_whole(value, prefix.seed);
  return read_whole(value, prefix.continue_probability) && prefix.continue_probability >= 0 &&
         prefix.continue_probability <= 1;
}

}  // namespace

Result<SyntheticPrefix> parse_synthetic_prefix(const std::string& text) {
  SyntheticPrefix prefix;
  unsigned seen = 0;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string part(rest.substr(0, comma));
    if (!read_part(part, prefix, seen)) {
      return Error::make(Code::kInvalidArgument,
                         "synthetic prefix: \"%.60s\", expected shared=TOKENS, continue=0…1 and "
                         "seed=N between commas, each once at most",
                         part.c_str());
    }
    if (more) rest.remove_prefix(comma + 1);
  }
  return prefix;
}

Status PrefixSynthesizer::apply(Request& request) {
  const std::uint64_t whole = request.input_tokens / block_tokens_;
  const bool is_begun = request.input_tokens % block_tokens_ != 0;
  if (whole > kMostBlocks) {
    return Error::make(Code::kBadInput, "%llu input tokens, expected at most %llu blocks of %llu",
                       static_cast<unsigned long long>(request.input_tokens),
                       static_cast<unsigned long long>(kMostBlocks),
                       static_cast<unsigned long long>(block_tokens_));
  }
  const std::uint64_t shared = std::min(prefix_.shared_tokens / block_tokens_, whole);
  while (shared_.size() < shared) shared_.push_back(next_id_++);
  // Drawn for every request, so that its fate does not depend on others' lengths.
  const bool continues = rng_.chance(prefix_.continue_probability);
  const std::uint64_t draw = rng_.next();
  std::vector<std::uint64_t>& ids = request.hash_ids;
  ids.clear();
  if (continues && !earlier_.empty()) {
    const std::vector<std::uint64_t>& other = earlier_[draw % earlier_.size()];
    const std::uint64_t blocks = std::min<std::uint64_t>(other.size(), whole);
    ids.assign(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(blocks));
  }
  while (ids.size() < shared) ids.push_back(shared_[ids.size()]);
  while (ids.size() < whole) ids.push_back(next_id_++);
  earlier_.push_back(ids);
  if (earlier_.size() > kRemembered) earlier_.pop_front();
  if (is_begun) ids.push_back(next_id_++);
  return {};
}

}  // namespace cachalot::trace
