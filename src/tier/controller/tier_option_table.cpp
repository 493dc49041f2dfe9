// The options of the tiers as one table: names, values, defaults, and what sets them.
#include <cachalot/tier.h>

#include <cinttypes>
#include <cstdlib>
#include <string>

#include "base/byte_size.h"

namespace cachalot {
namespace {

using Setter = Status (*)(TieredCacheOptions&, const TierOption&, const std::string&);

struct Row {
  TierOption option;
  Setter set;
};

Error wrong(const TierOption& option, const std::string& value) {
  return Error::make(Code::kInvalidArgument, "%s is \"%s\"; expected %s", option.name,
                     value.c_str(), option.values);
}

Result<double> number_of(const TierOption& option, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(number >= 0 && number < 1e18)) return wrong(option, value);
  return number;
}

template <auto kField>
Status set_number(TieredCacheOptions& options, const TierOption& option, const std::string& value) {
  CACHALOT_TRY_ASSIGN(options.*kField, number_of(option, value));
  return {};
}

template <class T>
Status set_whole(T& field, const TierOption& option, const std::string& value) {
  CACHALOT_TRY_ASSIGN(const double number, number_of(option, value));
  if (number > static_cast<double>(~std::uint32_t{0}) ||
      number != static_cast<double>(static_cast<std::uint64_t>(number)))
    return wrong(option, value);
  field = static_cast<T>(number);
  return {};
}

Status set_seconds(std::uint64_t& field_ns, const TierOption& option, const std::string& value) {
  CACHALOT_TRY_ASSIGN(const double seconds, number_of(option, value));
  if (seconds > 1e9) return wrong(option, value);
  field_ns = static_cast<std::uint64_t>(seconds * 1e9);
  return {};
}

Status set_flag(bool& field, const TierOption& option, const std::string& value) {
  const bool is_yes = value == "true" || value == "1", is_no = value == "false" || value == "0";
  if (!is_yes && !is_no) return wrong(option, value);
  field = is_yes;
  return {};
}

Status set_model(double PrefillModel::*field, TieredCacheOptions& options, const TierOption& option,
                 const std::string& value) {
  CACHALOT_TRY_ASSIGN(const double number, number_of(option, value));
  if (!options.prefill) options.prefill.emplace();
  (*options.prefill).*field = number * 1e9;
  return {};
}

using O = TieredCacheOptions;
using T = TierOption;
using S = std::string;

constexpr Row kRows[] = {
    {{"host_ratio", "hicache-ratio", "a number over 1, or over 0 with exclusive", "0",
      "L2's blocks for each block of L1; 0: no L2"},
     set_number<&O::host_ratio>},
    {{"host_size", nullptr, "SIZE, as 64GiB", "0", "instead: L2's bytes, of this rank"},
     [](O& o, const T&, const S& v) -> Status {
       CACHALOT_TRY_ASSIGN(o.host_bytes, base::parse_byte_size("host_size", v));
       return {};
     }},
    {{"hicache_size", "hicache-size", "10^9 bytes", "0", "the same, as SGLang writes it"},
     [](O& o, const T& t, const S& v) -> Status {
       CACHALOT_TRY_ASSIGN(const double gb, number_of(t, v));
       if (gb > 1e6) return wrong(t, v);
       o.host_bytes = static_cast<std::uint64_t>(gb * 1e9);
       return {};
     }},
    {{"host_layout", "hicache-mem-layout", "layer_first|page_first|page_first_direct|page_head",
      "page_first", "order of the bytes in L2"},
     [](O& o, const T&, const S& v) -> Status {
       o.host_layout = v;
       return {};
     }},
    {{"exclusive", nullptr, "true|false", "false",
      "L2 has what L1 has evicted, not copies of L1's blocks"},
     [](O& o, const T& t, const S& v) { return set_flag(o.exclusive, t, v); }},
    {{"write_policy", "hicache-write-policy", "through|selective|back", "through",
      "when blocks go to the next tier: at commit, at the selective_uses-th use, when L1 evicts "
      "them"},
     [](O& o, const T& t, const S& v) -> Status {
       if (v == "through" || v == "write_through") {
         o.writes = TierWrites::kThrough;
       } else if (v == "selective" || v == "write_through_selective") {
         o.writes = TierWrites::kSelective;
       } else if (v == "back" || v == "write_back") {
         o.writes = TierWrites::kBack;
       } else {
         return wrong(t, v);
       }
       return {};
     }},
    {{"selective_uses", nullptr, "a whole number over 1", "2", "of write_policy selective"},
     [](O& o, const T& t, const S& v) { return set_whole(o.selective_uses, t, v); }},
    {{"prefetch_policy", "hicache-storage-prefetch-policy", "best_effort|wait_complete|timeout",
      "timeout", "when a prompt no longer waits for L3"},
     [](O& o, const T& t, const S& v) -> Status {
       if (v == "best_effort") {
         o.prefetch.stop = PrefetchStop::kBestEffort;
       } else if (v == "wait_complete") {
         o.prefetch.stop = PrefetchStop::kWaitComplete;
       } else if (v == "timeout") {
         o.prefetch.stop = PrefetchStop::kTimeout;
       } else {
         return wrong(t, v);
       }
       return {};
     }},
    {{"prefetch_threshold", "prefetch_threshold", "tokens", "256",
      "fewer tokens in L3 are not fetched"},
     [](O& o, const T& t, const S& v) { return set_whole(o.prefetch.threshold_tokens, t, v); }},
    {{"prefetch_timeout_base", "prefetch_timeout_base", "seconds", "1",
      "of prefetch_policy timeout"},
     [](O& o, const T& t, const S& v) { return set_seconds(o.prefetch.timeout_base_ns, t, v); }},
    {{"prefetch_timeout_per_ki_token", "prefetch_timeout_per_ki_token", "seconds", "0.25",
      "the same, for each 1024 tokens found"},
     [](O& o, const T& t, const S& v) {
       return set_seconds(o.prefetch.timeout_per_ki_token_ns, t, v);
     }},
    {{"fetch_threads", nullptr, "1 to 256", "4", "prompts fetched from L3 at the same time"},
     [](O& o, const T& t, const S& v) { return set_whole(o.fetch_threads, t, v); }},
    {{"write_queue", nullptr, "SIZE", "256MiB",
      "bytes that wait for L3; blocks beyond are not written"},
     [](O& o, const T&, const S& v) -> Status {
       CACHALOT_TRY_ASSIGN(o.write_queue_bytes, base::parse_byte_size("write_queue", v));
       return {};
     }},
    {{"shared_timeout", nullptr, "seconds", "2", "of one call to L3, of at most 16 blocks"},
     [](O& o, const T& t, const S& v) { return set_seconds(o.shared_timeout_ns, t, v); }},
    {{"device_order", "radix-eviction-policy", "lru|lfu|fifo|length_aware|slru|priority|mru|filo",
      "lru", "which blocks L1 evicts"},
     [](O& o, const T&, const S& v) -> Status {
       o.device_order = v;
       return {};
     }},
    {{"host_order", nullptr, "lru|lfu|fifo|length_aware|slru|priority|mru|filo", "lru",
      "which blocks L2 evicts"},
     [](O& o, const T&, const S& v) -> Status {
       o.host_order = v;
       return {};
     }},
    {{"prefill_a", nullptr, "seconds", "none",
      "load or recompute: a prefill of n tokens takes a + b n + c n^2. None of the three: blocks "
      "are always loaded"},
     [](O& o, const T& t, const S& v) { return set_model(&PrefillModel::a_ns, o, t, v); }},
    {{"prefill_b", nullptr, "seconds a token", "none", "the same"},
     [](O& o, const T& t, const S& v) { return set_model(&PrefillModel::b_ns, o, t, v); }},
    {{"prefill_c", nullptr, "seconds a token squared", "none", "the same"},
     [](O& o, const T& t, const S& v) { return set_model(&PrefillModel::c_ns, o, t, v); }},
    {{"writes_shared", nullptr, "true|false", "by the geometry",
      "whether this rank writes to L3; of ranks with the same bytes the first one does"},
     [](O& o, const T& t, const S& v) {
       bool writes = false;
       const Status set = set_flag(writes, t, v);
       if (set) o.writes_shared = writes;
       return set.ok() ? Status() : Status(set.error());
     }},
    {{"rank_timeout", nullptr, "seconds", "5", "how long a rank waits for the others"},
     [](O& o, const T& t, const S& v) { return set_seconds(o.rank_timeout_ns, t, v); }},
};

// SGLang's flags have hyphens; here both are the same.
bool is_name(const char* name, std::string_view given) {
  if (name == nullptr || std::string_view(name).size() != given.size()) return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char one = name[i] == '-' ? '_' : name[i], other = given[i] == '-' ? '_' : given[i];
    if (one != other) return false;
  }
  return true;
}

}  // namespace

std::span<const TierOption> tier_options() {
  static const std::vector<TierOption> options = [] {
    std::vector<TierOption> all;
    for (const Row& row : kRows) all.push_back(row.option);
    return all;
  }();
  return options;
}

Status set_tier_option(TieredCacheOptions& options, std::string_view name, std::string_view value) {
  std::string names;
  for (const Row& row : kRows) {
    if (is_name(row.option.name, name) || is_name(row.option.sglang, name))
      return row.set(options, row.option, std::string(value));
    names += (names.empty() ? "" : ", ") + std::string(row.option.name);
  }
  return Error::make(
      Code::kInvalidArgument, "there is no option \"%.*s\" of the tiers; expected one of %s",
      static_cast<int>(std::min<std::size_t>(name.size(), 60)), name.data(), names.c_str());
}

}  // namespace cachalot
