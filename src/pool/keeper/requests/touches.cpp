#include "pool/keeper/requests/touches.h"

#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

using rpc::Message;

std::size_t Touches::serve(std::uint32_t client, std::span<const Message> messages) {
  std::size_t run = 0;
  while (run < messages.size() && op_of(messages[run]) == Op::kTouch) ++run;
  if (run > 1 && evictor_.can_prefetch()) prefetch(messages.first(run));

  std::uint16_t status = 0;
  std::uint32_t alike = 0;  // answers of that status not yet given
  for (std::size_t i = 0; i < run; ++i) {
    const std::uint16_t answer = serve_one(messages[i]);
    if (answer != status && alike != 0) {
      server_.answer(client, status, alike);
      alike = 0;
    }
    status = answer;
    ++alike;
  }
  server_.answer(client, status, alike);
  return run;
}

// First each block's own records, then the neighbours in the list of use.
void Touches::prefetch(std::span<const Message> messages) {
  for (const Message& message : messages) {
    const std::uint32_t block = first_use(message).block;
    if (block >= blocks_.size()) continue;
    blocks_.prefetch_use(block);
    evictor_.prefetch(block);
  }
  for (const Message& message : messages) {
    const std::uint32_t block = first_use(message).block;
    if (block < blocks_.size()) evictor_.prefetch_neighbours(block);
  }
}

// @return the status to answer with
std::uint16_t Touches::serve_one(const Message& message) {
  const memory::Line& head = message.lines[0];
  const std::uint32_t count = rpc::count_of(head);
  if (rpc::epoch_of(head) != reign_.epoch()) return status_of(Code::kStale);  // W5
  if (count == 0 || count > most_uses(rpc::lines_of(head)))
    return status_of(Code::kInvalidArgument);
  const std::uint32_t namespace_id = touched_namespace(message);
  std::uint32_t stale = apply(namespace_id, first_use(message));
  for (std::uint32_t u = 1; u < count; ++u) stale += apply(namespace_id, use_at(message, u));
  counters_[KeeperCounter::kTouches] += count;
  if (stale == 0) return 0;
  counters_[KeeperCounter::kStaleTouches] += stale;
  return status_of(Code::kStale);
}

// @return 1 if the use is not that of a live block any more
std::uint32_t Touches::apply(std::uint32_t namespace_id, const BlockUse& use) {
  if (use.block >= blocks_.size()) return 1;
  const BlockTable::Use& known = blocks_.use(use.block);
  if (known.state != BlockState::kLive || known.generation != use.generation ||
      known.namespace_id != namespace_id) {
    return 1;
  }
  evictor_.touch(use.block);
  observers_.tell([&](BlockObserver& observer) { observer.on_touched(use.block); });
  return 0;
}

}  // namespace cachalot::pool
