// The two domains of real machines. Why each fence is enough: docs/design/memory.md.
#include "memory/coherence.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "memory/copy.h"
#include "memory/read_back.h"

namespace cachalot::memory {
namespace {

// ThreadSanitizer knows atomics, not vector stores and fences: under it lines go word by word.
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// From here on non-temporal stores win over cached ones, whatever the caches hold. Below, the
// reader is likely to want the bytes at once, and the loops' start dominates anyway.
constexpr std::size_t kStreamFromBytes = 4096;
constexpr std::size_t kStreamFromLines = 4;

std::atomic_ref<std::uint64_t> word_at(const void* line, std::size_t word) {
  return std::atomic_ref(static_cast<std::uint64_t*>(const_cast<void*>(line))[word]);
}

// Where a line cannot be written in one store, it goes up in order, the word with the CRC last, and
// is read with that word first: a reader that sees a new CRC sees words at least as new. What is left (an old
// CRC over newer words, or a line being written again) does not check.
void store_words(void* to, const Line* lines, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t word = 0; word < 8; ++word) {
      word_at(to, 8 * i + word).store(lines[i].words[word], std::memory_order_release);
    }
  }
}

void load_words(const void* from, std::size_t count, Line* lines) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t word = 8; word-- > 0;) {
      lines[i].words[word] = word_at(from, 8 * i + word).load(std::memory_order_acquire);
    }
  }
}

void gather_words(const void* const* from, std::size_t first, std::size_t last, std::size_t count,
                  Line* lines) {
  for (std::size_t i = first; i < count && i < kPrefetchLines; ++i) __builtin_prefetch(from[i]);
  for (std::size_t i = first; i < last; ++i) {
    if (i + kPrefetchLines < count) __builtin_prefetch(from[i + kPrefetchLines]);
    load_words(from[i], 1, lines + i);
  }
}

CopyKernels with_lines_by_words(CopyKernels kernels) {
  kernels.whole_lines = false;
  kernels.store_lines = store_words;
  kernels.stream_lines = store_words;
  kernels.load_lines = load_words;
  kernels.gather_lines = gather_words;
  return kernels;
}

const std::byte* line_of(const std::byte* at) {
  return at - reinterpret_cast<std::uintptr_t>(at) % kLineBytes;
}

bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// Copies out of the pool into private memory, which others read under the usual rules of threads:
// the fence makes non-temporal stores ordinary to them again. Memory from malloc is often aligned
// to 16 bytes only; narrow non-temporal stores then still beat cached ones.
void copy_out(const CopyKernels& kernels, void* to, const void* from, std::size_t bytes,
              FusedHash* hash) {
  if (bytes < kStreamFromBytes || !is_aligned(to, 16)) {
    kernels.store(to, from, bytes, hash);
    return;
  }
  (is_aligned(to, kLineBytes) ? kernels.stream : kernels.stream_narrow)(to, from, bytes, hash);
  _mm_sfence();
}

// The same for many runs. Streaming asks for whole lines at aligned places, and pays from a few KiB
// in all on: a run of 1 KiB among thousands is as little in the caches as a long one.
void copy_runs_out(const CopyKernels& kernels, const CopyRun* runs, std::size_t count,
                   FusedHash* hash) {
  std::uintptr_t places = 0;
  std::size_t lengths = 0, total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    places |= reinterpret_cast<std::uintptr_t>(runs[i].to);
    lengths |= runs[i].bytes;
    total += runs[i].bytes;
  }
  if (total < kStreamFromBytes || lengths % kLineBytes != 0 || places % 16 != 0) {
    kernels.store_runs(runs, count, hash);
    return;
  }
  (places % kLineBytes == 0 ? kernels.stream_runs : kernels.stream_narrow_runs)(runs, count, hash);
  _mm_sfence();
}

std::size_t bytes_of(const CopyRun* runs, std::size_t count) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += runs[i].bytes;
  return total;
}

// A cached 64-byte store is not seen whole everywhere: Zen 4 hands it to the cache in two halves
// (measured: a reader that polls hard sees three in four changes torn). So no claim is made here;
// the second read that R5 then asks for hits the cache.
class CoherentDomain final : public Domain {
 public:
  explicit CoherentDomain(const CopyKernels& kernels)
      : Domain(true),
        kernels_(kThreadSanitizer || !kernels.whole_lines ? with_lines_by_words(kernels)
                                                          : kernels) {}

  DomainKind kind() const override { return DomainKind::kCoherent; }
  bool writes_whole_lines() const override { return false; }

  // On x86 every cached store is a release store and every load an acquire load; the compiler
  // cannot see into the calls. A cached store fetches the line from the core that read it last, one after
  // the other (measured: 7 M lines/s between far cores); a run of lines goes past the caches (70).
  void write_lines(void* to, const Line* lines, std::size_t count) override {
    (count < kStreamFromLines ? kernels_.store_lines : kernels_.stream_lines)(to, lines, count);
  }
  void read_lines(const void* from, std::size_t count, Line* lines) override {
    kernels_.load_lines(from, count, lines);
  }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    kernels_.gather_lines(from, 0, count, count, lines);
  }

  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    (bytes < kStreamFromBytes ? kernels_.store : kernels_.stream)(to, from, bytes, hash);
  }
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    copy_out(kernels_, to, from, bytes, hash);
  }
  void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    const bool few = bytes_of(runs, count) < kStreamFromBytes;
    (few ? kernels_.store_runs : kernels_.stream_runs)(runs, count, hash);
  }
  void prepare_read(const Extent*, std::size_t) override {}
  void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    copy_runs_out(kernels_, runs, count, hash);
  }

  void order() override { _mm_sfence(); }
  void complete() override { _mm_mfence(); }

 private:
  const CopyKernels kernels_;
};

class NoncoherentDomain final : public Domain {
 public:
  NoncoherentDomain(const CopyKernels& kernels, CompletePolicy policy)
      : kernels_(kThreadSanitizer ? with_lines_by_words(kernels) : kernels),
        clflushopt_(has_clflushopt()) {
    if (policy == CompletePolicy::kReadBack) read_back_.emplace();
  }

  DomainKind kind() const override { return DomainKind::kNoncoherent; }
  bool writes_whole_lines() const override { return kernels_.whole_lines; }

  void write_lines(void* to, const Line* lines, std::size_t count) override {
    kernels_.stream_lines(to, lines, count);
    if (read_back_) note(to, count * kLineBytes);
  }
  void read_lines(const void* from, std::size_t count, Line* lines) override {
    invalidate(from, count);
    kernels_.load_lines(from, count, lines);
  }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    invalidate_each(from, count);
    kernels_.gather_lines(from, 0, count, count, lines);
  }

  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    kernels_.stream(to, from, bytes, hash);
    if (read_back_) note(to, bytes);
  }
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    invalidate(from, bytes / kLineBytes);
    copy_out(kernels_, to, from, bytes, hash);
  }
  void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    kernels_.stream_runs(runs, count, hash);
    if (!read_back_) return;
    for (std::size_t i = 0; i < count; ++i) note(runs[i].to, runs[i].bytes);
  }
  void prepare_read(const Extent* extents, std::size_t count) override {
    _mm_mfence();
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* const end = extents[i].at + extents[i].bytes;
      for (const std::byte* line = line_of(extents[i].at); line < end; line += kLineBytes) {
        flush_line(line);
      }
    }
    _mm_mfence();
  }
  void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    copy_runs_out(kernels_, runs, count, hash);
  }

  void order() override { _mm_sfence(); }
  void complete() override {
    _mm_mfence();
    if (!read_back_) return;
    for (const void* line = read_back_->next(); line != nullptr; line = read_back_->next()) {
      read_again(line);
    }
  }

 private:
  // R3: earlier loads are done before the first flush, the flushes before the loads that follow.
  void invalidate(const void* from, std::size_t lines) const {
    _mm_mfence();
    for (std::size_t i = 0; i < lines; ++i) {
      flush_line(static_cast<const char*>(from) + i * kLineBytes);
    }
    _mm_mfence();
  }

  void invalidate_each(const void* const* from, std::size_t count) const {
    _mm_mfence();
    for (std::size_t i = 0; i < count; ++i) flush_line(from[i]);
    _mm_mfence();
  }

  void flush_line(const void* line) const {
    if (clflushopt_) [[likely]] {
      asm volatile("clflushopt %0" : "+m"(*static_cast<volatile char*>(const_cast<void*>(line))));
    } else {
      _mm_clflush(line);
    }
  }

  void note(const void* to, std::size_t bytes) const {
    read_back_->note_stripes(to, bytes, [this](const void* line) {
      _mm_mfence();
      read_again(line);
    });
  }

  void read_again(const void* line) const {
    invalidate(line, 1);
    Line unused;
    kernels_.load_lines(line, 1, &unused);
    _mm_mfence();  // the load has its answer before anything is told
  }

  const CopyKernels kernels_;
  const bool clflushopt_;
  std::optional<ReadBack> read_back_;
};

}  // namespace

const char* domain_name(DomainKind kind) {
  switch (kind) {
    case DomainKind::kCoherent:
      return "coherent";
    case DomainKind::kNoncoherent:
      return "noncoherent";
    case DomainKind::kLossy:
      return "lossy";
    case DomainKind::kMixed:
      return "mixed";
  }
  return "unknown";
}

std::unique_ptr<Domain> make_coherent_domain(Isa isa) {
  return std::make_unique<CoherentDomain>(copy_kernels(isa));
}

std::unique_ptr<Domain> make_noncoherent_domain(Isa isa, CompletePolicy complete) {
  return std::make_unique<NoncoherentDomain>(copy_kernels(isa), complete);
}

}  // namespace cachalot::memory
