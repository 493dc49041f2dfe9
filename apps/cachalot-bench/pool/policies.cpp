#include "policies.h"

#include <memory>
#include <string>
#include <vector>

#include "cache_sim/cache_model.h"
#include "cache_sim/chain_numbers.h"
#include "trace/request/trace_generator.h"

namespace cachalot::apps::bench {
namespace {

// Requests as paths of block numbers, one after the other: a made-up load of chats, most of whose blocks
// are asked for a few times and then never again.
struct Load {
  std::vector<std::uint32_t> blocks;
  std::vector<std::size_t> ends;
  std::uint32_t distinct = 0;
};

Result<Load> make_load(std::size_t references) {
  trace::GeneratorOptions options = trace::GeneratorOptions::of(trace::LoadKind::kChat);
  CACHALOT_TRY_ASSIGN(trace::TraceGenerator generator, trace::TraceGenerator::make(options));
  Load load;
  cache_sim::ChainNumbers numbers;
  for (trace::Request request; load.blocks.size() < references;) {
    generator.next(request);
    std::uint32_t parent = eviction::kNoNode;
    for (const std::uint64_t id : request.hash_ids) {
      parent = numbers.number_of(parent, id);
      load.blocks.push_back(parent);
    }
    load.ends.push_back(load.blocks.size());
  }
  load.distinct = numbers.size();
  return load;
}

template <class F>
double mega_references_per_s(const Load& load, F&& request) {
  const std::uint64_t start = now_ns();
  std::size_t begin = 0;
  for (const std::size_t end : load.ends) {
    request(std::span(load.blocks.data() + begin, end - begin));
    begin = end;
  }
  return static_cast<double>(load.blocks.size()) * 1e3 / static_cast<double>(now_ns() - start);
}

// What no cache can do without: finding each block in a table.
double table_rate(const Load& load) {
  std::vector<std::uint32_t> table(load.distinct);
  return mega_references_per_s(load, [&](std::span<const std::uint32_t> path) {
    for (const std::uint32_t block : path) ++table[block];
    asm volatile("" : : "g"(table.data()) : "memory");
  });
}

double policy_rate(const Load& load, cache_sim::CacheModel& cache) {
  return mega_references_per_s(
      load, [&](std::span<const std::uint32_t> path) { (void)cache.access(path); });
}

}  // namespace

Status bench_policies(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const Load load, make_load(settings.quick ? 1'000'000 : 4'000'000));
  for (const eviction::CacheMode mode :
       {eviction::CacheMode::kLeaf, eviction::CacheMode::kStream}) {
    for (const eviction::PolicyKind policy : eviction::online_policies()) {
      if (!eviction::has_mode(policy, mode)) continue;
      for (const std::uint64_t capacity : {1000, 100'000}) {
        const std::string name = std::string(eviction::cache_mode_name(mode)) + "/" +
                                 eviction::policy_name(policy) + "/" + std::to_string(capacity);
        show_progress(name);
        std::vector<double> rates, tables;
        for (std::uint32_t i = 0; i < settings.repeats; ++i) {
          CACHALOT_TRY_ASSIGN(const auto cache,
                              cache_sim::make_cache_model({policy, mode, capacity}));
          tables.push_back(table_rate(load));
          rates.push_back(policy_rate(load, *cache));
        }
        const Spread rate = spread_of(rates);
        Row row{name, rate.median, "M/s", "a table looked up", spread_of(tables).median};
        row.target = value_at_least(policy == eviction::PolicyKind::kLru ? 10 : 3);
        add_spread(row, rate);
        report.add(std::move(row));
      }
    }
  }
  report.note("references to blocks; requests of " +
              std::to_string(load.blocks.size() / load.ends.size()) + " blocks on average, " +
              std::to_string(load.distinct) + " distinct of " + std::to_string(load.blocks.size()));
  return {};
}

}  // namespace cachalot::apps::bench
