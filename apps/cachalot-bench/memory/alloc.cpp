#include "alloc.h"

#include <memory>

#include "base/histogram.h"
#include "base/rng.h"
#include "device_memory/baseline/caching_allocator.h"
#include "device_memory/model/model_backend.h"
#include "stitch/stitch_allocator.h"
#include "trace/allocation/finetune_generator.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr int kBlocksAround = 2000;  // of other sizes, half of them free: a heap as in training

// An allocator, and the memory that it believes in.
struct Subject {
  std::unique_ptr<device_memory::ModelBackend> backend;
  std::unique_ptr<gpu::ImmediateEvents> events;
  std::unique_ptr<device_memory::Allocator> allocator;
  base::Histogram allocate_ns, free_ns;
};

Result<Subject> make_subject(bool stitches) {
  Subject subject;
  CACHALOT_TRY_ASSIGN(subject.backend, device_memory::ModelBackend::open());
  subject.events = std::make_unique<gpu::ImmediateEvents>();
  if (stitches) {
    CACHALOT_TRY_ASSIGN(subject.allocator,
                        stitch::StitchAllocator::create(*subject.backend, *subject.events));
  } else {
    subject.allocator =
        std::make_unique<device_memory::CachingAllocator>(*subject.backend, *subject.events);
  }
  return subject;
}

// Sizes of the blocks around what is measured.
enum class Around { kOdd, kWholeChunks };

// Used blocks with free ones between them, none of which fits what is measured.
Status fill(device_memory::Allocator& allocator, Around around) {
  base::Rng rng(1);
  std::vector<device_memory::Address> blocks;
  for (int i = 0; i < kBlocksAround; ++i) {
    const std::uint64_t bytes = around == Around::kOdd
                                    ? (2 + rng.below(9)) * kMiB + 512 * rng.below(2048)
                                    : (1 + rng.below(5)) * 2 * kMiB;
    CACHALOT_TRY_ASSIGN(const device_memory::Address block, allocator.allocate(bytes, 0));
    blocks.push_back(block);
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) CACHALOT_TRY(allocator.free(blocks[i]));
  return {};
}

// What reading the clock adds to each figure.
std::uint64_t clock_ns() {
  base::Histogram ns;
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t start = now_ns();
    ns.record(now_ns() - start);
  }
  return static_cast<std::uint64_t>(ns.percentile(0.5));
}

Result<device_memory::Address> timed_allocate(Subject& subject, std::uint64_t bytes,
                                              std::uint64_t clock) {
  const std::uint64_t start = now_ns();
  Result<device_memory::Address> address = subject.allocator->allocate(bytes, 0);
  const std::uint64_t ns = now_ns() - start;
  subject.allocate_ns.record(ns - std::min(ns, clock));
  return address;
}

Status timed_free(Subject& subject, device_memory::Address address, std::uint64_t clock) {
  const std::uint64_t start = now_ns();
  const Status freed = subject.allocator->free(address);
  const std::uint64_t ns = now_ns() - start;
  subject.free_ns.record(ns - std::min(ns, clock));
  return freed;
}

void add_row(Report& report, const std::string& name, const base::Histogram& ns,
             const base::Histogram* baseline, Target target = {}) {
  Row row{name, ns.percentile(0.5), "ns", "", 0, target};
  if (baseline != nullptr) {
    row.baseline = "the caching allocator";
    row.baseline_value = baseline->percentile(0.5);
    row.extras.emplace_back("baseline_p99_ns", baseline->percentile(0.99));
  }
  row.extras.emplace_back("p99_ns", ns.percentile(0.99));
  report.add(std::move(row));
}

// A size again and again in a heap that is full of others.
struct Case {
  const char* name;
  std::uint64_t bytes;
  std::vector<std::uint64_t> pieces;  // freed before, so that the first request stitches them
  Target target;
  Around around = Around::kOdd;
};

// The pieces are larger than what is free around them, so that they are what a stitch takes.
Status prepare(Subject& subject, const Case& what) {
  std::vector<device_memory::Address> pieces;
  for (const std::uint64_t bytes : what.pieces) {
    CACHALOT_TRY_ASSIGN(const device_memory::Address piece, subject.allocator->allocate(bytes, 0));
    pieces.push_back(piece);
  }
  CACHALOT_TRY(fill(*subject.allocator, what.around));
  for (const device_memory::Address piece : pieces) CACHALOT_TRY(subject.allocator->free(piece));
  CACHALOT_TRY_ASSIGN(const device_memory::Address first,
                      subject.allocator->allocate(what.bytes, 0));
  return subject.allocator->free(first);
}

Status measure(const Settings& settings, Report& report, const Case& what, std::uint64_t clock) {
  CACHALOT_TRY_ASSIGN(Subject stitch, make_subject(true));
  CACHALOT_TRY_ASSIGN(Subject caching, make_subject(false));
  for (Subject* subject : {&stitch, &caching}) CACHALOT_TRY(prepare(*subject, what));
  constexpr int kCalls = 2'000;
  for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
    for (Subject* subject : {&stitch, &caching}) {
      for (int i = 0; i < kCalls; ++i) {
        CACHALOT_TRY_ASSIGN(const device_memory::Address address,
                            timed_allocate(*subject, what.bytes, clock));
        CACHALOT_TRY(timed_free(*subject, address, clock));
      }
    }
  }
  const std::string name = what.name;
  add_row(report, "allocate/" + name, stitch.allocate_ns, &caching.allocate_ns, what.target);
  add_row(report, "free/" + name, stitch.free_ns, &caching.free_ns);
  return {};
}

// Stitches that find no cached block: each asks for a size of its own.
Status measure_stitching(const Settings& settings, Report& report, std::uint64_t clock) {
  CACHALOT_TRY_ASSIGN(Subject stitch, make_subject(true));
  CACHALOT_TRY(fill(*stitch.allocator, Around::kOdd));
  const std::uint64_t calls = 40 * settings.repeats;
  for (std::uint64_t i = 0; i < calls; ++i) {
    const std::uint64_t bytes = 1024 * kMiB + 512 * i;
    CACHALOT_TRY_ASSIGN(const device_memory::Address address, timed_allocate(stitch, bytes, clock));
    CACHALOT_TRY(stitch.allocator->free(address));
  }
  add_row(report, "allocate/stitch_1GiB_of_new_size", stitch.allocate_ns, nullptr);
  return {};
}

Result<std::vector<trace::AllocEvent>> finetuning() {
  trace::FinetuneOptions options;
  options.lora_rank = 128;
  options.recompute = true;
  options.batch = 112;
  CACHALOT_TRY_ASSIGN(trace::FinetuneGenerator generator, trace::FinetuneGenerator::make(options));
  std::vector<trace::AllocEvent> events;
  for (trace::AllocEvent event; generator.next(event);) {
    if (event.kind != trace::AllocKind::kMark) events.push_back(event);
  }
  return events;
}

Status replay(Subject& subject, const std::vector<trace::AllocEvent>& events, std::uint64_t clock) {
  std::vector<device_memory::Address> blocks;
  for (const trace::AllocEvent& event : events) {
    if (event.slot >= blocks.size()) blocks.resize(event.slot + 1);
    if (event.kind == trace::AllocKind::kAllocate) {
      CACHALOT_TRY_ASSIGN(blocks[event.slot], timed_allocate(subject, event.bytes, clock));
    } else {
      CACHALOT_TRY(timed_free(subject, blocks[event.slot], clock));
    }
  }
  return {};
}

Status measure_finetuning(const Settings& settings, Report& report, std::uint64_t clock) {
  CACHALOT_TRY_ASSIGN(const std::vector<trace::AllocEvent> events, finetuning());
  base::Histogram allocate_ns[2], free_ns[2];
  for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
    for (const bool stitches : {true, false}) {
      CACHALOT_TRY_ASSIGN(Subject subject, make_subject(stitches));
      CACHALOT_TRY(replay(subject, events, clock));
      allocate_ns[stitches].add(subject.allocate_ns);
      free_ns[stitches].add(subject.free_ns);
    }
  }
  add_row(report, "allocate/finetuning", allocate_ns[true], &allocate_ns[false]);
  add_row(report, "free/finetuning", free_ns[true], &free_ns[false]);
  return {};
}

}  // namespace

Status bench_alloc(const Settings& settings, Report& report) {
  take_cores();
  const std::uint64_t clock = clock_ns();
  const std::vector<std::uint64_t> two(2, 64 * kMiB), sixteen(16, 16 * kMiB);
  const Case cases[] = {
      {"small_4KiB", 4096, {}, {}},
      {"exact_64MiB", 64 * kMiB, {64 * kMiB}, value_at_most(200)},
      {"exact_4GiB", 4096 * kMiB, {4096 * kMiB}, value_at_most(200)},
      {"split_60MiB_of_64MiB", 60 * kMiB, {64 * kMiB}, {}},
      {"exact_stitched_of_2", 128 * kMiB, two, value_at_most(200), Around::kWholeChunks},
      {"exact_stitched_of_16", 256 * kMiB, sixteen, {}, Around::kWholeChunks},
      {"exact_stitched_with_corners", 128 * kMiB, two, {}},  // four pieces
  };
  for (const Case& each : cases) CACHALOT_TRY(measure(settings, report, each, clock));
  CACHALOT_TRY(measure_stitching(settings, report, clock));
  CACHALOT_TRY(measure_finetuning(settings, report, clock));
  report.note("without the driver's work; " + std::to_string(clock) +
              " ns of reading the clock are taken off; a heap of " + std::to_string(kBlocksAround) +
              " blocks around");
  return {};
}

}  // namespace cachalot::apps::bench
