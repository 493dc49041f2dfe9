#include "transfer/pair/geometry_pair.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

namespace cachalot::transfer {
namespace {

// The ranks of one instance that hold the same bytes.
struct Group {
  RankBox box;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint64_t> load;  // bytes of a token that each of them serves
};

struct Instance {
  const char* name;
  std::span<const Rank> ranks;
  std::vector<RankBox> boxes;           // of each rank
  std::vector<Group> groups;            // no two of them overlap
  std::vector<std::uint32_t> group_of;  // of each rank
  std::uint32_t layers = 0;             // of the model
};

Range overlap(Range a, Range b) {
  const Range both{std::max(a.first, b.first), std::min(a.last, b.last)};
  return both.first < both.last ? both : Range{};
}

Range within(Range range, Range whole) {
  return {range.first - whole.first, range.last - whole.first};
}

std::uint64_t cells(Range layers, Range heads) {
  return std::uint64_t{layers.count()} * heads.count();
}

// Two ranks that disagree about the model.
struct Pair {
  const Instance& a;
  std::size_t a_rank;
  const Instance& b;
  std::size_t b_rank;

  Status equal(const char* what, const std::string& x, const std::string& y) const {
    if (x == y) return {};
    return Error::make(Code::kInvalidArgument,
                       "geometry pair: %s is %s in %s rank %zu and %s in %s rank %zu, expected one "
                       "model",
                       what, x.c_str(), a.name, a_rank, y.c_str(), b.name, b_rank);
  }
  Status equal(const char* what, std::uint64_t x, std::uint64_t y) const {
    return x == y ? Status() : equal(what, std::to_string(x), std::to_string(y));
  }
};

const char* attention_name(Attention attention) {
  return attention == Attention::kGrouped ? "grouped" : "latent";
}

// All but the layers, of which a rank may have a part.
Status check_alike(const Pair& pair) {
  const KvGeometry &x = pair.a.ranks[pair.a_rank].geometry, &y = pair.b.ranks[pair.b_rank].geometry;
  CACHALOT_TRY(pair.equal("attention", attention_name(x.attention), attention_name(y.attention)));
  CACHALOT_TRY(pair.equal("the number of KV heads", pair.a.boxes[pair.a_rank].model_heads,
                          pair.b.boxes[pair.b_rank].model_heads));
  CACHALOT_TRY(pair.equal("head_dim", x.head_dim, y.head_dim));
  CACHALOT_TRY(pair.equal("kv_lora_rank", x.kv_lora_rank, y.kv_lora_rank));
  CACHALOT_TRY(pair.equal("qk_rope_head_dim", x.qk_rope_head_dim, y.qk_rope_head_dim));
  return pair.equal("dtype", dtype_name(x.dtype), dtype_name(y.dtype));
}

Status add_to_group(Instance& instance, std::uint32_t rank) {
  const RankBox& box = instance.boxes[rank];
  for (std::uint32_t i = 0; i < instance.groups.size(); ++i) {
    Group& group = instance.groups[i];
    if (group.box.layers == box.layers && group.box.heads == box.heads) {
      group.ranks.push_back(rank);
      group.load.push_back(0);
      instance.group_of.push_back(i);
      return {};
    }
    if (overlap(group.box.layers, box.layers).count() > 0 &&
        overlap(group.box.heads, box.heads).count() > 0) {
      return Error::make(
          Code::kInvalidArgument,
          "geometry pair: %s rank %u has layers [%u, %u) and heads [%u, %u), rank %u "
          "layers [%u, %u) and heads [%u, %u): expected the same ones or others",
          instance.name, rank, box.layers.first, box.layers.last, box.heads.first, box.heads.last,
          group.ranks[0], group.box.layers.first, group.box.layers.last, group.box.heads.first,
          group.box.heads.last);
    }
  }
  instance.group_of.push_back(static_cast<std::uint32_t>(instance.groups.size()));
  instance.groups.push_back({box, {rank}, {0}});
  return {};
}

Result<Instance> read_instance(const char* name, std::span<const Rank> ranks) {
  if (ranks.empty() || ranks.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Error::make(Code::kInvalidArgument, "geometry pair: %zu %s ranks, expected at least 1",
                       ranks.size(), name);
  }
  Instance instance{name, ranks, {}, {}, {}, 0};
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    CACHALOT_TRY_ASSIGN(const RankBox box, box_of(ranks[rank]));
    instance.boxes.push_back(box);
    CACHALOT_TRY(check_alike({instance, 0, instance, rank}));
    CACHALOT_TRY(add_to_group(instance, rank));
    instance.layers = std::max(instance.layers, box.layers.last);
  }
  return instance;
}

// The rank that serves the least; of equal ones the first from `turn` on.
std::uint32_t take_source(Group& group, std::uint64_t bytes, std::uint64_t turn) {
  const std::size_t count = group.ranks.size();
  std::size_t best = turn % count;
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t rank = (turn + i) % count;
    if (group.load[rank] < group.load[best]) best = rank;
  }
  group.load[best] += bytes;
  return group.ranks[best];
}

std::uint64_t token_bytes(const KvGeometry& geometry, Range layers, Range heads) {
  return cells(layers, heads) * (geometry.content_bytes(0) + geometry.content_bytes(1));
}

bool comes_before(const Fetch& a, const Fetch& b) {
  return std::tuple(a.destination, a.layers.first, a.heads.first) <
         std::tuple(b.destination, b.layers.first, b.heads.first);
}

Status add_fetches(Instance& sources, const Instance& destinations, std::uint32_t rank,
                   std::uint64_t turn, std::vector<Fetch>& fetches) {
  const RankBox& box = destinations.boxes[rank];
  std::uint64_t found = 0;
  for (Group& group : sources.groups) {
    const Range layers = overlap(box.layers, group.box.layers);
    const Range heads = overlap(box.heads, group.box.heads);
    if (cells(layers, heads) == 0) continue;
    found += cells(layers, heads);
    const std::uint64_t bytes = token_bytes(destinations.ranks[rank].geometry, layers, heads);
    fetches.push_back({.source = take_source(group, bytes, turn),
                       .destination = rank,
                       .layers = layers,
                       .heads = heads,
                       .source_layers = within(layers, group.box.layers),
                       .source_heads = within(heads, group.box.heads),
                       .destination_layers = within(layers, box.layers),
                       .destination_heads = within(heads, box.heads),
                       .token_bytes = bytes});
  }
  if (found != cells(box.layers, box.heads)) {
    return Error::make(Code::kInvalidArgument,
                       "geometry pair: destination rank %u has layers [%u, %u) and heads [%u, %u), "
                       "expected source ranks that have all of them",
                       rank, box.layers.first, box.layers.last, box.heads.first, box.heads.last);
  }
  return {};
}

// The ranks of a machine that hold what `rank` holds.
std::vector<std::uint32_t> equals_here(const Instance& destinations, std::uint32_t rank) {
  std::vector<std::uint32_t> here;
  for (const std::uint32_t other : destinations.groups[destinations.group_of[rank]].ranks) {
    if (destinations.ranks[other].machine == destinations.ranks[rank].machine) {
      here.push_back(other);
    }
  }
  return here;
}

Fetch whole_copy(const Instance& destinations, std::uint32_t from, std::uint32_t to) {
  const RankBox& box = destinations.boxes[to];
  const Range layers{0, box.layers.count()}, heads{0, box.heads.count()};
  return {.source = from,
          .destination = to,
          .layers = box.layers,
          .heads = box.heads,
          .source_layers = layers,
          .source_heads = heads,
          .destination_layers = layers,
          .destination_heads = heads,
          .token_bytes = token_bytes(destinations.ranks[to].geometry, box.layers, box.heads)};
}

std::span<const Fetch> of_destination(const std::vector<Fetch>& fetches,
                                      std::uint32_t destination) {
  const auto is_before = [](const Fetch& fetch, std::uint32_t rank) {
    return fetch.destination < rank;
  };
  const auto first = std::lower_bound(fetches.begin(), fetches.end(), destination, is_before);
  const auto last = std::find_if(
      first, fetches.end(), [&](const Fetch& fetch) { return fetch.destination != destination; });
  return {first, last};
}

}  // namespace

Result<RankBox> box_of(const Rank& rank) {
  const KvGeometry& geometry = rank.geometry;
  CACHALOT_TRY(geometry.check());
  RankBox box;
  box.layers = rank.layers;
  std::uint64_t heads = 1, first_head = 0, last_layer = rank.layers.last;
  if (rank.layers == Range{}) {
    box.layers.first = geometry.pp_rank * geometry.layers;
    last_layer = std::uint64_t{geometry.pp_rank + 1} * geometry.layers;
    box.layers.last = static_cast<std::uint32_t>(last_layer);
  }
  box.replicas = geometry.tp_size;
  if (geometry.attention == Attention::kGrouped) {
    box.replicas = geometry.tp_replicas;
    first_head = std::uint64_t{geometry.tp_rank / box.replicas} * geometry.kv_heads;
    heads = std::uint64_t{geometry.tp_size / box.replicas} * geometry.kv_heads;
  }
  if (heads > std::numeric_limits<std::uint32_t>::max() ||
      last_layer > std::numeric_limits<std::uint32_t>::max()) {
    return Error::make(Code::kInvalidArgument,
                       "geometry pair: a model of %" PRIu64 " heads and %" PRIu64
                       " layers, expected below 2^32",
                       heads, last_layer);
  }
  if (box.layers.first > box.layers.last || box.layers.count() != geometry.layers) {
    return Error::make(
        Code::kInvalidArgument,
        "geometry pair: layers [%u, %u) of a rank, expected the %u that its geometry "
        "has",
        box.layers.first, box.layers.last, geometry.layers);
  }
  box.model_heads = static_cast<std::uint32_t>(heads);
  box.heads = {static_cast<std::uint32_t>(first_head),
               static_cast<std::uint32_t>(first_head) + geometry.heads()};
  return box;
}

std::span<const Fetch> PairPlan::fetches_of(std::uint32_t destination) const {
  return of_destination(fetches_, destination);
}

std::span<const Fetch> PairPlan::copies_of(std::uint32_t destination) const {
  return of_destination(copies_, destination);
}

std::uint32_t PairPlan::expected_transfers(std::uint32_t source) const {
  return static_cast<std::uint32_t>(
      std::count_if(fetches_.begin(), fetches_.end(),
                    [source](const Fetch& fetch) { return fetch.source == source; }));
}

std::uint64_t PairPlan::token_bytes_from(std::uint32_t source) const {
  std::uint64_t bytes = 0;
  for (const Fetch& fetch : fetches_) {
    if (fetch.source == source) bytes += fetch.token_bytes;
  }
  return bytes;
}

Result<PairPlan> plan_pair(std::span<const Rank> sources, std::span<const Rank> destinations,
                           const PairOptions& options) {
  CACHALOT_TRY_ASSIGN(Instance from, read_instance("source", sources));
  CACHALOT_TRY_ASSIGN(const Instance to, read_instance("destination", destinations));
  const Pair firsts{from, 0, to, 0};
  CACHALOT_TRY(check_alike(firsts));
  CACHALOT_TRY(firsts.equal("the number of layers", from.layers, to.layers));
  PairPlan plan;
  for (std::uint32_t rank = 0; rank < destinations.size(); ++rank) {
    std::vector<std::uint32_t> equals = {rank};
    if (options.once_per_machine) equals = equals_here(to, rank);
    if (equals[0] != rank) continue;
    // Sources are chosen in an order that the fetcher does not change, so that each has its turn.
    const std::uint32_t fetcher = equals[options.turn % equals.size()];
    CACHALOT_TRY(add_fetches(from, to, fetcher, options.turn, plan.fetches_));
    for (const std::uint32_t other : equals) {
      if (other != fetcher) plan.copies_.push_back(whole_copy(to, fetcher, other));
    }
  }
  for (std::vector<Fetch>* const fetches : {&plan.fetches_, &plan.copies_}) {
    std::sort(fetches->begin(), fetches->end(), comes_before);
  }
  return plan;
}

}  // namespace cachalot::transfer
