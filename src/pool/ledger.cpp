#include "pool/ledger.h"

#include <algorithm>

namespace cachalot::pool {
namespace {

LedgerState ledger_state(BlockState state) {
  switch (state) {
    case BlockState::kGranted: return LedgerState::kGranted;
    case BlockState::kLive: return LedgerState::kLive;
    case BlockState::kQuarantined: return LedgerState::kQuarantined;
    case BlockState::kBad: return LedgerState::kBad;
    case BlockState::kFree:
    case BlockState::kLimbo: break;
  }
  return LedgerState::kFree;
}

}  // namespace

void Ledger::touch(std::uint32_t block) {
  const std::uint32_t first = block / kLedgerRecordsPerLine * kLedgerRecordsPerLine;
  if (dirty_.empty() || dirty_.back() != first) dirty_.push_back(first);
}

void Ledger::flush() {
  std::sort(dirty_.begin(), dirty_.end());
  dirty_.erase(std::unique(dirty_.begin(), dirty_.end()), dirty_.end());
  for (const std::uint32_t first : dirty_) write_line_of(first);
  dirty_.clear();
}

void Ledger::write_all() {
  for (std::uint32_t block = 0; block < blocks_->size(); block += kLedgerRecordsPerLine) {
    write_line_of(block);
  }
  dirty_.clear();
}

void Ledger::write_line_of(std::uint32_t block) {
  const std::uint32_t first = block / kLedgerRecordsPerLine * kLedgerRecordsPerLine;
  LedgerLine line{};
  for (std::uint32_t i = 0; i < kLedgerRecordsPerLine && first + i < blocks_->size(); ++i) {
    const BlockTable::Use& use = blocks_->use(first + i);
    const BlockTable::Record& record = blocks_->record(first + i);
    line.records[i] = {use.generation, record.incarnation, record.holder, ledger_state(use.state), 0};
  }
  access_->region.publish(access_->layout.ledger_line(keeper_, first), line);
}

std::vector<LedgerRecord> Ledger::read_all(const Access& access, std::uint32_t keeper) {
  constexpr std::uint32_t kBatch = 64;
  const std::uint32_t blocks = access.geometry.blocks;
  std::vector<LedgerRecord> all(blocks);
  memory::Line lines[kBatch];
  for (std::uint32_t first = 0; first < blocks; first += kBatch * kLedgerRecordsPerLine) {
    const std::uint32_t left = (blocks - first + kLedgerRecordsPerLine - 1) / kLedgerRecordsPerLine;
    const std::uint32_t count = std::min(kBatch, left);
    access.domain().read_lines(access.region.at(access.layout.ledger_line(keeper, first)), count, lines);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t block = first + i * kLedgerRecordsPerLine;
      const bool is_good = access.region.checks(lines[i], access.layout.ledger_line(keeper, block));
      const auto line = memory::as<LedgerLine>(lines[i]);
      for (std::uint32_t r = 0; r < kLedgerRecordsPerLine && block + r < blocks; ++r) {
        all[block + r] = is_good ? line.records[r] : read(access, keeper, block + r);
      }
    }
  }
  return all;
}

LedgerRecord Ledger::read(const Access& access, std::uint32_t keeper, std::uint32_t block) {
  LedgerLine line{};
  if (!access.region.read_as(access.layout.ledger_line(keeper, block), line)) {
    return {0, 0, kUnknownHolder, LedgerState::kQuarantined, 0};
  }
  return line.records[block % kLedgerRecordsPerLine];
}

}  // namespace cachalot::pool
