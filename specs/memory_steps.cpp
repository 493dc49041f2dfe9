// What happens to stores by themselves: they drain, now or later.

#include <cassert>
#include <cstdlib>

#include "buffer.h"

namespace cachalot::specs {

void store(Buffer& buffer, std::uint8_t line, std::uint16_t value) {
  const int count = pending(buffer);
  if (buffer.next_group == 0) buffer.next_group = 1;
  int at = count;
  while (at > 0 && buffer.lines[at - 1].group == buffer.next_group &&
         buffer.lines[at - 1].line >= line) {
    --at;
  }
  if (at < count && buffer.lines[at].group == buffer.next_group && buffer.lines[at].line == line) {
    buffer.lines[at].value = value;
    return;
  }
  if (count == kPending) std::abort();
  for (int i = count; i > at; --i) buffer.lines[i] = buffer.lines[i - 1];
  buffer.lines[at] = {value, line, buffer.next_group};
}

void order(Buffer& buffer) {
  const int count = pending(buffer);
  if (count != 0 && buffer.lines[count - 1].group == buffer.next_group) ++buffer.next_group;
}

bool may_drain(const Buffer& buffer, int index) {
  return buffer.lines[index].line != 0 && buffer.lines[index].group == buffer.lines[0].group;
}

bool is_in_last_group(const Buffer& buffer, int index) {
  return buffer.lines[index].group == buffer.lines[pending(buffer) - 1].group;
}

// Groups are numbered from 1 again, so that equal buffers have equal bytes.
Pending take(Buffer& buffer, int index) {
  const Pending taken = buffer.lines[index];
  for (int i = index; i + 1 < kPending; ++i) buffer.lines[i] = buffer.lines[i + 1];
  buffer.lines[kPending - 1] = {};
  if (is_drained(buffer)) {
    buffer.next_group = 0;
    return taken;
  }
  const std::uint8_t gone = buffer.lines[0].group - 1;
  for (int i = 0; i < pending(buffer); ++i) buffer.lines[i].group -= gone;
  buffer.next_group -= gone;
  return taken;
}

namespace {

const char* const kNames[kHosts] = {"A", "B", "K1", "K2", "R"};

bool has_crashed(const State& state, int host) {
  if (host < kClients) return state.clients[host].at == ClientAt::kExited;
  return (host == kKeeper || host == kSuccessor) &&
         state.keepers[host - kKeeper].at == KeeperAt::kGone;
}

Label drained(int host, const Pending& line) {
  const char* name = kNames[host];
  const int n = line.line;
  if (n >= kDataLine) {
    return {name,
            "drains half %d of block %d (h%d)",
            {(n - kDataLine) % kHalves, (n - kDataLine) / kHalves, line.value}};
  }
  if (n == kPinLine) {
    const Pin pin = Pin::from(line.value);
    return {name, "drains its pin line: oldest %d, newest %d", {pin.oldest, pin.newest}};
  }
  if (n >= kViewLine) return {name, "drains a view line (client %d)", {(n - kViewLine) % kClients}};
  if (n >= kClientLine) return {name, "drains its client line"};
  if (n >= kResponseLine) {
    return {name, "drains an answer to client %d", {(n - kResponseLine) % kClients}};
  }
  if (n >= kRequestLine) return {name, "drains its request"};
  if (n >= kLedgerLine) return {name, "drains the ledger line of block %d", {n - kLedgerLine}};
  if (n >= kEntryLine) {
    const Entry entry = Entry::from(line.value);
    if (entry.hash == 0) return {name, "drains a tombstone into slot %d", {n - kEntryLine}};
    return {name,
            "drains entry h%d -> block %d, epoch %d, generation %d",
            {entry.hash, entry.block, entry.epoch, entry.generation}};
  }
  return {name,
          "drains its keeper line: {epoch %d, min %d}",
          {ruling_epoch(line.value), min_epoch(line.value)}};
}

// Of a block that an old keeper made invisible, and the ruling one has not written again since.
void note_entry(State& next, int host, const Pending& line) {
  const auto slot = static_cast<std::uint8_t>(1 << (line.line - kEntryLine));
  if (host == kSuccessor) {
    next.overwritten &= static_cast<std::uint8_t>(~slot);
  } else if (next.pool[kSuccessorLine] != kFirstRules) {
    next.overwritten |= slot;
  }
}

}  // namespace

void memory_steps(const Model&, const State& state, Sink& sink) {
  for (int host = 0; host < kHosts; ++host) {
    const Buffer& buffer = state.buffers[host];
    for (int i = 0; i < pending(buffer); ++i) {
      if (may_drain(buffer, i)) {
        State next = state;
        const Pending line = take(next.buffers[host], i);
        next.pool[line.line] = line.value;
        if (line.line >= kEntryLine && line.line < kEntryLine + kSlots)
          note_entry(next, host, line);
        sink.step(next, drained(host, line));
      }
      // An actor's steps store several lines at once. One that died may have died between them.
      if (has_crashed(state, host) && is_in_last_group(buffer, i)) {
        State next = state;
        take(next.buffers[host], i);
        sink.step(next, {kNames[host], "had died before it stored its last lines"});
      }
    }
  }
}

void all_steps(const Model& model, const State& state, Sink& sink) {
  for (int client = 0; client < kClients; ++client) client_steps(model, state, client, sink);
  for (int keeper = 0; keeper < 2; ++keeper) keeper_steps(model, state, keeper, sink);
  takeover_steps(model, state, sink);
  reader_steps(model, state, sink);
  memory_steps(model, state, sink);
}

}  // namespace cachalot::specs
