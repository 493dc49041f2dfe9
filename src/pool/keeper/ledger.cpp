#include "pool/keeper/ledger.h"

#include <algorithm>

namespace cachalot::pool {
namespace {

LedgerState ledger_state(BlockState state) {
  switch (state) {
    case BlockState::kGranted:
      return LedgerState::kGranted;
    case BlockState::kLive:
      return LedgerState::kLive;
    case BlockState::kQuarantined:
      return LedgerState::kQuarantined;
    case BlockState::kBad:
      return LedgerState::kBad;
    case BlockState::kFree:
    case BlockState::kLimbo:
    case BlockState::kAbsent:
      break;
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

void Ledger::write(std::uint32_t first, std::uint32_t end) {
  for (; first < end; first += kLedgerRecordsPerLine) write_line_of(first);
}

void Ledger::write_line_of(std::uint32_t block) {
  const std::uint32_t first = block / kLedgerRecordsPerLine * kLedgerRecordsPerLine;
  LedgerLine line{};
  for (std::uint32_t i = 0; i < kLedgerRecordsPerLine && first + i < blocks_->size(); ++i) {
    const BlockTable::Use& use = blocks_->use(first + i);
    const BlockTable::Record& record = blocks_->record(first + i);
    line.records[i] = {use.generation, record.incarnation, record.holder, ledger_state(use.state),
                       0};
  }
  access_->region.publish(access_->layout.ledger_line(keeper_, first), line);
}

void Ledger::read(const Access& access, std::uint32_t keeper, std::uint32_t first,
                  std::span<LedgerRecord> records) {
  constexpr std::uint32_t kBatch = 64;
  memory::Line lines[kBatch];
  while (!records.empty()) {
    const std::size_t needed = (records.size() + kLedgerRecordsPerLine - 1) / kLedgerRecordsPerLine;
    const std::uint32_t count = static_cast<std::uint32_t>(std::min<std::size_t>(kBatch, needed));
    access.domain().read_lines(access.region.at(access.layout.ledger_line(keeper, first)), count,
                               lines);
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool is_good = access.region.checks(lines[i], access.layout.ledger_line(keeper, first));
      const auto line = memory::as<LedgerLine>(lines[i]);
      const std::size_t wanted = std::min<std::size_t>(kLedgerRecordsPerLine, records.size());
      for (std::uint32_t r = 0; r < wanted; ++r) {
        records[r] = is_good ? line.records[r] : read(access, keeper, first + r);
      }
      records = records.subspan(wanted);
      first += kLedgerRecordsPerLine;
    }
  }
}

LedgerRecord Ledger::read(const Access& access, std::uint32_t keeper, std::uint32_t block) {
  LedgerLine line{};
  if (!access.region.read_as(access.layout.ledger_line(keeper, block), line)) {
    return {0, 0, kUnknownHolder, LedgerState::kQuarantined, 0};
  }
  return line.records[block % kLedgerRecordsPerLine];
}

}  // namespace cachalot::pool
