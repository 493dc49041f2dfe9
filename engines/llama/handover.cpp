#include "handover.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <new>
#include <utility>

namespace cachalot::llama {
namespace {

constexpr std::align_val_t kPageAlignment{4096};

// A block as one layer of an attention that keeps bytes: each token has an equal share of them.
KvGeometry geometry_of(std::uint32_t block_tokens, std::uint32_t token_bytes) {
  KvGeometry geometry;
  geometry.layers = 1;
  geometry.attention = Attention::kLatent;
  geometry.kv_lora_rank = token_bytes;
  geometry.dtype = DType::kI8;
  geometry.block_tokens = block_tokens;
  return geometry;
}

Result<std::string> new_instance() {
  CACHALOT_TRY_ASSIGN(const OfferId random, random_offer_id());
  char name[64];
  std::snprintf(name, sizeof name, "llama-%d-%016" PRIx64, getpid(), random.low);
  return std::string(name);
}

Error differs(const char* what, const std::string& given, const std::string& own) {
  return Error::make(Code::kRefused, "it has %s %.20s, this process %.20s", what, given.c_str(),
                     own.c_str());
}

}  // namespace

void Handover::FreeMemory::operator()(std::byte* memory) const {
  ::operator delete[](memory, kPageAlignment);
}

Result<std::shared_ptr<Handover>> Handover::open(const HandoverOptions& options,
                                                 const BlockIdentity& identity,
                                                 std::uint64_t block_bytes) {
  constexpr std::uint64_t kMostPages = std::numeric_limits<std::int32_t>::max();
  const std::uint64_t token_bytes =
      (block_bytes + identity.block_tokens - 1) / identity.block_tokens;
  const std::uint64_t page_bytes = token_bytes * identity.block_tokens;
  const std::uint64_t pages = std::min(options.staging_bytes / page_bytes, kMostPages);
  if (pages == 0 || token_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return Error::make(
        Code::kInvalidArgument,
        "staging memory: %llu bytes, expected at least a block of this model, %llu bytes",
        static_cast<unsigned long long>(options.staging_bytes),
        static_cast<unsigned long long>(page_bytes));
  }
  // Untouched pages take no memory.
  Memory memory(
      static_cast<std::byte*>(::operator new[](pages* page_bytes, kPageAlignment, std::nothrow)));
  if (!memory) {
    return Error::make(Code::kNoSpace, "staging memory: no %llu bytes",
                       static_cast<unsigned long long>(pages * page_bytes));
  }
  CACHALOT_TRY_ASSIGN(std::string instance, new_instance());
  TransferOptions transfer;
  transfer.instance = instance;
  transfer.model = identity.fingerprint;
  transfer.geometry = geometry_of(identity.block_tokens, static_cast<std::uint32_t>(token_bytes));
  transfer.cache.layout = "mla_joint";
  transfer.cache.pages = static_cast<std::uint32_t>(pages);
  transfer.cache.tensors = {{memory.get(), pages * page_bytes}};
  transfer.listen = options.listen;
  transfer.checksums = options.checksums;
  transfer.peer_timeout_ns = options.peer_timeout_ns;
  CACHALOT_TRY_ASSIGN(TransferRank rank, TransferRank::open(transfer));
  return std::shared_ptr<Handover>(new Handover(options, identity, block_bytes, page_bytes,
                                                std::move(memory), std::move(instance),
                                                std::move(rank), transfer.cache.pages));
}

Handover::Handover(const HandoverOptions& options, const BlockIdentity& identity,
                   std::uint64_t block_bytes, std::uint64_t page_bytes, Memory memory,
                   std::string instance, TransferRank rank, std::uint32_t pages)
    : options_(options),
      identity_(identity),
      block_bytes_(block_bytes),
      page_bytes_(page_bytes),
      memory_(std::move(memory)),
      instance_(std::move(instance)),
      rank_(std::move(rank)),
      pages_(pages) {
  // The first ones are taken first, so that memory is touched only when it is needed.
  for (PageId number = pages; number > 0; --number) free_pages_.push_back(number - 1);
}

void Handover::log(const char* what, const Error& error) const {
  const Error line = Error::make(error.code, "%s: %s", what, error.message);
  if (options_.on_warning) options_.on_warning(line.message);
}

// --- Pages ---------------------------------------------------------------------------------------

Result<std::vector<PageId>> Handover::take_pages(std::size_t count) {
  reap_offers();
  const std::lock_guard lock(mutex_);
  if (count > free_pages_.size()) {
    return Error::make(Code::kNoSpace, "%zu blocks, and %zu of %u pages of staging memory are free",
                       count, free_pages_.size(), pages_);
  }
  std::vector<PageId> taken(free_pages_.rbegin(),
                            free_pages_.rbegin() + static_cast<std::ptrdiff_t>(count));
  free_pages_.resize(free_pages_.size() - count);
  return taken;
}

void Handover::give_back(std::span<const PageId> pages) {
  const std::lock_guard lock(mutex_);
  free_pages_.insert(free_pages_.end(), pages.rbegin(), pages.rend());
}

// Frees the pages of offers that have ended.
void Handover::reap_offers() {
  const std::vector<EndedOffer> ended = [&] {
    const std::lock_guard lock(mutex_);  // an offer is in offered_ before its end is seen
    std::vector<EndedOffer> offers = rank_.ended_offers();
    for (const EndedOffer& offer : offers) {
      const auto pages = offered_.extract(offer.id);
      if (pages.empty()) continue;
      free_pages_.insert(free_pages_.end(), pages.mapped().rbegin(), pages.mapped().rend());
    }
    return offers;
  }();
  for (const EndedOffer& offer : ended) {
    if (!offer.status) log("an offered prompt was not taken over", offer.status.error());
  }
}

Handover::Counts Handover::counts() {
  reap_offers();
  Counts counts;
  counts.of_rank = rank_.statistics();
  counts.pages = pages_;
  counts.page_bytes = page_bytes_;
  const std::lock_guard lock(mutex_);
  counts.free_pages = free_pages_.size();
  return counts;
}

// --- Prefill -------------------------------------------------------------------------------------

std::optional<PromptReference> Handover::offer(std::span<const BlockHash> hashes,
                                               const Fill& fill) {
  constexpr const char* kFailed = "a prompt cannot be offered";
  if (hashes.empty()) return {};
  const Result<std::vector<PageId>> pages = take_pages(hashes.size());
  if (!pages) return log(kFailed, pages.error()), std::nullopt;
  Result<PromptReference> reference = lend(hashes, *pages, fill);
  if (reference) return *std::move(reference);
  give_back(*pages);
  return log(kFailed, reference.error()), std::nullopt;
}

Result<PromptReference> Handover::lend(std::span<const BlockHash> hashes,
                                       std::span<const PageId> pages, const Fill& fill) {
  for (std::size_t block = 0; block < pages.size(); ++block)
    CACHALOT_TRY(fill(block, page(pages[block])));
  CACHALOT_TRY_ASSIGN(const OfferId id, random_offer_id());
  PromptReference reference;
  reference.kv.instance = instance_;
  reference.kv.id = id;
  reference.kv.tokens = pages.size() * identity_.block_tokens;
  reference.kv.addresses = {addresses()};
  reference.identity = identity_;
  reference.last_block = hashes.back();
  const std::lock_guard lock(mutex_);
  CACHALOT_TRY(rank_.offer({.id = id,
                            .pages = pages,
                            .tokens = reference.kv.tokens,
                            .deadline_ns = options_.deadline_ns}));
  offered_.emplace(id, std::vector<PageId>(pages.begin(), pages.end()));
  return reference;
}

// --- Decode --------------------------------------------------------------------------------------

Status Handover::check(const PromptReference& reference, std::span<const BlockHash> hashes) const {
  const BlockIdentity& given = reference.identity;
  if (given.model != identity_.model) return differs("model", given.model, identity_.model);
  if (given.kv_types != identity_.kv_types)
    return differs("KV types", given.kv_types, identity_.kv_types);
  if (given.block_tokens != identity_.block_tokens) {
    return Error::make(Code::kRefused, "its blocks have %u tokens, those of this process %u",
                       given.block_tokens, identity_.block_tokens);
  }
  if (given.fingerprint != identity_.fingerprint) {
    return Error::make(Code::kRefused,
                       "its process has another libllama, CPU, setting or salt than this one");
  }
  const std::uint64_t blocks = reference.kv.tokens / given.block_tokens;
  if (reference.kv.tokens % given.block_tokens != 0 || blocks == 0 || blocks > hashes.size()) {
    return Error::make(Code::kRefused,
                       "it has %llu tokens, the prompt %llu in whole blocks before its last token",
                       static_cast<unsigned long long>(reference.kv.tokens),
                       static_cast<unsigned long long>(hashes.size() * given.block_tokens));
  }
  if (hashes[blocks - 1] != reference.last_block)
    return Error::make(Code::kRefused, "it is of another prompt");
  return {};
}

std::optional<Handover::Arrival> Handover::ask(const PromptReference& reference,
                                               std::span<const BlockHash> hashes,
                                               std::size_t first) {
  const Status checked = check(reference, hashes);
  if (!checked)
    return log("a reference is not used, the prompt is computed", checked.error()), std::nullopt;
  const std::size_t end = reference.kv.tokens / identity_.block_tokens;
  // With all of it here the offer would stay until its deadline: one block ends it.
  first = std::min(first, end - 1);
  constexpr const char* kRefused = "a prompt's KV cannot be taken over, it is computed";
  Result<std::vector<PageId>> pages = take_pages(end - first);
  if (!pages) return log(kRefused, pages.error()), std::nullopt;
  const Result<AskId> asked =
      rank_.ask(reference.kv, {.pages = *pages,
                               .first_token = first * identity_.block_tokens,
                               .deadline_ns = options_.deadline_ns});
  if (asked) return Arrival(this, *asked, first, *std::move(pages));
  give_back(*pages);
  return log(kRefused, asked.error()), std::nullopt;
}

Handover::Arrival::Arrival(Arrival&& from) noexcept
    : handover_(std::exchange(from.handover_, nullptr)),
      ask_(from.ask_),
      first_(from.first_),
      pages_(std::move(from.pages_)),
      state_(from.state_) {}

Handover::Arrival::~Arrival() {
  if (handover_ == nullptr) return;
  handover_->rank_.release(ask_);  // nothing writes into the pages after this
  handover_->give_back(pages_);
}

Handover::Arrival::State Handover::Arrival::state() {
  if (state_ != kComing) return state_;
  const Result<AskStatus> status = handover_->rank_.status(ask_);
  if (status && status->state == HandoverState::kRunning) return kComing;
  if (status && status->state == HandoverState::kDone) return state_ = kHere;
  handover_->log("a transfer failed, its blocks are computed",
                 status ? status->error : status.error());
  return state_ = kFailed;
}

std::span<const std::byte> Handover::Arrival::block(std::size_t number) const {
  return handover_->page(pages_[number - first_]);
}

}  // namespace cachalot::llama
