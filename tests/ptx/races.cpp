#include "ptx/races.h"

#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

bool of_one_warp(const Races::Actor& a, const Races::Actor& b) {
  return a.thread / 32 == b.thread / 32;
}

}  // namespace

bool Races::in_order(const Actor& before, const Actor& now) {
  if (before.thread == now.thread || before.barriers != now.barriers) return true;
  return of_one_warp(before, now) && before.meetings != now.meetings;
}

void Races::add_reader(Cell& cell, const Actor& actor) {
  const bool is_first = cell.readers == Readers::kNone || cell.reader.barriers != actor.barriers;
  if (!is_first && (cell.readers == Readers::kOfWarps || !of_one_warp(cell.reader, actor))) {
    cell.readers = Readers::kOfWarps;
  } else if (is_first || cell.reader.meetings != actor.meetings) {
    cell.readers = Readers::kOne;
  } else if (cell.reader.thread != actor.thread) {
    cell.readers = Readers::kOfAWarp;
  }
  cell.reader = actor;
}

bool Races::was_read_by_others(const Cell& cell, const Actor& actor) {
  if (cell.readers == Readers::kNone || cell.reader.barriers != actor.barriers) return false;
  if (cell.readers == Readers::kOfWarps || !of_one_warp(cell.reader, actor)) return true;
  if (cell.reader.meetings != actor.meetings) return false;
  return cell.readers == Readers::kOfAWarp || cell.reader.thread != actor.thread;
}

void Races::touch(const Actor& actor, std::uint64_t at, std::uint64_t bytes, bool writes) {
  if (cells_.empty()) return;
  for (std::uint64_t i = at; i < at + bytes; ++i) {
    Cell& cell = cells_[i];
    if (cell.was_written && !in_order(cell.writer, actor)) {
      fail(Wrong::kRule, "a race: thread %u %s byte %llu of shared memory, which thread %u wrote",
           actor.thread, writes ? "writes" : "reads", static_cast<unsigned long long>(i),
           cell.writer.thread);
    }
    if (!writes) {
      add_reader(cell, actor);
      continue;
    }
    if (was_read_by_others(cell, actor)) {
      fail(Wrong::kRule, "a race: thread %u writes byte %llu of shared memory, which others read",
           actor.thread, static_cast<unsigned long long>(i));
    }
    cell.writer = actor;
    cell.was_written = true;
  }
}

}  // namespace cachalot::ptx
